"""An agent's tools mean the same wherever they run: on this machine, and in a sandbox of any kind."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from staddle import ExecutionEnvironment, LocalEnvironment, Policy, Sandbox
from staddle.environment import AsyncLocalEnvironment
from staddle.errors import (
    CommandCancelled,
    CommandNotFound,
    CommandTimeout,
    InvalidCall,
    LaunchFailed,
    PathEscape,
    PathNotAllowed,
    PolicyError,
    PolicyNotEnforceable,
    SandboxClosed,
)
from staddle.launch import running
from staddle.sandbox import execution
from tests.support.file_habitats import HABITATS, opened
from tests.support.waiting import JumpingClock, as_soon_as, unique_seconds, until, with_argument


class World(NamedTuple):
    """A kind of environment, the directory of the host behind it, and a way to look at it from within."""

    name: str
    environment: Callable[..., ExecutionEnvironment]
    directory: Path

    def escaping(self, script: str) -> str:
        """The script, without what a process group alone does not end."""
        return script.replace("setsid ", "") if self.name == "local-native" else script

    def here(self, script: str) -> str:
        """What a script prints there."""
        return self.environment().exec_command("bash", ["-c", script]).stdout


@pytest.fixture(params=[*(f"local-{backend}" for backend in ("bwrap", "landlock", "native")), *HABITATS])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    place, _, backend = request.param.partition("-")
    with ExitStack() as stack:
        if place == "local":
            (tmp_path / "outside").mkdir()
            (tmp_path / "work").mkdir()

            def made(*args: object, **kwargs: object) -> ExecutionEnvironment:
                found = LocalEnvironment(tmp_path / "work", *args, backend=backend, **kwargs)  # type: ignore[arg-type]
                stack.callback(found.close)
                return found
        else:
            sandbox = stack.enter_context(opened(request.param, tmp_path))

            def made(*args: object, **kwargs: object) -> ExecutionEnvironment:
                return sandbox.environment(*args, on_unavailable="record", **kwargs)  # type: ignore[arg-type]

        yield World(request.param, made, tmp_path / "work")


def gone(mark: str) -> bool:
    return until(lambda: not with_argument(mark))


@pytest.fixture
def time_is_up_when(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], None]:
    """Let a command have all the time that it needs to come so far, and none from then on."""

    def up(ready: Callable[[], bool]) -> None:
        clock = JumpingClock(ready)
        for module in (running, execution):
            monkeypatch.setattr(module, "time", clock)

    return up


# ---------------------------------------------------------------- files


def test_it_is_an_environment(world: World) -> None:
    env = world.environment()
    assert isinstance(env, ExecutionEnvironment)
    assert env.exec_command("pwd").stdout == env.working_dir + "\n"
    env.write_file("docs/deep/plan.md", "1. süß\n")
    assert env.read_file("docs/deep/plan.md") == "1. süß\n"
    assert env.exec_command("cat", ["docs/deep/plan.md"]).stdout == "1. süß\n"
    assert env.glob("**/*.md") == ["docs/deep/plan.md"]
    assert env.glob("docs/**") == ["docs", "docs/deep", "docs/deep/plan.md"]
    assert env.glob("none/*") == []
    env.write_file("raw", "\udcff")
    assert env.exec_command("od", ["-An", "-tx1", "raw"]).stdout.split() == ["ff"]
    env.remove_file("docs/deep/plan.md")
    with pytest.raises(FileNotFoundError):
        env.read_file("docs/deep/plan.md")
    with pytest.raises(FileNotFoundError):
        env.remove_file("docs/deep/plan.md")


def test_paths_that_lead_out_or_through_links_are_refused(world: World) -> None:
    env = world.environment()
    secret = world.directory.parent / "outside" / "secret"
    secret.write_text("of the host")
    world.here(f"mkdir d; echo x > d/f; ln -s '{secret}' l; ln -s d dl; ln -s '{secret.parent}' out")
    for path in ("/etc/passwd", "../outside/secret", "d/../../outside/secret", "l", "out/secret"):
        with pytest.raises(PathEscape):
            env.read_file(path)
        if path != "l":
            with pytest.raises(PathEscape):
                env.write_file(path, "x")
    for path in ("l", "dl/f", "dl/new", "out/new/x"):
        with pytest.raises(PathEscape):
            env.write_file(path, "x")
    with pytest.raises(PathEscape):
        env.remove_file("out/secret")
    env.remove_file("l")  # itself
    assert "l" not in env.glob("*")
    assert env.glob("**/f") == ["d/f"]
    for pattern in ("/etc/*", "../*"):
        with pytest.raises(PathEscape):
            env.glob(pattern)
    assert secret.read_text() == "of the host"
    assert os.listdir(secret.parent) == ["secret"]


def test_links_are_listed_and_read_if_they_stay_inside(world: World) -> None:
    env = world.environment()
    (world.directory.parent / "outside" / "secret").write_text("of the host")
    world.here(
        "mkdir d; echo rules > d/AGENTS.md; mkfifo pipe; "
        "ln -s d/AGENTS.md CLAUDE.md; ln -s d dl; ln -s ../CLAUDE.md d/again; ln -s . here; "
        "ln -s nothing broken; ln -s loop loop; ln -s pipe to-pipe; ln -s $PWD/d/AGENTS.md absolute; "
        'ln -s ../outside/secret out; ln -s d/../../outside/secret by; ln -s "../${PWD##*/}/CLAUDE.md" back; '
        "ln -s /proc/self/cwd/CLAUDE.md magic"
    )
    for path in ("CLAUDE.md", "d/again", "dl/AGENTS.md", "dl/again", "here/here/CLAUDE.md"):
        assert env.read_file(path) == "rules\n", path
    links = ["CLAUDE.md", "absolute", "back", "broken", "by", "dl", "here", "loop", "magic", "out", "to-pipe"]
    assert env.glob("*") == sorted([*links, "d"]), "links, but nothing that no tool would open"
    assert env.glob("**/A*") == ["d/AGENTS.md"], "no link is followed"
    for path in ("out", "by", "back", "absolute", "magic", "loop"):
        with pytest.raises(PathEscape):
            env.read_file(path)
    with pytest.raises(FileNotFoundError):
        env.read_file("broken")
    with pytest.raises(PathNotAllowed):
        env.read_file("to-pipe")
    for path in ("dl", "here"):
        with pytest.raises(IsADirectoryError):
            env.read_file(path)
    for path in ("CLAUDE.md", "dl/AGENTS.md", "broken"):
        with pytest.raises(PathEscape):
            env.write_file(path, "x")
    assert env.read_file("d/AGENTS.md") == "rules\n"


def test_what_is_no_file_is_refused_without_waiting(world: World) -> None:
    env = world.environment()
    world.here("mkdir d; mkfifo p")
    for attempt in (lambda: env.read_file("p"), lambda: env.write_file("p", "")):
        with pytest.raises(PathNotAllowed):
            attempt()
    for attempt in (lambda: env.read_file("d"), lambda: env.write_file("d", "")):
        with pytest.raises(IsADirectoryError):
            attempt()
    for path in ("", ".", "d/", "d/."):
        with pytest.raises(PathNotAllowed):
            env.read_file(path)
    for path in ("\ud800", "a\0b"):
        with pytest.raises(PolicyError):
            env.read_file(path)
        with pytest.raises(PolicyError):
            env.write_file(path, "x")


def test_globs_decide_before_anything_is_made(world: World) -> None:
    env = world.environment(["out.md", "docs/**"])
    env.write_file("out.md", "x")
    env.write_file("docs/a/b", "x")
    for path in ("other", "src/x", "out.md/x", "doc"):
        with pytest.raises((PathNotAllowed, NotADirectoryError)):
            env.write_file(path, "x")
        with pytest.raises((PathNotAllowed, NotADirectoryError)):
            env.remove_file(path)
    assert world.here("find . | sort") == ".\n./docs\n./docs/a\n./docs/a/b\n./out.md\n"
    for globs in ([], ["a{b}"], ["**x"]):
        with pytest.raises(PolicyError):
            world.environment(globs)
    with pytest.raises(PathEscape):
        world.environment(["../x"])


def test_a_write_keeps_permissions_and_other_names(world: World) -> None:
    env = world.environment()
    world.here("echo old > a; chmod 750 a; ln a b")
    env.write_file("a", "new")
    assert world.here("cat a b; stat -c %a a; ls -A | wc -l") == "newold\n750\n2\n"


# ---------------------------------------------------------------- commands


@pytest.mark.same_for_everyone
def test_a_failing_command_is_a_result(world: World) -> None:
    env = world.environment()
    result = env.exec_command("sh", ["-c", "echo out; echo err >&2; exit 42"])
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 42)
    assert not result.stdout_truncated
    assert env.exec_command("sh", ["-c", "kill -KILL $$"]).exit_code == 128 + 9
    for program in ("no-such-program", "./no-such-program"):
        with pytest.raises(CommandNotFound):
            env.exec_command(program)


@pytest.mark.same_for_everyone
def test_the_tail_is_kept_to_the_byte_on_both_streams(world: World) -> None:
    env = world.environment()
    script = "printf 0123456789; printf abcdefghijk >&2"
    result = env.exec_command_with_limit("sh", ["-c", script], output_limit=10)
    assert (result.stdout, result.stdout_truncated, result.stdout_bytes_dropped) == ("0123456789", False, 0)
    assert (result.stderr, result.stderr_truncated, result.stderr_bytes_dropped) == ("bcdefghijk", True, 1)
    flood = env.exec_command("sh", ["-c", "head -c 30000000 /dev/zero; echo marker"])
    assert flood.stdout.endswith("\0marker\n")
    assert flood.stdout_truncated
    assert flood.stdout_bytes_dropped + len(flood.stdout) == 30_000_007


def test_a_timeout_ends_the_whole_tree_and_carries_what_was_printed(
    world: World, time_is_up_when: Callable[[Callable[[], bool]], None]
) -> None:
    name = unique_seconds()
    time_is_up_when(lambda: len(with_argument(name)) >= 3)
    script = f"echo part; sleep {name} & setsid sleep {name} & trap '' TERM INT; sleep {name}; sleep {name}"
    with pytest.raises(CommandTimeout) as ended:
        # Who can be cancelled looks at the clock all the time.
        world.environment().exec_command("sh", ["-c", world.escaping(script)], 60, cancel=threading.Event())
    assert ended.value.result is not None
    assert ended.value.result.stdout == "part\n"
    assert gone(name)


def test_what_runs_in_the_background_ends_with_the_command(world: World) -> None:
    name = unique_seconds()
    script = f"sleep {name} & (setsid sleep {name} &) ; nohup sleep {name} >/dev/null 2>&1 & echo done"
    result = world.environment().exec_command("sh", ["-c", world.escaping(script)], 60)
    assert (result.exit_code, result.stdout) == (0, "done\n")
    assert gone(name)


@pytest.mark.same_for_everyone
def test_a_cancellation_is_not_a_timeout(world: World) -> None:
    env, cancel, name = world.environment(), threading.Event(), unique_seconds()
    as_soon_as(lambda: len(with_argument(name)) >= 2, cancel.set)
    with pytest.raises(CommandCancelled) as ended:
        env.exec_command(
            "sh", ["-c", f"echo part; exec >&- 2>&-; sleep {name} & sleep {name}"], cancel=cancel
        )
    assert ended.value.result is not None
    assert ended.value.result.stdout == "part\n"
    assert gone(name)
    with pytest.raises(CommandCancelled):
        env.exec_command("touch", ["never"], cancel=cancel)
    assert env.glob("*") == []


@pytest.mark.same_for_everyone
def test_a_cancelled_task_is_over_only_when_its_command_is_dead(world: World) -> None:
    env, name = AsyncLocalEnvironment(world.environment()), unique_seconds()

    async def session() -> None:
        await env.write_file("a", "x")
        assert await env.read_file("a") == "x"
        assert (await env.exec_command("cat", ["a"])).stdout == "x"
        assert await env.glob("*") == ["a"]
        task = asyncio.create_task(env.exec_command("sleep", [name]))
        assert await asyncio.to_thread(until, lambda: with_argument(name))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert with_argument(name) == []
        await env.remove_file("a")

    asyncio.run(session())


def test_variables_are_added_and_none_leak(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    if world.name.endswith("native"):
        return
    monkeypatch.setenv("MY_API_KEY", "secret-of-the-host")
    result = world.environment().exec_command_with_limit("env", env={"ADDED": "yes"})
    assert "ADDED=yes" in result.stdout
    assert "PATH=" in result.stdout
    assert "secret-of-the-host" not in result.stdout


@pytest.mark.same_for_everyone
def test_arguments_arrive_as_they_are_whatever_they_look_like(world: World) -> None:
    env = world.environment()
    odd = ["", "--", "-c", "--bind", "a\nb", "$(touch x)", "\x1b[2J", "'", "x" * 100_000]
    env.write_file("--bind", '#!/bin/sh\nprintf "<%s>" "$@"\n')
    world.here("chmod 755 ./--bind")
    assert env.exec_command("./--bind", odd).stdout == "".join(f"<{word}>" for word in odd)
    bytes_too = env.exec_command("sh", ["-c", 'printf %s "$1" | od -An -tx1', "sh", "\udcff\udcfe"])
    assert bytes_too.stdout.split() == ["ff", "fe"]
    for args in (["x" * 200_000], ["x" * 1000] * 3000):
        with pytest.raises(LaunchFailed, match="too long"):
            env.exec_command("echo", args)
    assert env.glob("*") == ["--bind"]


@pytest.mark.same_for_everyone
def test_bad_arguments_are_refused(world: World) -> None:
    env = world.environment()
    for timeout in (0, -1, True, float("nan"), "3"):
        with pytest.raises(PolicyError):
            env.exec_command("true", [], timeout)  # type: ignore[arg-type]
    with pytest.raises(PolicyError):
        env.exec_command("sh", "-c true")
    with pytest.raises(PolicyError):
        env.exec_command("", [])
    for word in ("a\0b", "\ud800"):
        with pytest.raises(PolicyError):
            env.exec_command("echo", [word])
    for limit in (True, "5", 1.5, None):
        with pytest.raises(PolicyError):
            env.exec_command_with_limit("true", output_limit=limit)  # type: ignore[arg-type]
    with pytest.raises((PolicyError, InvalidCall)):
        env.exec_command_with_limit("true", env={"A=B": "x"})


@pytest.mark.same_for_everyone
def test_many_commands_at_once(world: World) -> None:
    env = world.environment()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda n: env.exec_command("sh", ["-c", f"echo {n} | tee f{n}"]), range(8)))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(8)]
    assert len(env.glob("*")) == 8


# ---------------------------------------------------------------- in a sandbox


def test_commands_are_held_to_the_globs_where_changes_are_in_a_layer(
    tmp_path: Path, time_is_up_when: Callable[[Callable[[], bool]], None]
) -> None:
    with opened("namespaces", tmp_path) as sandbox:
        (tmp_path / "work" / "src.py").write_text("mine")
        sandbox.run("echo earlier > earlier; mkdir olddir")
        env = sandbox.environment(["out.md", "docs/**/*.md"])
        assert env.limits() == ()
        script = """
            echo new > out.md; mkdir -p docs/deep junk; echo a > docs/deep/a.md; echo no > docs/deep/a.txt
            echo no > src.py; rm -f src.py; echo no > junk/x; echo x > /tmp/scratch; mv out.md o; mv o out.md
        """
        result = env.exec_command("sh", ["-c", script])
        assert {event.what for event in result.violations} == {
            f"/workspace/{name}" for name in ("docs/deep/a.txt", "src.py", "junk", "junk/x")
        }
        assert all("put back" in event.rule for event in result.violations)
        assert env.glob("**") == [
            "docs",
            "docs/deep",
            "docs/deep/a.md",
            "earlier",
            "olddir",
            "out.md",
            "src.py",
        ]
        assert (env.read_file("src.py"), env.read_file("earlier")) == ("mine", "earlier\n")
        assert env.exec_command("sh", ["-c", "cat out.md docs/deep/a.md"]).violations == ()
        (again,) = env.exec_command("sh", ["-c", "echo later! > earlier"]).violations
        assert (again.what, "stays" in again.rule) == ("/workspace/earlier", True)
        name = unique_seconds()
        time_is_up_when(lambda: bool(with_argument(name)))
        with pytest.raises(CommandTimeout) as ended:
            env.exec_command("sh", ["-c", f"echo no > late; sleep {name}"], 60, cancel=threading.Event())
        assert ended.value.result is not None
        assert [event.what for event in ended.value.result.violations] == ["/workspace/late"]
        assert "late" not in env.glob("*")
        sandbox.commit(["out.md"])
        assert sorted(os.listdir(tmp_path / "work")) == ["out.md", "src.py"]


def test_what_may_be_removed_goes_and_what_comes_back_is_told(tmp_path: Path) -> None:
    with opened("namespaces", tmp_path) as sandbox:
        for name in ("src/a.md", "src/b.py", "all/a.md", "file"):
            (tmp_path / "work" / name).parent.mkdir(exist_ok=True)
            (tmp_path / "work" / name).write_text("x")
        env = sandbox.environment(["*/*.md"])
        script = "rm -r src all file; mkdir -p file/d; echo x > file/b.md; mkdir new; echo x > new/c.md"
        result = env.exec_command("sh", ["-c", script])
        told = {event.what.removeprefix("/workspace/"): event.rule for event in result.violations}
        assert told.keys() == {"src", "src/b.py", "all", "all/a.md", "file", "file/b.md", "file/d"}
        assert "with the directory" in told["all/a.md"]
        found = ["all", "all/a.md", "file", "new", "new/c.md", "src", "src/b.py"]
        assert env.glob("**") == found
        assert env.read_file("file") == "x"


def test_where_commands_cannot_be_held_it_is_refused_or_said(tmp_path: Path) -> None:
    with opened("namespaces-bind", tmp_path) as sandbox:
        with pytest.raises(PolicyNotEnforceable):
            sandbox.environment(["*.md"])
        env = sandbox.environment(["*.md"], on_unavailable="record")
        assert [gap.protection for gap in env.limits()] == ["write"]
        assert sandbox.environment().limits() == ()
        for name in (".git/hooks/x", ".bashrc"):
            with pytest.raises(PathNotAllowed):
                sandbox.environment().write_file(name, "")
    with Sandbox(tmp_path / "work", mode="readonly") as sandbox:
        env = sandbox.environment(["*.md"])
        assert env.limits() == ()
        with pytest.raises(OSError, match="Read-only"):
            env.write_file("a.md", "")


@pytest.mark.same_for_everyone
def test_it_is_where_it_was_made_whatever_the_session_does(tmp_path: Path) -> None:
    with opened("namespaces", tmp_path) as sandbox:
        sandbox.run("mkdir -p d/e; ln -s d/e l; cd d; export MINE=1")
        env, other = sandbox.environment(), sandbox.environment(path="../l")
        sandbox.run("cd /")
        assert (env.working_dir, other.working_dir) == ("/workspace/d", "/workspace/d/e")
        other.write_file("x", "y")
        assert env.exec_command("sh", ["-c", "cat e/x; echo $MINE"]).stdout == "y1\n"
        with pytest.raises(NotADirectoryError):
            sandbox.environment(path="/etc/passwd")
        with pytest.raises(FileNotFoundError):
            sandbox.environment(path="none")
        sandbox.close()
        with pytest.raises(SandboxClosed):
            env.exec_command("true")
        with pytest.raises(SandboxClosed):
            env.read_file("x")


@pytest.mark.same_for_everyone
def test_secrets_are_taken_out_of_what_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "sk-0123456789")
    policy = Policy.agent().with_pass_env("SERVICE_API_KEY")
    with Sandbox(policy=policy) as sandbox:
        result = sandbox.environment().exec_command("sh", ["-c", "echo $SERVICE_API_KEY ${#SERVICE_API_KEY}"])
        assert result.stdout == "(hidden) 13\n"
