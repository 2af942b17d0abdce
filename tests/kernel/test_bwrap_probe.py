"""The self-test finds out a bwrap that does not confine, and names the true cause when none can."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle.backends import bwrap as module
from staddle.backends import canary, namespaces
from staddle.backends.bwrap import Bwrap
from staddle.errors import BackendUnavailable, LaunchFailed
from staddle.linux import programs
from tests.support.fresh_roots import Ran, system
from tests.support.in_a_child import captured
from tests.unit.mounts.plans import read

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"

#: Says it is bubblewrap and starts the real one, without one of its options.
MUTANT = """#!/usr/bin/python3 -IS
# bubblewrap 0.8.0 --ro-bind-fd
import os, sys
LEFT_OUT = {left_out!r}
at = sys.argv.index("--args")
words = open(int(sys.argv[at + 1]), "rb").read().split(b"\\0")[:-1]
kept, i = [], 0
while i < len(words):
    word = words[i].decode()
    if word in LEFT_OUT:
        i += 1 + LEFT_OUT[word]
    else:
        kept.append(words[i]); i += 1
fd = os.memfd_create("a", 0)
os.write(fd, b"\\0".join([*{first!r}, *kept, *{added!r}]) + b"\\0"); os.lseek(fd, 0, 0)
os.execv("/usr/bin/bwrap", ["bwrap", "--args", str(fd), *sys.argv[at + 2:]])
"""
#: Options and the arguments they take, what is added, and what the self-test must notice.
MUTANTS = {
    "no filter": ({"--seccomp": 1}, [], "no system call filter"),
    "capabilities": ({"--cap-drop": 1}, [b"--cap-add", b"ALL"], "capabilities"),
    "the hosts network": ({}, [b"--share-net"], "a network"),
    "the hosts processes": (
        {"--unshare-all": 0},
        [b"--unshare-net", b"--unshare-ipc", b"--unshare-uts", b"--unshare-cgroup"],
        "no process namespace",
    ),
    "the hosts name": ({"--hostname": 1}, [], "host name"),
    "the hosts environment": ({"--clearenv": 0}, [b"--setenv", b"LEAK", b"1"], "more variables"),
    "the hosts root": (
        {"--tmpfs": 1, "--symlink": 2, "--dir": 1, "--perms": 1, "--size": 1},
        [],
        "the host's root",
    ),
    "no status": ({"--json-status-fd": 1}, [], "did not report"),
}
FAKES = {
    "runs nothing": ("exit 0", "without running"),
    "fails with a message": ("echo broken >&2; exit 1", "broken"),
    "runs the command as it is": (
        'while [ "$1" != -- ]; do shift; done; shift; exec "$@"',
        "not run|without",
    ),
    "repeats its arguments": ('printf "%s\\n" "$@"', "without running"),
    "never ends": ("exec sleep 1000", ""),
}


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that anybody can enter: root's sandbox is started as nobody."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


def program(path: Path, text: str) -> Bwrap:
    path.write_text(text)
    path.chmod(0o755)
    return Bwrap(executable=str(path))


def refused(backend: Bwrap) -> str:
    """Why it is unusable; and that nothing is started with it."""
    probe = backend.probe()
    assert not probe.usable
    with pytest.raises(BackendUnavailable) as error:
        backend.prepare(system(), ("/bin/true",))
    assert error.value.why == probe.why
    return probe.why


def test_the_systems_bwrap_confines() -> None:
    probe = Bwrap().probe()
    assert (probe.backend, probe.usable, probe.why) == ("bwrap", True, "")
    assert probe.version


def test_the_mutant_that_leaves_out_nothing_passes(open_path: Path) -> None:
    assert program(open_path / "bwrap", MUTANT.format(left_out={}, added=[], first=[])).probe().usable


def test_one_that_takes_no_descriptors_is_given_paths(open_path: Path) -> None:
    text = MUTANT.format(left_out={}, added=[], first=[]).replace(" --ro-bind-fd", "")
    backend = program(open_path / "bwrap", text)
    (open_path / "f").write_text("seen")
    ran = Ran(backend.prepare(system(grants=(read(str(open_path)),)), ("/bin/cat", f"{open_path}/f")))
    assert ran.out == "seen", ran.err
    (open_path / "link").symlink_to("/etc")
    with pytest.raises(LaunchFailed, match="link in it"):
        backend.prepare(system(grants=(read(f"{open_path}/link"),)), ("/bin/true",))


@pytest.mark.parametrize(("left_out", "added", "noticed"), MUTANTS.values(), ids=MUTANTS.keys())
def test_a_protection_that_is_missing_is_noticed(
    left_out: dict[str, int], added: list[bytes], noticed: str, open_path: Path
) -> None:
    first = [b"--ro-bind", b"/", b"/"] if "root" in noticed else []
    text = MUTANT.format(left_out=left_out, added=added, first=first)
    assert noticed in refused(program(open_path / "bwrap", text))


@pytest.mark.parametrize(("script", "noticed"), FAKES.values(), ids=FAKES.keys())
def test_a_program_that_only_says_it_is_bwrap_is_noticed(
    script: str, noticed: str, open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "PATIENCE", (1.0, 1.0))
    fake = program(open_path / "bwrap", f"#!/bin/sh\n# bubblewrap 0.8.0\n{script}\n")
    assert re.search(noticed, refused(fake))


def test_a_self_test_that_the_machine_was_too_busy_for_is_tried_again(
    open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "PATIENCE", (0.0, 60.0))
    monkeypatch.setattr(namespaces, "_known", {})
    assert namespaces.Namespaces().probe().usable
    slow = program(open_path / "bwrap", '#!/bin/sh\n# bubblewrap 0.8.0\nexec /usr/bin/bwrap "$@"\n')
    assert slow.probe().usable, slow.probe().why


def test_an_old_or_unknown_version_is_refused(open_path: Path) -> None:
    assert "0.7.1" in refused(program(open_path / "old", "#!/bin/sh\n# bubblewrap 0.7.1\nexit 0"))
    assert "unknown version" in refused(program(open_path / "none", "#!/bin/sh\nexit 0"))


def test_one_that_others_can_change_or_that_is_setuid_is_refused(open_path: Path) -> None:
    backend = program(open_path / "bwrap", "#!/bin/sh\n# bubblewrap 0.8.0\n")
    (open_path / "bwrap").chmod(0o775)
    assert "can be changed by others" in refused(backend)
    (open_path / "bwrap").chmod(0o4755)
    assert "setuid" in refused(backend)
    (open_path / "bwrap").chmod(0o644)
    assert "cannot be executed" in refused(backend)


def test_none_is_not_installed_whatever_the_path_says(
    open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(open_path / "bwrap", "#!/bin/sh\n# bubblewrap 0.8.0\nexit 0")
    monkeypatch.setenv("PATH", f"{open_path}:/usr/bin")
    monkeypatch.chdir(open_path)
    monkeypatch.setattr(programs, "DIRECTORIES", (str(open_path / "empty"),))
    assert "not installed" in refused(Bwrap())
    assert "bubblewrap" in Bwrap().probe().fix


def test_the_answer_is_kept_and_a_new_file_is_tried_anew(open_path: Path) -> None:
    path = open_path / "bwrap"
    count = open_path / "count"
    count.touch()
    count.chmod(0o666)
    fake = program(path, f"#!/bin/sh\n# bubblewrap 0.8.0\necho >> {count}\nexit 0")
    for _ in range(3):
        fake.probe()
        Bwrap(executable=str(path)).probe()
    assert count.read_text() == "\n"
    program(path, MUTANT.format(left_out={}, added=[], first=[]))
    assert fake.probe().usable


def test_it_runs_beside_us_once_begun() -> None:
    module._known.clear()
    Bwrap().begin_probe()
    assert len(module._begun) == 1
    Bwrap().begin_probe()
    assert Bwrap().probe().usable
    assert module._begun == {}


def cause(*traits: str, before: str = "", source: Path = SRC) -> str:
    """Why bwrap is unusable on a host with these traits."""
    script = f"{before}\nfrom staddle.backends.bwrap import Bwrap\n"
    script += "p = Bwrap().probe()\nprint(p.usable, p.why, p.fix, sep='|')"
    done = captured(
        [
            sys.executable,
            str(HERE.parent / "support/other_hosts.py"),
            *traits,
            "--",
            sys.executable,
            "-c",
            script,
        ],
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    assert done.stdout.count("|") == 2, done.stderr
    usable, why, fix = done.stdout.strip().split("|")
    assert usable == "False", done.stderr
    assert fix
    return why


def test_a_filter_that_refuses_namespaces_is_named() -> None:
    assert "seccomp filter" in cause("no-namespaces")


def test_a_covered_proc_is_named() -> None:
    why = cause("masked-proc")
    assert "/proc" in why
    assert "covered" in why


def test_a_limit_of_no_user_namespaces_is_named() -> None:
    before = """
import os
from staddle.linux.syscalls import call
if os.geteuid() == 0:
    from staddle.linux.process import become, dumpable
    become(54321, 54321)
    dumpable(True)
uid, gid = os.geteuid(), os.getegid()
call("unshare", 0x10000000)
for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
    open("/proc/self/" + name, "w").write(text)
open("/proc/sys/user/max_user_namespaces", "w").write("0")
"""
    # Somebody else asks, who may not be able to enter the directory of this tree.
    with tempfile.TemporaryDirectory() as copy:
        os.chmod(copy, 0o755)
        source = shutil.copytree(SRC, Path(copy) / "src", ignore=shutil.ignore_patterns("__pycache__"))
        assert "user.max_user_namespaces is 0" in cause(before=before, source=source)


@pytest.mark.needs_root
@pytest.mark.parametrize("lost", ["setuid", "setgid", "sys_admin"])
def test_root_that_cannot_become_nobody_is_told_why(lost: str) -> None:
    done = captured(
        [
            *("setpriv", f"--bounding-set=-{lost}", sys.executable, "-c"),
            "from staddle.backends.bwrap import Bwrap; p = Bwrap().probe(); print(p.usable, p.why)",
        ],
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    assert done.stdout.startswith("False root lacks the capabilities CAP_" + lost.upper()), done
