"""An agent's tools on a real kernel: confined commands, exact endings, and forgers who get nothing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from staddle import LocalEnvironment, Policy, backends
from staddle.environment import (
    open_for_write,
    probe_landlock,
    run_jail_exec,
    safe_mkdir_all,
    safe_remove,
    wrap_bash_command,
    writable_paths,
)
from staddle.errors import (
    BackendUnavailable,
    LandlockUnavailable,
    PathEscape,
    PathNotAllowed,
    PolicyError,
    UnknownBackend,
)
from staddle.linux import landlock, openat2

confined = pytest.mark.parametrize("backend", ["bwrap", "landlock"])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    made = tmp_path / "work"
    made.mkdir()
    return made


@confined
def test_commands_write_what_the_globs_name_and_nothing_else(place: Path, backend: str) -> None:
    (place / "out.md").write_text("old")
    (place / "src.py").write_text("mine")
    env = LocalEnvironment(place, ["out.md", "docs/**"], backend=backend)
    script = """
        echo new > out.md && echo a > docs/a && mkdir docs/b && echo b > docs/b/c || exit 9
        echo quiet > /dev/null && mktemp > /dev/null && echo x > "${TMPDIR:-/tmp}/x" || exit 8
        echo no > src.py; echo no > other; echo no > ../outside/x; ln -s ../outside docs/l; echo no > docs/l/x
        rm -f src.py; cat src.py
    """
    result = env.exec_command("sh", ["-c", script])
    assert (result.exit_code, result.stdout) == (0, "mine"), result
    assert (place / "out.md").read_text() == "new\n"
    assert (place / "docs/b/c").read_text() == "b\n"
    assert (place / "src.py").read_text() == "mine"
    assert not (place / "other").exists()
    assert list((place.parent / "outside").iterdir()) == []
    assert env.limits() == ()
    # The control: unconfined, the same attempts get through.
    control = LocalEnvironment(place, ["out.md", "docs/**"], backend="native")
    control.exec_command("sh", ["-c", "echo no > other; echo no > ../outside/x"])
    assert (place / "other").exists()
    assert (place.parent / "outside/x").exists()


@pytest.mark.parametrize("backend", [*backends.NAMES, "auto"])
def test_an_empty_command_is_refused_alike_on_every_backend(place: Path, backend: str) -> None:
    if backend == "seatbelt":
        return  # macOS
    with pytest.raises(PolicyError, match="the command is empty"):
        LocalEnvironment(place, backend=backend).exec_command("")


@confined
def test_where_commands_may_write_more_it_is_said(place: Path, backend: str) -> None:
    env = LocalEnvironment(place, ["a/new.md"], backend=backend)
    assert "write" not in env.enforced.held
    assert os.listdir(place) == [], "asking changes nothing"
    assert env.exec_command("sh", ["-c", "echo > a/new.md; echo > a/other; echo > b"]).exit_code != 0
    assert sorted(os.listdir(place)) == ["a"]
    assert sorted(os.listdir(place / "a")) == ["new.md", "other"]
    env = LocalEnvironment(place, ["a/newer.md"], backend=backend)
    assert "write" not in env.enforced.held
    assert any("'a'" in gap.why for gap in env.enforced.gaps)
    assert env.enforced.backend == backend


@confined
def test_without_globs_the_whole_directory_and_no_more(place: Path, backend: str) -> None:
    env = LocalEnvironment(place, backend=backend)
    result = env.exec_command("sh", ["-c", "echo a > a; echo b > ../outside/b"])
    assert result.exit_code != 0
    assert (place / "a").exists()
    assert list((place.parent / "outside").iterdir()) == []


@confined
def test_the_hook_changes_the_command_and_not_its_confinement(place: Path, backend: str) -> None:
    env = LocalEnvironment(
        place,
        ["docs/**"],
        backend=backend,
        command_wrapper=lambda argv: ["sh", "-c", 'echo "$@"; echo > x', *argv],
    )
    result = env.exec_command("ls", ["-l"])
    assert result.stdout == "-l\n"
    assert result.exit_code != 0
    assert not (place / "x").exists()


@confined
def test_a_protected_name_that_appears_is_in_the_result(place: Path, backend: str) -> None:
    result = LocalEnvironment(place, backend=backend).exec_command("sh", ["-c", "echo x > .bashrc"])
    assert [os.path.basename(event.what) for event in result.violations] == [".bashrc"]


def test_without_a_backend_nothing_runs_unless_that_was_chosen(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "candidates", lambda: ())
    with pytest.raises(BackendUnavailable):
        LocalEnvironment(place).exec_command("touch", ["x"])
    assert os.listdir(place) == []
    recorded = LocalEnvironment(place, on_unavailable="record")
    assert recorded.enforced.backend == "native"
    assert recorded.enforced.held == ()
    assert recorded.exec_command("touch", ["x"]).exit_code == 0


def test_landlock_is_asked_for_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    probe_landlock()
    for abi in (0, 2):
        monkeypatch.setattr(landlock, "abi", lambda abi=abi: abi)
        with pytest.raises(LandlockUnavailable):
            probe_landlock()


@pytest.mark.same_for_everyone
@pytest.mark.parametrize(
    "name", ["with space", "line\nend", "\udcff\udcfe", "-rf", "--", "$HOME", "a:b,c=d\\"]
)
@confined
def test_any_name_of_a_directory_works(place: Path, backend: str, name: str) -> None:
    odd = place / name
    odd.mkdir()
    env = LocalEnvironment(odd, ["docs/**"], backend=backend)
    env.write_file("docs/a", "x")
    assert env.exec_command("sh", ["-c", "cat docs/a; echo y > docs/b; pwd > docs/c"]).stdout == "x"
    assert env.read_file("docs/b") == "y\n"
    assert env.read_file("docs/c") == os.fsencode(odd).decode("utf-8", "surrogateescape") + "\n"
    done = subprocess.run(
        wrap_bash_command(["sh", "-c", "echo z > docs/d"], odd, ["docs/**"]), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert env.read_file("docs/d") == "z\n"


def test_a_link_to_the_directory_is_followed_once(place: Path) -> None:
    link = place.parent / "link"
    link.symlink_to(place)
    env = LocalEnvironment(link)
    assert env.working_dir == str(place)
    link.unlink()
    link.symlink_to(place.parent / "outside")
    env.write_file("a", "x")
    assert env.exec_command("cat", ["a"]).stdout == "x"
    assert list((place.parent / "outside").iterdir()) == []


def test_a_deleted_directory_is_an_error(place: Path) -> None:
    env = LocalEnvironment(place)
    place.rmdir()
    with pytest.raises(FileNotFoundError):
        env.write_file("a", "x")
    with pytest.raises(FileNotFoundError):
        env.write_file("a/b", "x")
    with pytest.raises(PathEscape):
        env.exec_command("true")


@pytest.mark.parametrize("by", ["directory", "link"])
def test_a_replaced_directory_gets_nothing(place: Path, by: str) -> None:
    env = LocalEnvironment(place)
    place.rename(place.parent / "moved")
    if by == "directory":
        place.mkdir()
    else:
        place.symlink_to(place.parent / "outside")
    env.write_file("a", "x")
    assert (place.parent / "moved/a").read_text() == "x"
    with pytest.raises(PathEscape):
        env.exec_command("touch", ["b"])
    assert os.listdir(place) == []


@confined
def test_a_link_planted_where_commands_may_write_is_refused(
    place: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = LocalEnvironment(place, ["docs/**"], backend=backend)
    (place / "docs").symlink_to(place.parent / "outside")
    with pytest.raises(PathEscape):
        env.exec_command("touch", ["docs/x"])
    (place / "docs").unlink()
    env.exec_command("true", [])  # what is made once is there
    real = writable_paths.grants

    def late(*args: object, make: bool) -> list[str]:
        found = real(*args, make=make)  # type: ignore[arg-type]
        (place / "docs").rmdir()
        (place / "docs").symlink_to(place.parent / "outside")
        return found

    monkeypatch.setattr(writable_paths, "grants", late)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(PathEscape):
        env.exec_command("touch", ["docs/x"])
    assert len(os.listdir("/proc/self/fd")) <= before
    assert list((place.parent / "outside").iterdir()) == []


def test_missing_permission_is_an_ordinary_permission_error(place: Path) -> None:
    (place / "closed").mkdir()
    (place / "file").write_text("old")
    env = LocalEnvironment(place)
    (place / "file").chmod(0o444)
    (place / "closed").chmod(0o555)
    if os.geteuid() == 0:
        env.write_file("closed/a", "root may")
        env.write_file("file", "root may")
        return
    for path in ("closed/a", "file", "closed/b/c"):
        with pytest.raises(PermissionError):
            env.write_file(path, "x")
    assert (place / "file").read_text() == "old"


def test_the_jail_program_says_why_it_did_not_start(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for bad in (
        [],
        ["--"],
        ["--", str(place), "**"],
        ["--", str(place), "**", "--"],
        ["--", str(place), "--", "true"],
    ):
        assert run_jail_exec(bad) == 2
    assert run_jail_exec(["--", str(place), "../x", "--", "true"]) == 2
    assert run_jail_exec(["--", str(place), "**", "--", "no-such-program"]) == 4
    (place / "docs").symlink_to("/etc")
    assert run_jail_exec(["--", str(place), "docs/**", "--", "true"]) == 3
    assert capfd.readouterr().err.count("staddle: ") == 8


def test_a_wrapped_command_is_bounded_with_its_children_and_separators_survive(place: Path) -> None:
    argv = wrap_bash_command(
        [
            "sh",
            "-c",
            'echo "$@"; echo a > docs/a; sh -c "echo b > b"; echo c > ../outside/c; exit 7',
            "sh",
            "--",
            "x",
        ],
        place,
        ["docs/**", "--"],
    )
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    # "--" is a file that is not there, so its directory is open to commands: `b` is made, `c` is not.
    assert (done.returncode, done.stdout) == (7, "-- x\n"), done.stderr
    assert sorted(os.listdir(place)) == ["b", "docs"]
    assert list((place.parent / "outside").iterdir()) == []
    with pytest.raises(PolicyError):
        wrap_bash_command("sh -c x", place, ["**"])
    with pytest.raises(PathEscape):
        wrap_bash_command(["true"], place, ["/etc/**"])


@pytest.mark.slow
def test_a_wrapped_command_has_the_variables_and_the_directory_that_it_is_started_with(place: Path) -> None:
    (place / "docs/deep").mkdir(parents=True, exist_ok=True)
    script = "pwd; echo $FLAVOUR $NAME; echo $HOME; echo x > made"
    argv = wrap_bash_command(["sh", "-c", script], place, ["docs/**"])
    env = {"FLAVOUR": "a b", "NAME": "c", "PATH": "/usr/bin:/bin", "HOME": "/root"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env, cwd=place / "docs/deep")
    where, said, home = done.stdout.splitlines()
    assert (done.returncode, where, said) == (0, f"{place}/docs/deep", "a b c"), done
    assert home != "/root", "the home is the sandbox's own"
    assert (place / "docs/deep/made").read_text() == "x\n"
    hidden = place.parent / "outside"
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env, cwd=hidden)
    assert done.stdout.splitlines()[0] == str(place), "one that is hidden cannot be worked in"
    assert list(hidden.iterdir()) == []
    seen = wrap_bash_command(["pwd"], place, ["docs/**"])
    assert subprocess.run(seen, capture_output=True, check=False, cwd="/usr/lib").stdout == b"/usr/lib\n"
    assert subprocess.run(seen, capture_output=True, check=False, cwd="/").stdout == b"/\n"


@pytest.mark.slow
def test_a_wrapped_command_that_is_started_in_a_temporary_directory_works_in_its_own() -> None:
    """The sandbox's /tmp is private: what the host has in it is not there, but for what is granted."""
    with tempfile.TemporaryDirectory(dir="/tmp") as outside:
        inside = Path(outside, "project")
        (inside / "docs").mkdir(parents=True)
        argv = wrap_bash_command(["pwd"], inside, ["docs/**"])
        for cwd, where in ((outside, inside), (inside / "docs", inside / "docs")):
            done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=cwd)
            assert (done.returncode, done.stdout) == (0, f"{where}\n"), done


def test_without_openat2_the_jail_program_could_not_confine(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    assert run_jail_exec(["--", str(place / "missing"), "**", "--", "true"]) == 2
    monkeypatch.setattr(openat2, "_openat2", refused)
    assert run_jail_exec(["--", str(place), "**", "--", "true"]) == 3
    assert "openat2" in capfd.readouterr().err
    with pytest.raises(LandlockUnavailable, match="openat2"):
        probe_landlock()
    assert run_jail_exec(["--", str(place), "/etc/**", "--", "true"]) == 2


@pytest.mark.parametrize("globs", [None, ["docs/**"], ["docs/*.md"]])
def test_limits_say_that_nothing_confines_commands(
    place: Path, globs: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalEnvironment(place, globs, backend="native") as env:
        assert [gap.protection for gap in env.limits()] == ["write"]
        assert "whatever this user may" in env.limits()[0].why
        assert env.limits()[0] in env.enforced.gaps
        env.exec_command("sh", ["-c", "echo x > anywhere"])
        assert (place / "anywhere").exists(), "it is so"
    monkeypatch.setattr(backends, "candidates", tuple)  # as where none can be had
    with LocalEnvironment(place, globs, on_unavailable="record") as env:
        assert env.enforced.backend == "native"
        assert "whatever this user may" in env.limits()[0].why
    with LocalEnvironment(place, globs) as env, pytest.raises(BackendUnavailable):
        env.exec_command("true")


def test_an_unknown_backend_is_an_error_at_once(place: Path) -> None:
    with pytest.raises(UnknownBackend):
        LocalEnvironment(place, backend="chroot")


#: Swaps its directory and a link to the outside, as fast as it can. Nobody else touches `aside`.
FORGER = """
import os, shutil, sys
work, name, outside, stop = sys.argv[1:]
os.chdir(work)
aside, swaps = f"{name}.aside", 0
while not os.path.exists(stop):
    try:
        os.rename(name, aside)
        os.symlink(outside, name)
        swaps += 1
        os.unlink(name)
        os.rename(aside, name)
    except OSError:
        # The tools made the directory anew meanwhile: clear theirs away, and put ours back.
        while os.path.isdir(aside):
            shutil.rmtree(name, ignore_errors=True)
            try:
                os.rename(aside, name)
            except OSError:
                pass
print(swaps)
"""


@pytest.mark.slow
def test_forgers_who_swap_directories_and_links_get_nothing(place: Path) -> None:
    outside, stop = place.parent / "outside", place.parent / "stop"
    (outside / "sub").mkdir()
    for name in ("victim", "sub/victim"):
        (outside / name).write_text("untouched")
    before = sorted(str(path) for path in outside.rglob("*"))
    env = LocalEnvironment(place, ["d0/**", "d1/**"])
    forgers = []
    for name in ("d0", "d1"):
        (place / name / "sub").mkdir(parents=True)
        command = [sys.executable, "-I", "-S", "-c", FORGER, place, name, outside, stop]
        forgers.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        (place / f"to-{name}").symlink_to(name)
    attempts = [
        lambda d: env.write_file(f"{d}/sub/victim", "ours"),
        lambda d: env.write_file(f"{d}/victim", "ours"),
        lambda d: _is_ours(env.read_file(f"{d}/victim")),
        lambda d: _is_ours(env.read_file(f"to-{d}/victim")),
        lambda d: env.remove_file(f"{d}/victim"),
        lambda d: safe_mkdir_all(place, f"{d}/sub/deep/er"),
        lambda d: _written(place, f"{d}/new/x"),
        lambda d: safe_remove(place, f"{d}/sub/victim"),
        lambda d: env.glob(f"{d}/**/victim"),
    ]
    done = refused = rounds = 0
    until = time.monotonic() + 4
    try:
        while time.monotonic() < until:
            rounds += 1
            for attempt in attempts:
                try:
                    attempt(f"d{rounds % 2}")
                    done += 1
                except (PathEscape, PathNotAllowed):
                    refused += 1
                except OSError:
                    pass
    finally:
        stop.touch()
        swaps = [int(forger.communicate()[0]) for forger in forgers]
    assert sorted(str(path) for path in outside.rglob("*")) == before
    for name in ("victim", "sub/victim"):
        assert (outside / name).read_text() == "untouched"
    assert done > 0, "nothing got through: the race was not run"
    assert all(swaps), "no link was ever planted"
    assert refused > 0, "no link was ever met"


def _is_ours(text: str) -> None:
    assert text == "ours"


def _written(place: Path, path: str) -> None:
    with open_for_write(place, path) as file:
        file.write(b"ours")


@confined
def test_commands_and_file_tools_agree_about_a_policy(place: Path, backend: str) -> None:
    (place / "keys").mkdir()
    (place / "keys/a").write_text("secret")
    env = LocalEnvironment(place, policy=Policy.agent().with_deny(place / "keys"), backend=backend)
    if backend == "landlock" and any(not gap.documented for gap in _gaps(env)):
        return  # said, and refused, by the backend itself
    result = env.exec_command("cat", ["keys/a"])
    assert "secret" not in result.stdout
    with pytest.raises(FileNotFoundError):
        env.read_file("keys/a")


def _gaps(env: LocalEnvironment) -> tuple[object, ...]:
    try:
        return env.enforced.gaps
    except Exception as refusal:
        return getattr(refusal, "gaps", ())
