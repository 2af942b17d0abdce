"""File systems that are full: a command sees it, a commit is whole or not begun, and nothing is left.

In a child with mounts of its own, where each is a small one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.in_a_child import ROOT, python

_USER = [] if ROOT else ["--user", "--map-current-user", "--keep-caps"]
_AROUND = ["unshare", *_USER, "--mount"]
_PRELUDE = """
import subprocess
from staddle import Sandbox, Snapshot
from staddle.errors import CommitFailed

def small(name, size):
    place = os.path.join({place!r}, name)
    os.mkdir(place)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={{size}},mode=755", "none", place], check=True)
    return place

def said(path):
    with open(path) as file:
        return file.read()

def write(path, text):
    with open(path, "w") as file:
        file.write(text)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that another user can pass through: root's sandbox does not run as root."""
    with tempfile.TemporaryDirectory(prefix="full-") as made:
        os.chmod(made, 0o755)
        yield Path(made)


def child(code: str, place: Path) -> str:
    return python(_PRELUDE.format(place=str(place)) + code, around=_AROUND)


@pytest.mark.slow
def test_where_layers_are_is_full(place: Path) -> None:
    told = child(
        """
os.environ["STADDLE_LAYERS"] = small("layers", "4m")
with Sandbox() as sb:
    full = sb.run("x=kept; head -c 16M /dev/zero > big")
    assert "No space left" in full.stderr and full.exit_code == 1, full
    assert [change.path for change in sb.diff()] == ["/workspace/big"]
    with Sandbox() as other:
        assert other.run("echo fine").stdout == "fine\\n"
    assert sb.run("rm big; echo $x > small; cat small").stdout == "kept\\n"
    print("fine")
""",
        place,
    )
    assert told == "fine"


@pytest.mark.slow
def test_a_commit_that_does_not_fit_changes_nothing(place: Path) -> None:
    told = child(
        """
place = small("work", "4m")
write(f"{place}/f", "old"), write(f"{place}/g", "old")
with Sandbox(place) as sb:
    sb.run("echo new > f; rm g; mkdir d; head -c 3M /dev/zero > d/a; head -c 3M /dev/zero > b", check=True)
    try:
        sb.commit()
    except CommitFailed as error:
        assert "nothing was changed" in str(error) and "No space left" in str(error), error
    else:
        raise AssertionError("it was committed")
    assert sorted(os.listdir(place)) == ["f", "g"] and said(f"{place}/f") == said(f"{place}/g") == "old"
    sb.discard(["b"])
    sb.commit()
assert sorted(os.listdir(place)) == ["d", "f"] and said(f"{place}/f") == "new\\n"
print("fine")
""",
        place,
    )
    assert told == "fine"


@pytest.mark.slow
def test_a_snapshot_that_cannot_be_saved_leaves_no_file(place: Path) -> None:
    told = child(
        """
place = small("saved", "1m")
with Sandbox() as sb:
    sb.run("head -c 3M /dev/urandom > a; x=kept", check=True)
    taken = sb.snapshot()
    try:
        taken.save(f"{place}/file")
    except OSError as error:
        assert error.errno == errno.ENOSPC
    else:
        raise AssertionError("it was saved")
    assert os.listdir(place) == []
    taken.save({place!r} + "/elsewhere")
    assert sb.run("echo $x").stdout == "kept\\n"
print("fine")
""".replace("{place!r}", repr(str(place))),
        place,
    )
    assert told == "fine"


@pytest.mark.parametrize("what", ["blocks", "inodes"])
@pytest.mark.parametrize("kind", ["plain", "copy", "kept", "fork", "snapshot"])
def test_closing_needs_no_room_and_frees_what_there_was(place: Path, what: str, kind: str) -> None:
    told = child(
        f"""
from staddle.layers import trash
from staddle.errors import StaddleError
layers, work = small("layers", "16m,nr_inodes=500"), small("work", "4m")
os.environ["STADDLE_LAYERS"] = layers
os.environ["XDG_STATE_HOME"] = layers
os.chmod(layers, 0o755)
options = {{"mode": "copy"}} if {kind!r} == "copy" else {{"keep": "one"}} if {kind!r} == "kept" else {{}}
sb = Sandbox(work, **options)
sb.run("head -c 1M /dev/urandom > file")
opened = [sb]
if {kind!r} == "fork":
    opened += sb.fork(2)
if {kind!r} == "snapshot":
    kept = [sb.snapshot() for _ in range(3) if sb.run("echo >> file")]
def fill():
    count = 0
    try:
        while True:
            with open(f"{{layers}}/fill{{count}}", "wb", buffering=0) as file:
                count += 1
                while {what!r} == "blocks":
                    if not file.write(b"x" * 65536):
                        break
    except OSError:
        pass
    try:
        while {what!r} == "blocks":
            with open(f"{{layers}}/fill{{count}}", "wb", buffering=0) as file:
                count += 1
                file.write(b"x")
    except OSError:
        pass
fill()
import warnings
warnings.simplefilter("ignore")
for each in (*reversed(opened), *opened):
    each.close()
    assert not each.alive
trash.wait()
if {kind!r} in ("kept", "copy"):  # which have freed too little for another one
    os.unlink(f"{{layers}}/fill0")
    for count in range(1, 100 if {what!r} == "inodes" else 1):
        os.unlink(f"{{layers}}/fill{{count}}")
def opened_when_room_is_freed():
    # The layers are deleted by now. The kernel unmounts them in a work queue, and frees their inodes then.
    end = time.monotonic() + 30
    while True:
        try:
            return Sandbox(work, **options)
        except StaddleError as error:
            if time.monotonic() > end or "No space left" not in str(error) and "no inode" not in str(error):
                raise
            time.sleep(0.05)
with opened_when_room_is_freed() as another:
    assert another.run("echo fine").stdout == "fine\\n"
    assert another.files.exists("file") == ({kind!r} == "kept")
print("fine")
""",
        place,
    )
    assert told == "fine"


def test_a_store_without_room_is_an_error_with_its_place(place: Path) -> None:
    told = child(
        """
from staddle.errors import LayerError
layers = small("layers", "1m,nr_inodes=12")
os.environ["STADDLE_LAYERS"] = layers
try:
    boxes = [Sandbox() for _ in range(9)]
except LayerError as error:
    print(layers in error.why, "STADDLE_LAYERS" in error.fix)
""",
        place,
    )
    assert told == "True True"


def test_wherever_an_opening_meets_the_end_of_the_room_it_is_an_error_with_the_place(place: Path) -> None:
    """In this process, in the fork server and inside: the kernel makes files of its own for a mount."""
    told = child(
        """
from staddle.errors import LayerError
layers = small("layers", "4m")
os.environ["STADDLE_LAYERS"] = layers
def opened(options):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options + ",mode=755", "none", layers], check=True)
    try:
        Sandbox().close()
    except LayerError as error:
        assert layers in error.why and "STADDLE_LAYERS" in error.fix, error
        return 3
    return 4
ends = []
for options in [f"nr_inodes={count}" for count in range(18, 40)] + ["size=8k", "size=16k"]:
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(opened(options))
        except BaseException as error:
            print(options, type(error).__name__, error, file=sys.stderr, flush=True)
            os._exit(5)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    subprocess.run(["umount", "-l", layers], check=True)
assert ends[0] == ends[-1] == 3 and set(ends) <= {3, 4}, ends
print("fine")
""",
        place,
    )
    assert told == "fine"
