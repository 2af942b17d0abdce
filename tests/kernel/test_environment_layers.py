"""Commands held to globs exactly: what they leave on the host is what a glob names, and the rest is told."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from staddle import LocalEnvironment, Policy
from staddle.environment import commands
from staddle.environment.command_layer import MOST_TOLD, CommandLayer
from staddle.errors import CommandCancelled, CommandTimeout, LaunchFailed
from staddle.events import Event
from staddle.launch import running
from staddle.layers import trash
from staddle.policy.plan import Plan
from tests.support.in_a_child import python
from tests.support.waiting import JumpingClock, as_soon_as, until

#: Says that it has come so far, and waits to be let go; `sync` is written directly.
MEET = "touch sync/ready; while [ ! -e sync/go ]; do sleep 0.02; done"


@pytest.fixture(scope="module", autouse=True)
def once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is opened once in the life of a process."""
    for _ in range(2):  # after the first one alone, spares are made later
        with LocalEnvironment(tmp_path_factory.mktemp("once"), ["a"]) as env:
            env.exec_command("true")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "outside").mkdir()
    made = tmp_path / "work"
    (made / "sync").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    yield made
    trash.wait()  # what is removed in the background
    assert len(os.listdir("/proc/self/fd")) <= before, "a descriptor was left open"


@pytest.fixture(autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the layers of a test are: it can look whether any is left."""
    home = tmp_path_factory.mktemp("layers")
    monkeypatch.setenv("STADDLE_LAYERS", str(home))
    return home


def seen(place: Path) -> dict[str, str]:
    """Every file below, by its path; a link by where it leads, a directory with a slash."""
    return {
        str(path.relative_to(place)) + ("/" if path.is_dir() and not path.is_symlink() else ""): (
            os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else ""
        )
        for path in place.rglob("*")
    }


def told(events: tuple[Event, ...], place: Path) -> set[str]:
    return {os.path.relpath(event.what, place) for event in events}


def shell(env: LocalEnvironment, script: str) -> tuple[Event, ...]:
    result = env.exec_command("sh", ["-ec", script])
    assert result.exit_code == 0, result
    return result.violations


def test_what_is_left_is_what_the_globs_name(place: Path, store: Path) -> None:
    (place / "old.md").write_text("old")
    (place / "gone.md").write_text("old")
    (place / "src.py").write_text("mine")
    (place / "docs").mkdir()
    with LocalEnvironment(place, ["out.txt", "*.md", "docs/**", "new/**/*.md", "sync/**"]) as env:
        assert env.limits() == ()
        assert env.enforced.backend == "namespaces"
        assert "write" in env.enforced.held
        events = shell(
            env,
            """
            echo 1 > out.txt; echo 2 > fresh.md; sed -i s/old/changed/ old.md; rm gone.md; echo 3 > docs/c
            mkdir -p new/deep/er junk; echo 4 > new/deep/er/x.md; echo no > new/deep/er/x.txt
            echo no > junk/x; echo no > other; echo no > src.py; mv other other2; cat src.py
            echo x > /tmp/x; echo x > /dev/null
            """,
        )
        assert told(events, place) == {"new/deep/er/x.txt", "junk", "junk/x", "other2", "src.py"}
        assert all(event.kind == "violation" and "left out" in event.rule for event in events)
    assert seen(place) == {
        "out.txt": "1\n",
        "fresh.md": "2\n",
        "old.md": "changed",
        "src.py": "mine",
        "docs/": "",
        "docs/c": "3\n",
        "new/": "",
        "new/deep/": "",
        "new/deep/er/": "",
        "new/deep/er/x.md": "4\n",
        "sync/": "",
    }
    assert (place / "out.txt").stat().st_uid == place.stat().st_uid
    assert until(lambda: os.listdir(store) == []), "a layer is left"


def test_a_command_that_changes_nothing_leaves_nothing_and_tells_nothing(place: Path) -> None:
    (place / "a.md").write_text("a")
    before = {path: path.stat() for path in (place, place / "a.md")}
    with LocalEnvironment(place, ["*.md"]) as env:
        assert shell(env, "cat a.md; echo x > tmp; rm tmp; cp a.md b; rm b") == ()
    assert {path: path.stat().st_mtime_ns for path in before} == {
        path: status.st_mtime_ns for path, status in before.items()
    }


def test_what_may_go_goes_and_what_may_not_stays(place: Path) -> None:
    for name in ("src/a.md", "src/b.py", "all/a.md", "type/a.md"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text("x")
    (place / "file").write_text("x")
    with LocalEnvironment(place, ["*/*.md", "type"]) as env:
        events = shell(env, "rm -r src all type file; echo x > type; mkdir file; echo x > file/b.md")
        assert told(events, place) == {"src", "src/b.py", "all", "file", "file/b.md"}
    assert seen(place) == {
        "src/": "",
        "src/b.py": "x",
        "all/": "",
        "file": "x",
        "sync/": "",
        "type": "x\n",
    }


@pytest.mark.parametrize("ignored", ["", "trap '' TERM;"], ids=["", "and does not want to end"])
def test_what_was_written_until_a_timeout_is_taken_over(
    place: Path, ignored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "GRACE", 1.0)
    monkeypatch.setattr(running, "time", JumpingClock((place / "sync/ready").exists))
    with LocalEnvironment(place, ["*.md", "sync/**"]) as env, pytest.raises(CommandTimeout) as ended:
        env.exec_command("sh", ["-c", f"{ignored} echo a > a.md; echo no > b; {MEET}"], 60)
    assert ended.value.result is not None
    assert told(ended.value.result.violations, place) == {"b"}
    assert seen(place)["a.md"] == "a\n"
    assert not (place / "b").exists()


def test_what_was_written_until_a_cancellation_is_taken_over(place: Path) -> None:
    cancel = threading.Event()
    as_soon_as((place / "sync/ready").exists, cancel.set)
    with LocalEnvironment(place, ["*.md", "sync/**"]) as env, pytest.raises(CommandCancelled) as ended:
        env.exec_command("sh", ["-c", f"echo a > a.md; echo no > b; {MEET}"], cancel=cancel)
    assert ended.value.result is not None
    assert told(ended.value.result.violations, place) == {"b"}
    assert sorted(seen(place)) == ["a.md", "sync/", "sync/ready"]


def test_an_interrupted_caller_finds_what_was_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        assert until((place / "sync/ready").exists)
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "see_through", interrupted)
    with LocalEnvironment(place, ["*.md", "sync/**"]) as env, pytest.raises(KeyboardInterrupt):
        env.exec_command("sh", ["-c", f"echo a > a.md; {MEET}"])
    assert seen(place)["a.md"] == "a\n"


def test_what_the_host_changed_meanwhile_stays_and_is_told(place: Path) -> None:
    (place / "both.md").write_text("old")

    def host() -> None:
        assert until((place / "sync/ready").exists)
        (place / "both.md").write_text("host")
        (place / "made.md").write_text("host")
        (place / "sync/go").touch()

    with LocalEnvironment(place, ["*.md", "sync/**"]) as env, ThreadPoolExecutor(1) as pool:
        done = pool.submit(host)
        events = shell(env, f"echo c > both.md; echo c > made.md; echo c > mine.md; {MEET}")
        done.result()
    assert told(events, place) == {"both.md", "made.md"}
    assert all("since then" in event.rule for event in events)
    found = seen(place)
    assert (found["both.md"], found["made.md"], found["mine.md"]) == ("host", "host", "c\n")


@pytest.mark.parametrize("by", ["directory", "link"])
def test_a_directory_that_was_replaced_meanwhile_gets_nothing(place: Path, by: str) -> None:
    moved, outside = place.parent / "moved", place.parent / "outside"

    def host() -> None:
        assert until((place / "sync/ready").exists)
        place.rename(moved)
        if by == "link":
            place.symlink_to(outside)
        else:
            place.mkdir()
        (moved / "sync/go").touch()

    with LocalEnvironment(place, ["*.md", "sync/**"]) as env, ThreadPoolExecutor(1) as pool:
        done = pool.submit(host)
        shell(env, f"echo c > a.md; {MEET}")
        done.result()
    assert os.listdir(place) == []
    assert os.listdir(outside) == []
    assert (moved / "a.md").read_text() == "c\n"


def test_protected_names_need_to_be_named_in_full_or_opened(place: Path) -> None:
    script = "echo x > .bashrc; mkdir -p sub/.git/hooks; echo x > sub/.git/hooks/a; echo y > a"
    with LocalEnvironment(place, ["*", "**/a"]) as env:
        events = shell(env, script)
    assert told(events, place) == {".bashrc", "sub/.git", "sub/.git/hooks", "sub/.git/hooks/a"}
    # `sub` is named by a glob itself.
    assert sorted(seen(place)) == ["a", "sub/", "sync/"]
    with LocalEnvironment(place, [".bashrc", "*.md"]) as env:
        assert shell(env, "echo x > .bashrc") == ()
    with LocalEnvironment(place, ["*"], policy=Policy.agent().with_unprotect(".profile")) as env:
        assert shell(env, "echo x > .profile") == ()
    assert {".bashrc", ".profile"} <= set(os.listdir(place))


def test_what_the_policy_denies_is_not_there_and_does_not_come_to_be(place: Path) -> None:
    (place / "keys.txt").write_text("secret")
    policy = Policy.agent().with_deny(place / "keys.txt", place / "later.txt")
    with LocalEnvironment(place, ["*.txt"], policy=policy) as env:
        assert "secret" not in env.exec_command("cat", ["keys.txt"]).stdout
        events = shell(env, "echo x > later.txt; echo x > a.txt")
    assert told(events, place) == {"later.txt"}
    assert "denies" in events[0].rule
    assert seen(place) == {"keys.txt": "secret", "a.txt": "x\n", "sync/": ""}


def test_what_the_policy_itself_lets_be_written_is_said(place: Path) -> None:
    for written in (place, place / "sync"):
        with LocalEnvironment(place, ["*.md"], policy=Policy.agent().with_write(written)) as env:
            assert any(str(written) in gap.why for gap in env.limits())
            assert "write" not in env.enforced.held
            shell(env, "echo x > sync/x")
        assert (place / "sync/x").exists()
    with LocalEnvironment(place, ["*.md"], policy=Policy.agent().with_write(place.parent)) as env:
        assert env.limits() == ()
        assert told(shell(env, "echo x > other; echo x > ../outside/x"), place) == {"other"}
    assert (place.parent / "outside/x").exists()


def test_links_are_taken_as_links_and_never_followed(place: Path) -> None:
    victim = place.parent / "outside/victim"
    victim.write_text("untouched")
    (place / "twin.txt").write_text("untouched")
    os.link(place / "twin.txt", place / "twin.md")
    with LocalEnvironment(place, ["*.md"]) as env:
        events = shell(
            env,
            f"""
            ln -s {victim} a.md; ln -s twin.txt b.md; echo x > b.md; ln -s {victim.parent} d; mkfifo p.md
            echo x > twin.md; ln twin.txt c.md; echo no > d/x || true; echo no > a.md || true
            """,
        )
    # One that leads out would hand whoever reads it another file.
    assert told(events, place) == {"a.md", "d", "p.md", "twin.txt"}
    assert victim.read_text() == "untouched"
    assert os.listdir(victim.parent) == ["victim"]
    assert seen(place) == {
        "b.md": "twin.txt",
        "c.md": "x\n",
        "twin.md": "x\n",
        "twin.txt": "untouched",
        "sync/": "",
    }


def test_permissions_come_along_but_not_those_of_the_directory_itself(place: Path) -> None:
    (place / "a.sh").write_text("#!/bin/sh\n")
    with LocalEnvironment(place, ["*.sh"]) as env:
        events = shell(env, "chmod 755 a.sh; echo > b.sh; chmod 4700 b.sh; chmod 700 .; chmod 700 sync")
    assert told(events, place) == {".", "sync"}
    assert [(place / name).stat().st_mode & 0o7777 for name in ("a.sh", "b.sh")] == [0o755, 0o700]
    assert place.stat().st_mode & 0o777 == 0o755


def test_a_flood_of_files_is_told_within_bounds(place: Path) -> None:
    with LocalEnvironment(place, ["*.md"]) as env:
        result = env.exec_command(
            "bash", ["-c", f"for i in {{1..{MOST_TOLD + 50}}}; do : > $i; done; : > a.md"]
        )
    assert len(result.violations) == MOST_TOLD + 1
    assert result.violations[-1].rule.startswith("50 more")
    assert sorted(seen(place)) == ["a.md", "sync/"]


@pytest.mark.slow
def test_commands_at_once_do_not_meet(place: Path) -> None:
    with LocalEnvironment(place, ["*.md"]) as env, ThreadPoolExecutor(4) as pool:
        every = list(pool.map(lambda n: shell(env, f"echo {n} > {n}.md; echo {n} > {n}.txt"), range(8)))
    assert [told(events, place) for events in every] == [{f"{n}.txt"} for n in range(8)]
    assert seen(place) == {"sync/": "", **{f"{n}.md": f"{n}\n" for n in range(8)}}


@pytest.mark.parametrize("name", ["with space", "line\nend", "\udcff\udcfe", "a:b,c=d\\", "tab\t\\040"])
def test_any_name_of_a_directory_works(place: Path, name: str) -> None:
    odd = place / name
    odd.mkdir()
    with LocalEnvironment(odd, ["*.md"]) as env:
        assert told(shell(env, "echo x > a.md; echo x > \"$(printf 'b\\n\\377')\""), odd) == {"b\n\udcff"}
    assert seen(odd) == {"a.md": "x\n"}


def test_without_a_layer_nothing_starts_unless_that_was_chosen(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CommandLayer.under

    def impossible(layer: CommandLayer, plan: Plan) -> Plan:
        """With a work directory that the kernel does not take."""
        found = real(layer, plan)
        return found.replace(layers=tuple(one.replace(work=one.upper) for one in found.layers))

    monkeypatch.setattr(CommandLayer, "under", impossible)
    with (
        LocalEnvironment(place, ["*.md"]) as env,
        pytest.raises(LaunchFailed, match=r"no layer can be put on it.*record"),
    ):
        env.exec_command("touch", ["a.md"])
    assert seen(place) == {"sync/": ""}
    with LocalEnvironment(place, ["*.md"], on_unavailable="record") as env:
        assert env.exec_command("touch", ["a.md", "b"]).exit_code == 0
        assert any("no layer" in gap.why for gap in env.limits())
        assert "write" not in env.enforced.held
    assert sorted(seen(place)) == ["a.md", "b", "sync/"]


@pytest.mark.needs_root
@pytest.mark.parametrize("there", [True, False])
def test_where_something_is_mounted_below_there_is_no_layer_and_it_is_said(place: Path, there: bool) -> None:
    (place / "mounted here").mkdir()
    code = f"""
        import subprocess
        from staddle import LocalEnvironment
        env = LocalEnvironment({str(place)!r}, ["a.md"])
        if {there}:
            subprocess.run(["mount", "-t", "tmpfs", "none", {str(place / "mounted here")!r}], check=True)
        print([gap.protection for gap in env.limits()], env.enforced.backend)
        env.exec_command("sh", ["-c", "echo x > a.md; echo x > b"])
        print(sorted(os.listdir({str(place)!r})))
        env.close()
    """
    limits, left = python(code, around=["unshare", "-m"]).splitlines()
    if there:
        assert limits == "['write', 'write'] namespaces"
        assert left == "['a.md', 'b', 'mounted here', 'sync']"
    else:
        assert limits == "[] namespaces"
        assert left == "['a.md', 'mounted here', 'sync']"
