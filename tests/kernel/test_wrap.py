"""`wrap` hands back the same command, confined, or an error; and what it starts can be driven as ever."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from staddle import LocalEnvironment, Policy, StaddleError, wrap
from staddle.cli.report import told
from staddle.errors import (
    AlreadyWrapped,
    BackendUnavailable,
    CommandNotFound,
    PolicyError,
    PolicyNotEnforceable,
    UnknownBackend,
)
from staddle.wrapping import is_wrapped
from tests.support.in_a_child import python
from tests.support.waiting import next_line, run_together, until

BACKENDS = ["namespaces", "bwrap", "landlock"]
confined = pytest.mark.parametrize("backend", BACKENDS)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@confined
def test_the_command_runs_and_its_streams_are_ours(backend: str) -> None:
    done = wrap(["sh", "-c", "cat; echo err >&2; exit 5"], Policy.agent(), backend=backend).run(
        input="in", capture_output=True, text=True
    )
    assert (done.stdout, done.stderr, done.returncode) == ("in", "err\n", 5)


@confined
def test_popen_is_an_ordinary_popen(backend: str) -> None:
    wrapped = wrap(["sed", "s/a/b/"], Policy.agent(), backend=backend)
    assert wrapped.backend == wrapped.enforced.backend == backend
    process = wrapped.popen(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.communicate(b"aaa")[0] == b"baa"


@confined
def test_started_by_hand_from_its_parts(backend: str) -> None:
    wrapped = wrap(["echo", "by hand"], Policy.agent(), backend=backend)
    done = subprocess.run(
        wrapped.argv,
        env=wrapped.env,
        cwd=wrapped.cwd,
        pass_fds=wrapped.pass_fds,
        capture_output=True,
        check=False,
    )
    assert done.stdout == b"by hand\n", done.stderr
    wrapped.close()


@confined
def test_a_large_exchange_does_not_deadlock(backend: str) -> None:
    data = os.urandom(3_000_000)
    policy = Policy.agent().with_limits(output="4M")
    assert wrap(["cat"], policy, backend=backend).run(input=data, capture_output=True).stdout == data


@confined
def test_captured_output_is_bounded_with_both_ends_kept(backend: str) -> None:
    policy = Policy.agent().with_limits(output=1000)
    done = wrap(
        ["sh", "-c", "echo first; head -c 5000000 /dev/zero; echo last"], policy, backend=backend
    ).run(capture_output=True)
    assert len(done.stdout) == 1000
    assert done.stdout.startswith(b"first\n")
    assert done.stdout.endswith(b"last\n")


@confined
def test_the_timeout_is_the_policys_and_what_was_said_is_kept(backend: str) -> None:
    policy = Policy.agent().with_limits(timeout=0.7)
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired) as late:
        wrap(["sh", "-c", "echo early; sleep 600 & sleep 600"], policy, backend=backend).run(
            capture_output=True
        )
    assert late.value.output == b"early\n"
    assert time.monotonic() - began < 60


@confined
def test_a_stray_that_holds_the_output_does_not_hold_us(backend: str) -> None:
    began = time.monotonic()
    done = wrap(["sh", "-c", "echo done; sleep 600 &"], Policy.agent(), backend=backend).run(
        capture_output=True
    )
    assert done.stdout == b"done\n"
    assert time.monotonic() - began < 60


@pytest.mark.slow
@pytest.mark.same_for_everyone
@confined
def test_many_at_once_from_threads_and_no_descriptor_left(backend: str, tmp_path: Path) -> None:
    policy = Policy.agent().with_read(str(tmp_path))
    wrap(["true"], policy, backend=backend).run()
    before = descriptors()
    results: list[bytes] = []

    def one(number: int) -> None:
        done = wrap(["echo", str(number)], policy, backend=backend).run(capture_output=True)
        results.append(done.stdout)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(12)]
    run_together(threads)
    assert sorted(results) == sorted(b"%d\n" % n for n in range(12))
    assert until(lambda: descriptors() <= before)  # of a test before, some may be closed only now


@confined
def test_what_is_never_started_leaves_no_descriptor(backend: str) -> None:
    wrap(["true"], Policy.agent(), backend=backend).close()
    before = descriptors()
    for _ in range(3):
        wrap(["true"], Policy.agent(), backend=backend).close()
    assert until(lambda: descriptors() <= before)


@confined
def test_env_and_cwd_are_of_the_inside(backend: str, tmp_path: Path) -> None:
    policy = Policy.agent().with_read(str(tmp_path)).with_env(A="policy", B="policy")
    done = wrap(
        ["sh", "-c", "echo $A $B; pwd"], policy, backend=backend, cwd=str(tmp_path), env={"B": "call"}
    ).run(capture_output=True, text=True)
    assert done.stdout == f"policy call\n{tmp_path}\n"


def test_a_directory_that_cannot_be_seen_is_no_place_to_start(tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        wrap(["true"], Policy.agent(), cwd=str(tmp_path))


@confined
def test_a_program_named_by_its_path_can_be_run_and_nothing_beside_it(backend: str, tmp_path: Path) -> None:
    (tmp_path / "beside").write_text("secret")
    tool = tmp_path / "tool"
    tool.write_text('#!/bin/sh\necho ran; cat "${0%/*}/beside"\n')
    tool.chmod(0o755)
    (tmp_path / "link").symlink_to(tool)
    for name in (tool, tmp_path / "link"):
        done = wrap([str(name)], Policy.agent(), backend=backend, cwd="/").run(capture_output=True, text=True)
        assert done.stdout == "ran\n", done
    with pytest.raises(CommandNotFound, match="not visible inside"):
        wrap([str(tool)], Policy.agent().with_deny(str(tmp_path)), backend=backend, cwd="/")


def test_a_program_that_an_agent_names_stays_hidden(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho ran\n")
    tool.chmod(0o755)
    with LocalEnvironment(tmp_path / "work") as env, pytest.raises(CommandNotFound, match="not visible"):
        env.exec_command(str(tool))


@confined
def test_a_signal_of_popen_reaches_the_command(backend: str) -> None:
    script = "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.01; done"
    process = wrap(["sh", "-c", script], Policy.agent(), backend=backend).popen(stdout=subprocess.PIPE)
    assert next_line(process) == b"ready\n"
    process.terminate()
    assert process.communicate()[0] == b"caught\n"
    assert process.returncode == 7
    process.terminate()  # it has ended: nothing is done
    stubborn = wrap(
        ["sh", "-c", "trap '' TERM; echo ready; exec sleep 1000"], Policy.agent(), backend=backend
    )
    process = stubborn.popen(stdout=subprocess.PIPE)
    assert next_line(process) == b"ready\n"
    process.kill()
    assert process.communicate()[0] == b"", "and with it went what held the pipe"


@confined
def test_it_starts_once(backend: str) -> None:
    wrapped = wrap(["true"], Policy.agent(), backend=backend)
    assert wrapped.run().returncode == 0
    with pytest.raises(AlreadyWrapped):
        wrapped.run()


@confined
def test_wrapping_is_one_way(backend: str) -> None:
    wrapped = wrap(["true"], Policy.agent(), backend=backend)
    assert is_wrapped(wrapped.argv)
    for again in (wrapped, wrapped.argv):
        with pytest.raises(AlreadyWrapped):
            wrap(again, Policy.agent())  # type: ignore[arg-type]
    wrapped.close()


@pytest.mark.parametrize("command", ["ls -l", b"ls", [], [""], ["a\0b"]])
def test_what_is_no_command_is_refused(command: object) -> None:
    with pytest.raises(PolicyError):
        wrap(command, Policy.agent())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["env", "cwd", "pass_fds", "close_fds", "preexec_fn", "shell", "user"])
def test_what_confines_cannot_be_overridden(name: str) -> None:
    with pytest.raises(PolicyError):
        wrap(["true"], Policy.agent(), backend="bwrap").popen(**{name: None})


def test_a_backend_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UnknownBackend, match="landlock"):
        wrap(["true"], Policy.agent(), backend="docker")
    with pytest.raises(BackendUnavailable):
        wrap(["true"], Policy.agent(), backend="seatbelt")


def test_what_cannot_be_held_is_an_error_and_best_effort_records_it() -> None:
    policy = Policy.agent().with_limits(disk="1G")
    for backend in ("auto", *BACKENDS):
        with pytest.raises(PolicyNotEnforceable) as refusal:
            wrap(["true"], policy, backend=backend)
        assert refusal.value.gaps
        assert refusal.value.fix
    wrapped = wrap(["true"], policy, best_effort=True)
    assert any("disk" in gap.protection for gap in wrapped.enforced.gaps)
    assert wrapped.run().returncode == 0


def test_auto_says_which_and_why() -> None:
    wrapped = wrap(["true"], Policy.agent())
    assert wrapped.backend == "namespaces"
    assert wrapped.enforced.why
    assert all(gap.documented for gap in wrapped.enforced.gaps)
    wrapped.close()


def test_native_is_only_by_name_and_says_what_it_is() -> None:
    wrapped = wrap(["sh", "-c", "echo $HOME $SECRET"], Policy.agent(), backend="native")
    assert wrapped.enforced.held == ()
    assert wrapped.run(capture_output=True).returncode == 0


@pytest.mark.same_for_everyone
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bare_name_that_is_hidden_or_missing_is_told_as_staddle_run_tells_it(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "of-mine"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(CommandNotFound, match="'of-mine' is not visible inside") as hidden:
        wrap(["of-mine"], Policy.agent(), backend=backend, best_effort=True, cwd="/").run()
    assert hidden.value.fix == f"grant it with policy.with_read({str(tmp_path)!r}), and give its full path"
    assert f"fix: grant it with --read {tmp_path}, and" in told(hidden.value)
    with pytest.raises(CommandNotFound, match="there is no program 'no-such-tool'"):
        wrap(["no-such-tool"], Policy.agent(), backend=backend, best_effort=True, cwd="/").run()


def test_every_error_is_one_tree() -> None:
    for error in (AlreadyWrapped, BackendUnavailable, PolicyError, PolicyNotEnforceable, UnknownBackend):
        assert issubclass(error, StaddleError)


@pytest.mark.parametrize("backend", ["namespaces", "bwrap", "landlock"])
def test_the_umask_of_the_caller_is_that_of_the_command(backend: str) -> None:
    said = python(
        f"""
from staddle import Policy, wrap
for mask in (0o077, 0o022, 0o002):
    os.umask(mask)
    wrapped = wrap(["sh", "-c", "umask"], Policy.agent(), backend={backend!r})
    print(wrapped.run(capture_output=True).stdout.decode(), end="")
"""
    )
    assert said == "0077\n0022\n0002"
