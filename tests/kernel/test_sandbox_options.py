"""Options of one command, as a harness gives them: one stream, a limit, a way to cancel, variables, input."""

from __future__ import annotations

import asyncio
import errno
import io
import threading
from collections.abc import Iterator

import pytest

from staddle import AsyncSandbox, Reason, Sandbox
from staddle.errors import CommandFailed, InvalidCall

MIXED = "echo a; echo b >&2; echo c; echo d >&2"


@pytest.fixture(scope="module", params=["namespaces", "native"])
def sb(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(backend=request.param) as made:
        yield made


# ---------------------------------------------------------------- one stream


@pytest.mark.same_for_everyone
def test_merged_output_is_one_stream_in_order(sb: Sandbox) -> None:
    for got in (sb.run(MIXED, merge=True), sb.exec(["sh", "-c", MIXED], merge=True)):
        assert (got.stdout, got.stderr, got.exit_code) == ("a\nb\nc\nd\n", "", 0)


@pytest.mark.same_for_everyone
def test_what_bash_itself_says_is_in_the_merged_stream(sb: Sandbox) -> None:
    got = sb.run("echo before\nif; then", merge=True)
    assert "syntax error" in got.stdout
    assert (got.stderr, got.exit_code) == ("", 2)
    got = sb.run("pwd", merge=True, cwd="/nowhere")
    assert "/nowhere: No such file" in got.stdout
    assert got.stderr == ""
    assert "nope" in sb.run("nope", merge=True).stdout
    assert sb.run("echo out; echo err >&2").stderr == "err\n"  # the next one has two again


@pytest.mark.same_for_everyone
def test_a_merged_stream_and_callback_get_it_as_it_comes(sb: Sandbox) -> None:
    heard: list[str] = []
    sb.run(MIXED, merge=True, on_stdout=heard.append, on_stderr=lambda _: heard.append("never"))
    assert "".join(heard) == "a\nb\nc\nd\n"
    with sb.stream(MIXED, merge=True) as stream:
        chunks = list(stream)
    assert {chunk.stream for chunk in chunks} == {"stdout"}
    assert "".join(chunk.text for chunk in chunks) == "a\nb\nc\nd\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_merged_command_that_is_ended_leaves_a_usable_shell(sb: Sandbox) -> None:
    got = sb.run("echo begun >&2; while :; do /bin/true; done", merge=True, timeout=0.5)
    assert got.reason is Reason.timeout
    assert got.stdout == "begun\n"
    assert sb.run("echo on", merge=True).stdout == "on\n"


# ---------------------------------------------------------------- a limit of its own


@pytest.mark.same_for_everyone
def test_a_command_can_have_an_output_limit_of_its_own(sb: Sandbox) -> None:
    for got in (
        sb.run("seq 10000", output_limit="1K"),
        sb.exec(["seq", "10000"], output_limit=1024),
    ):
        assert len(got.stdout_bytes) == 1024
        assert got.stdout_bytes_dropped == 48894 - 1024
    assert not sb.run("seq 300000", output_limit=None).stdout_truncated
    for wrong in (0, -1, True, "much", 1.5):
        with pytest.raises(InvalidCall, match="output_limit"):
            sb.run("true", output_limit=wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- not started


def test_a_program_that_was_not_started_is_told_from_one_that_ends_so(sb: Sandbox) -> None:
    missing = sb.exec(["nope"])
    assert (missing.reason, missing.exit_code, missing.errno) == (Reason.not_started, 127, errno.ENOENT)
    assert "'nope' cannot be run: No such file" in missing.why
    unfit = sb.exec(["/etc/passwd"])
    assert (unfit.reason, unfit.exit_code, unfit.errno) == (Reason.not_started, 126, errno.EACCES)
    nowhere = sb.exec(["true"], cwd="/nowhere")
    assert (nowhere.reason, nowhere.exit_code, nowhere.errno) == (Reason.not_started, 125, errno.ENOENT)
    own = sb.exec(["sh", "-c", "exit 127"])
    assert (own.reason, own.exit_code, own.errno, own.why) == (Reason.exited, 127, None, "")
    assert missing.as_dict()["reason"] == "not_started"
    assert not missing.ok
    with pytest.raises(CommandFailed, match="was not started"):
        sb.exec(["nope"], check=True)
    assert "cannot be run" in sb.exec(["nope"], merge=True).stdout


# ---------------------------------------------------------------- cancelled


@pytest.mark.same_for_everyone
def test_an_event_cancels_one_command(sb: Sandbox) -> None:
    for run in (
        lambda cancel: sb.run("echo begun; sleep 1000", cancel=cancel, on_stdout=lambda _: cancel.set()),
        lambda cancel: sb.exec(
            ["sh", "-c", "echo begun; sleep 1000"], cancel=cancel, on_stdout=lambda _: cancel.set()
        ),
    ):
        got = run(threading.Event())
        assert (got.reason, got.stdout) == (Reason.cancelled, "begun\n")
    assert sb.run("echo on", cancel=threading.Event()).stdout == "on\n"


@pytest.mark.same_for_everyone
def test_a_command_that_is_cancelled_before_its_turn_does_not_run(sb: Sandbox) -> None:
    cancel = threading.Event()
    cancel.set()
    assert sb.run("echo ran", cancel=cancel).reason is Reason.cancelled
    cancel.clear()
    waiting: list[object] = []

    def second() -> None:
        waiting.append(sb.run("echo ran", cancel=cancel))

    thread = threading.Thread(target=second)
    with sb.stream("echo first; sleep 1000") as stream:
        next(stream)
        thread.start()
        cancel.set()
        thread.join()
    (got,) = waiting
    assert (got.reason, got.stdout, got.exit_code) == (Reason.cancelled, "", 130)  # type: ignore[attr-defined]


# ---------------------------------------------------------------- variables, input, time


@pytest.mark.same_for_everyone
def test_a_variable_that_is_none_is_not_set_for_one_command(sb: Sandbox) -> None:
    sb.run("export GONE='a b'; list=(1 2); readonly FIXED=1")
    got = sb.run(
        'echo "${GONE-unset} ${list-unset} $MORE"; GONE=other',
        env={"GONE": None, "list": None, "MORE": "m", "NEVER_SET": None},
    )
    assert got.stdout == "unset unset m\n"
    assert sb.run('echo "$GONE ${list[1]} ${MORE-unset}"; declare -p GONE').stdout == (
        'a b 2 unset\ndeclare -x GONE="a b"\n'
    )
    assert "GONE=" not in sb.exec(["env"], env={"GONE": None}).stdout
    sb.run("unset GONE list")


@pytest.mark.same_for_everyone
def test_a_program_may_have_variables_that_no_shell_can_set(sb: Sandbox) -> None:
    assert "INPUT_MY-NAME=v\n" in sb.exec(["env"], env={"INPUT_MY-NAME": "v"}).stdout
    with pytest.raises(InvalidCall, match="a shell cannot set"):
        sb.run("env", env={"INPUT_MY-NAME": "v"})
    with pytest.raises(InvalidCall):
        sb.exec(["env"], env={"A=B": "v"})


@pytest.mark.same_for_everyone
def test_standard_input_may_be_a_file(sb: Sandbox) -> None:
    assert sb.run("cat", stdin=io.BytesIO(b"filed")).stdout == "filed"
    assert sb.exec(["cat"], stdin=io.BytesIO(b"filed")).stdout == "filed"
    with pytest.raises(InvalidCall, match="stdin"):
        sb.run("cat", stdin=3)  # type: ignore[arg-type]


@pytest.mark.same_for_everyone
def test_a_timeout_may_be_months(sb: Sandbox) -> None:
    assert sb.run("/bin/true; echo on", timeout=10**7).stdout == "on\n"
    assert sb.exec(["echo", "on"], timeout=10**7).stdout == "on\n"
    with sb.terminal(["true"]) as terminal:
        while terminal.read(timeout=10**7):
            pass


@pytest.mark.same_for_everyone
def test_the_awaited_face_has_them_too() -> None:
    async def work() -> None:
        async with AsyncSandbox(backend="native") as sb:
            assert (await sb.run(MIXED, merge=True)).stdout == "a\nb\nc\nd\n"
            assert (await sb.exec(["sh", "-c", MIXED], merge=True, output_limit=4)).stdout_bytes == b"a\nd\n"
            assert (await sb.exec(["nope"])).reason is Reason.not_started
            assert (await sb.run("echo ${HOME-none}", env={"HOME": None})).stdout == "none\n"
            async with sb.stream(MIXED, merge=True) as stream:
                assert [chunk.stream async for chunk in stream].count("stderr") == 0

    asyncio.run(work())
