"""The files of a sandbox from outside: its user's rights, its view, Python's errors."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import stat
import threading
import time
from pathlib import Path

import pytest

from staddle import AsyncSandbox, Sandbox
from staddle.errors import InvalidCall, PolicyError, SandboxClosed
from staddle.linux.process import parent_of
from tests.support.file_habitats import Place, opened, place
from tests.support.forkservers import children
from tests.support.waiting import run_together, until

__all__ = ["place"]


# ---------------------------------------------------------------- content


def test_what_is_written_is_read_inside_and_outside(place: Place) -> None:
    files = place.sandbox.files
    files.write("a.txt", "text, süß\n")
    assert files.read("a.txt") == "text, süß\n"
    assert place.sandbox.run("cat a.txt").stdout == "text, süß\n"
    place.sandbox.run("printf 'from inside' > b.txt; printf '\\377\\376' > raw")
    assert files.read("b.txt") == "from inside"
    assert files.read_bytes("raw") == b"\xff\xfe"
    files.write("raw", files.read("raw") + "x")
    assert files.read_bytes("raw") == b"\xff\xfex"
    files.write("empty", b"")
    assert files.read_bytes("empty") == b""
    for content in (bytearray(b"a"), memoryview(b"a"), b"a" * 100_000):
        files.write("any", content)
        assert files.read_bytes("any") == bytes(content)
    assert (place.workspace / "a.txt").exists() is (place.habitat != "namespaces")


def test_relative_paths_count_from_where_the_session_is(place: Place) -> None:
    place.sandbox.run("mkdir -p sub/deep; cd sub")
    place.sandbox.files.write("deep/a", "x")
    place.sandbox.files.write("../b", "y")
    assert place.sandbox.run("cat deep/a ../b").stdout == "xy"
    assert place.sandbox.files.glob("**") == ["deep", "deep/a"]
    assert [entry.name for entry in place.sandbox.files.list()] == ["deep"]


def test_a_write_is_whole_and_keeps_what_the_file_was(place: Place) -> None:
    files = place.sandbox.files
    place.sandbox.run("echo old > a; chmod 750 a; ln a other; ln -s a link; mkdir d; ln -s ../new d/dangling")
    files.write("link", "new")
    assert place.sandbox.run("cat a; cat other; readlink link").stdout == "newold\na\n"
    assert files.stat("a").mode == 0o750
    assert stat.S_IMODE(files.stat("link", follow_symlinks=False).mode) & 0o700
    files.write("d/dangling", "by a link to nothing yet")
    assert files.read("new") == "by a link to nothing yet"
    files.write("deep/er/x", "made", parents=True)
    assert files.read("deep/er/x") == "made"
    assert place.sandbox.run("ls -A . d deep/er").stdout.count("staddle") == 0


def test_all_else_that_is_done_to_files(place: Place) -> None:
    files = place.sandbox.files
    files.mkdir("d")
    files.mkdir("a/b/c", parents=True)
    files.mkdir("a/b/c", parents=True)
    files.write("d/f", "12345")
    place.sandbox.run("ln -s f d/l; mkfifo d/p; chmod 640 d/f")
    assert [(entry.name, entry.kind) for entry in files.list("d")] == [
        ("f", "file"),
        ("l", "symlink"),
        ("p", "other"),
    ]
    found = files.stat("d/l")
    assert (found.name, found.kind, found.size, found.mode) == ("l", "file", 5, 0o640)
    assert abs(found.modified - time.time()) < 60
    assert files.stat("/").is_dir
    assert files.exists("d/f")
    assert not files.exists("d/x")
    assert not files.exists("d/f/x")
    files.rename("d/f", "d/g")
    assert files.glob("d/*") == ["d/g", "d/l", "d/p"]
    assert not files.exists("d/l"), "it leads to nothing now"
    files.remove("d/l")
    files.remove("d", recursive=True)
    files.remove("a", recursive=True)
    assert files.list() == []


def test_globs(place: Place) -> None:
    files = place.sandbox.files
    for name in ("a.py", "b.txt", "x/c.py", "x/y/d.py", ".hidden.py"):
        files.write(name, "", parents=True)
    place.sandbox.run("ln -s . x/loop; ln -s a.py link.py")
    assert files.glob("*.py") == [".hidden.py", "a.py", "link.py"]
    assert files.glob("**/*.py") == [".hidden.py", "a.py", "link.py", "x/c.py", "x/y/d.py"]
    assert files.glob("x/**") == ["x", "x/c.py", "x/loop", "x/y", "x/y/d.py"]
    assert files.glob("nothing/*") == []
    assert "/etc/passwd" in files.glob("/etc/pass*")
    with pytest.raises(PolicyError):
        files.glob("a{b,c}")
    with pytest.raises(InvalidCall):
        files.glob(b"*")  # type: ignore[arg-type]


def test_the_whole_view_can_be_reached(place: Place) -> None:
    files = place.sandbox.files
    assert "root" in files.read("/etc/passwd")
    assert files.read("/proc/sys/kernel/ostype") == "Linux\n"
    if place.habitat != "native":
        for directory in ("/tmp", "/home/user"):
            files.write(f"{directory}/mine", "x")
            assert place.sandbox.run(f"cat {directory}/mine").stdout == "x"
            assert not Path(directory, "mine").exists()


def test_names_of_any_bytes(place: Place) -> None:
    files = place.sandbox.files
    names = [
        os.fsdecode(name) for name in (b"\xff\xfe", b"a\nb", b" ", b"-rf", b"'\"$(x)", b"\x1b[2J", b"x" * 255)
    ]
    for name in names:
        files.write(name, name)
    assert sorted(entry.name for entry in files.list()) == sorted(names)
    assert files.glob("*") == sorted(names)
    assert [files.read(os.fsencode(name)) for name in names] == names
    assert int(place.sandbox.run("ls -A | wc -c").stdout) > 0
    for name in names:
        files.remove(name)
    assert files.list() == []


@pytest.mark.same_for_everyone
def test_large_directories_are_listed(place: Place) -> None:
    place.sandbox.run("mkdir many; cd many; touch $(seq 1 3000); mkdir d{1..300}; cd ..")
    assert len(place.sandbox.files.list("many")) == 3300
    assert len(place.sandbox.files.glob("many/*")) == 3300
    place.sandbox.files.remove("many", recursive=True)
    assert place.sandbox.files.list() == []


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_tree_deeper_than_a_path_can_say_is_removed(place: Place) -> None:
    name = "d" * 100
    script = f"for i in $(seq 100); do mkdir {name}; cd {name} || break; done; cd /"
    assert place.sandbox.exec(["bash", "-c", script]).ok
    place.sandbox.files.remove(name, recursive=True)
    assert place.sandbox.files.list() == []


class _Made:
    """So many bytes, made as they are read."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.digest = hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        size = min(size, self.left)
        self.left -= size
        data = bytes([self.left >> 20 & 255]) * size
        self.digest.update(data)
        return data


@pytest.mark.slow
@pytest.mark.same_for_everyone
@pytest.mark.parametrize("habitat", ["namespaces", "bwrap"])
def test_a_large_file_never_is_in_memory(habitat: str, tmp_path: Path) -> None:
    with opened(habitat, tmp_path) as sandbox:
        source = _Made(100 << 20)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sandbox.files.write("large", source)
        assert sandbox.files.stat("large").size == 100 << 20
        digest = hashlib.sha256()
        with sandbox.files.open("large") as file:
            while data := file.read(1 << 20):
                digest.update(data)
        assert digest.digest() == source.digest.digest()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30 << 10  # KiB
        with pytest.raises(OSError, match="more than"):
            sandbox.files.read_bytes("large")
        sandbox.run("truncate -s 1T holes")
        with pytest.raises(OSError, match="more than"):
            sandbox.files.read("holes")
        sandbox.run("rm large holes")


# ---------------------------------------------------------------- errors


def test_errors_are_pythons_own_and_name_the_path(place: Place) -> None:
    files = place.sandbox.files
    files.mkdir("d")
    files.write("f", "x")
    files.write("d/f", "x")
    cases = [
        (FileNotFoundError, lambda: files.read("none")),
        (FileNotFoundError, lambda: files.write("none/x", "")),
        (FileNotFoundError, lambda: files.list("none")),
        (FileNotFoundError, lambda: files.stat("none")),
        (FileNotFoundError, lambda: files.remove("none")),
        (FileNotFoundError, lambda: files.rename("none", "x")),
        (FileNotFoundError, lambda: files.mkdir("none/x")),
        (FileNotFoundError, lambda: files.read("")),
        (IsADirectoryError, lambda: files.read("d")),
        (IsADirectoryError, lambda: files.write("d", "")),
        (IsADirectoryError, lambda: files.write("d/", "")),
        (IsADirectoryError, lambda: files.remove("d")),
        (NotADirectoryError, lambda: files.read("f/x")),
        (NotADirectoryError, lambda: files.write("f/x", "")),
        (NotADirectoryError, lambda: files.list("f")),
        (FileExistsError, lambda: files.mkdir("d")),
        (FileExistsError, lambda: files.mkdir("f", parents=True)),
        (FileExistsError, lambda: files.rename("f", "d/f")),
        (OSError, lambda: files.read("x" * 5000)),
        (OSError, lambda: files.read("x/" * 100_000)),
        (OSError, lambda: files.write("x/" * 100_000, "")),
    ]
    for kind, attempt in cases:
        with pytest.raises(kind) as raised:
            attempt()
        assert raised.value.filename is not None
    with pytest.raises(FileNotFoundError, match="'none'"):
        files.read("none")
    files.rename("f", "d/f", replace=True)
    assert not files.exists("f")
    for path in ("a\0b", "\ud800", 7, None):
        with pytest.raises(InvalidCall):
            files.read(path)  # type: ignore[arg-type]
    with pytest.raises(InvalidCall):
        files.write("x", 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidCall):
        files.write("x", "\ud800")
    assert not files.exists("x")


def test_permissions_are_those_of_the_sandboxs_user(place: Place) -> None:
    files = place.sandbox.files
    place.sandbox.run(
        "echo x > f; chmod 000 f; mkdir d; echo y > d/y; echo old > r; chmod 444 r; chmod 555 d"
    )
    if place.is_root:
        assert files.read("f") == "x\n"
        return
    for attempt in (
        lambda: files.read("f"),
        lambda: files.write("f", ""),
        lambda: files.write("r", ""),
        lambda: files.write("d/new", ""),
        lambda: files.remove("d/y"),
        lambda: files.write("/etc/mine", ""),
    ):
        with pytest.raises(OSError, match=r"Permission denied|Read-only"):
            attempt()
    with pytest.raises(PermissionError):
        files.read("f")
    files.write("d/y", "in place, as its directory cannot be written")
    assert files.read("d/y").startswith("in place")
    assert files.read("r") == "old\n"
    place.sandbox.run("chmod 700 d")


def test_pipes_sockets_and_devices_are_refused_and_nobody_waits(place: Place) -> None:
    files = place.sandbox.files
    place.sandbox.run("mkfifo p; ln -s p l")
    for path in ("p", "l", "/dev/zero", "/dev/null", "/dev/tty"):
        with pytest.raises(OSError):  # noqa: PT011 - which one depends on the path
            files.read(path)
        with pytest.raises(OSError):  # noqa: PT011
            files.write(path, "x")
    assert files.stat("p").kind == "other"


def test_links_lead_where_they_lead_inside(place: Place) -> None:
    secret = place.workspace.parent / "outside" / "secret"
    secret.write_text("of the host")
    place.sandbox.run(f"ln -s '{secret}' l; ln -s '{secret.parent}' d; ln -s loop loop; ln -s /etc/passwd p")
    files = place.sandbox.files
    assert "root" in files.read("p")
    with pytest.raises(OSError, match="symbolic links"):
        files.read("loop")
    if place.habitat == "native":  # the control: unconfined it would be found
        assert files.read("l") == "of the host"
        return
    for attempt in (
        lambda: files.read("l"),
        lambda: files.read("d/secret"),
        lambda: files.write("l", "taken"),
        lambda: files.write("d/new", "taken"),
        lambda: files.read(str(secret)),
    ):
        with pytest.raises(FileNotFoundError):
            attempt()
    assert secret.read_text() == "of the host"
    assert os.listdir(secret.parent) == ["secret"]


def test_nothing_of_the_process_that_does_it_is_shown(place: Place) -> None:
    files = place.sandbox.files
    for name in ("environ", "maps", "mem", "cmdline", "auxv"):
        with pytest.raises(PermissionError):
            files.read(f"/proc/self/{name}")
        with pytest.raises(PermissionError):
            files.read(f"/proc/thread-self/{name}")
    if place.habitat.startswith("namespaces"):
        with pytest.raises(OSError):  # noqa: PT011 - hidden, or refused
            files.read("/proc/1/environ")
    place.sandbox.run("ln -s /proc/self/fd/3 l")
    for path in ("/proc/self/fd/0", "/proc/self/fd/3", "l"):
        with pytest.raises(OSError):  # noqa: PT011 - it is a device, or there is no file of that name
            files.read(path)


# ---------------------------------------------------------------- whoever does it


def test_it_is_confined_exactly_as_a_command(tmp_path: Path) -> None:
    with opened("namespaces", tmp_path) as sandbox:
        sandbox.files.write("a", "x")
        file_client = sandbox._inside.file_client._process
        assert file_client is not None
        command = sandbox.start("exec sleep 60")
        # Spares of the fork server have the same numbers in namespaces of their own.
        agent = parent_of(sandbox._inside.first_shell.host_pid)
        found = {_inner(pid): pid for pid in children(agent)}
        assert until(lambda: _status(found[command.pid], "Name") == ["sleep"])
        one, other = found[file_client.pid], found[command.pid]
        for name in (
            "Uid",
            "Gid",
            "Groups",
            "CapInh",
            "CapPrm",
            "CapEff",
            "CapBnd",
            "CapAmb",
            "NoNewPrivs",
            "Seccomp",
        ):
            assert _status(one, name) == _status(other, name), name
        assert _status(one, "NoNewPrivs") == ["1"]
        assert _status(one, "Seccomp") == ["2"]
        if os.geteuid() == 0:
            for name in ("user", "mnt", "pid", "net", "ipc", "uts"):
                assert os.readlink(f"/proc/{one}/ns/{name}") == os.readlink(f"/proc/{other}/ns/{name}")
            held = sorted(os.readlink(f"/proc/{one}/fd/{fd}") for fd in os.listdir(f"/proc/{one}/fd"))
            assert held[:3] == ["/dev/null"] * 3
            assert [name.partition(":")[0] for name in held[3:]] == ["socket"]
        # Nothing inside can look into it, though it is of the same user.
        assert sandbox.run(f"cat /proc/{file_client.pid}/maps").exit_code != 0


def _status(pid: int, name: str) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{name}:")).split()[1:]


def _inner(pid: int) -> int:
    try:
        return int(_status(pid, "NSpid")[-1])
    except OSError:
        return -1


def test_when_something_inside_kills_it_there_is_another(place: Place) -> None:
    if not place.habitat.startswith("namespaces"):
        return  # there it takes the agent along, and on native more than the sandbox
    files = place.sandbox.files
    files.write("a", "x")
    for _ in range(2):
        place.sandbox.exec(["bash", "-c", "kill -9 -1"])
        assert files.read("a") == "x"
    assert place.sandbox.run("cat a").stdout == "x"


def test_when_something_inside_stops_it_it_goes_on(tmp_path: Path) -> None:
    with opened("namespaces", tmp_path) as sandbox:
        sandbox.files.write("/workspace/a", "x")
        sandbox.exec(["bash", "-c", "kill -STOP -1"])
        assert sandbox.files.read("/workspace/a") == "x"


def test_a_program_that_dies_while_it_writes_leaves_nothing(place: Place) -> None:
    files = place.sandbox.files
    files.write("a", "old")

    class Dying:
        def read(self, size: int, /) -> bytes:
            if self.said:
                raise ZeroDivisionError
            self.said = True
            return b"new" * 10_000

        said = False

    with pytest.raises(ZeroDivisionError):
        files.write("a", Dying())
    assert files.read("a") == "old"
    assert [entry.name for entry in files.list()] == ["a"]


def test_files_do_not_wait_for_commands(place: Place) -> None:
    place.sandbox.run("cd .")
    stop = place.sandbox.start("sleep 30")
    thread = threading.Thread(target=place.sandbox.run, args=("until [ -e stop ]; do sleep .02; done",))
    thread.start()
    try:
        time.sleep(0.2)
        place.sandbox.files.write("stop", "")
        thread.join(60)
        assert not thread.is_alive()
    finally:
        place.sandbox.interrupt()
        stop.kill()
        thread.join(60)


@pytest.mark.same_for_everyone
def test_many_threads(place: Place) -> None:
    files = place.sandbox.files

    def work(number: int) -> None:
        for step in range(20):
            files.write(f"f{number}", f"{number} {step}" * 9000)
            assert files.read(f"f{number}") == f"{number} {step}" * 9000

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    run_together(threads)
    assert [files.read(f"f{number}") for number in range(4)] == [f"{number} 19" * 9000 for number in range(4)]


@pytest.mark.slow
def test_a_directory_that_is_swapped_meanwhile_leads_nowhere_else(place: Place) -> None:
    outside = place.workspace.parent / "outside"
    (outside / "x").write_text("untouched")
    target = "/elsewhere" if place.habitat == "native" else str(outside)
    place.sandbox.run("mkdir d")
    swapping = place.sandbox.start(
        f"while [ ! -e stop ]; do mv -T d e; ln -s '{target}' d; rm d; mv -T e d; done"
    )
    done = 0
    for number in range(300):
        try:
            place.sandbox.files.write("d/x", f"{number}" * (1 if number % 3 else 20_000))
            done += 1
        except OSError:
            continue
    place.sandbox.files.write("stop", "")
    assert swapping.wait(60) is not None
    assert done > 0
    assert (outside / "x").read_text() == "untouched"
    assert os.listdir(outside) == ["x"]
    left = place.sandbox.run("ls -A . d/ e/ 2>/dev/null").stdout
    assert "staddle" not in left


# ---------------------------------------------------------------- with everything else


def test_a_snapshot_is_as_quick_as_without(tmp_path: Path) -> None:
    with opened("namespaces", tmp_path) as sandbox:
        sandbox.files.write("a", "1")
        snapshot = sandbox.snapshot()
        assert snapshot.method == "swap"
        sandbox.files.write("a", "2")
        assert [change.path for change in sandbox.diff()] == ["/workspace/a"]
        sandbox.restore(snapshot)
        assert sandbox.files.read("a") == "1"
        (fork,) = sandbox.fork()
        with fork:
            assert fork.files.read("a") == "1"
            fork.files.write("a", "3")
        sandbox.reset()
        assert sandbox.files.list() == []


def test_a_closed_sandbox_has_no_files(place: Place) -> None:
    files = place.sandbox.files
    files.write("a", "x")
    open_file = files.open("a")
    place.sandbox.close()
    for attempt in (lambda: files.read("a"), lambda: files.write("b", ""), files.list):
        with pytest.raises(SandboxClosed):
            attempt()
    assert open_file.read() == b"x"
    open_file.close()


def test_closing_ends_a_write_that_is_under_way(tmp_path: Path) -> None:
    sandbox = opened("namespaces", tmp_path)
    begun = threading.Event()

    class Endless:
        def read(self, size: int, /) -> bytes:
            begun.set()
            time.sleep(0.001)
            return b"x" * size

    failures: list[BaseException] = []

    def write() -> None:
        try:
            sandbox.files.write("a", Endless())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    begun.wait(60)
    sandbox.close()
    thread.join(60)
    assert [type(error) for error in failures] == [SandboxClosed]


def test_nothing_is_left_when_it_is_closed(tmp_path: Path) -> None:
    with opened("bwrap", tmp_path) as warm:
        warm.files.list()
    before, descriptors = children(), len(os.listdir("/proc/self/fd"))
    for habitat in ("bwrap", "native"):
        with opened(habitat, tmp_path) as sandbox:
            sandbox.files.write("a", "x")
    assert until(lambda: not children() - before)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_the_same_awaited(tmp_path: Path) -> None:
    async def session() -> None:
        async with AsyncSandbox(tmp_path) as sandbox:
            await sandbox.files.write("d/a", "x", parents=True)
            assert await sandbox.files.read("d/a") == "x"
            assert await sandbox.files.read_bytes("d/a") == b"x"
            assert [entry.name for entry in await sandbox.files.list()] == ["d"]
            assert await sandbox.files.glob("**/a") == ["d/a"]
            assert (await sandbox.files.stat("d/a")).size == 1
            await sandbox.files.mkdir("e")
            await sandbox.files.rename("d/a", "e/b")
            assert not await sandbox.files.exists("d/a")
            with await sandbox.files.open("e/b") as file:
                assert file.read() == b"x"
            await sandbox.files.remove("e", recursive=True)
            with pytest.raises(FileNotFoundError):
                await sandbox.files.read("e/b")

    asyncio.run(session())


def test_a_file_that_is_mounted_by_itself_is_written_in_place(tmp_path: Path) -> None:
    from staddle import Policy

    shared = tmp_path / "shared"
    shared.write_text("old and longer")
    with Sandbox(policy=Policy.agent().with_write(shared), backend="bwrap") as sandbox:
        sandbox.files.write(shared, "new")
        assert sandbox.files.read(shared) == "new"
    assert shared.read_text() == "new"
    assert os.listdir(tmp_path) == ["shared"]
