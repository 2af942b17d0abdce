"""A run without a shell: what is said, what is heard, and when it is over."""

from __future__ import annotations

from staddle.ipc.agent_messages import BRAKE, INTERRUPT, KILL, KILL_SHELL, TERMINATE
from staddle.ipc.opened_shell import ShellPaths
from staddle.shell.protocol import ASK_AGAIN, LADDER, BuiltinAccess, Run, answer, builtin_access, lines

PLACES = ShellPaths(b"/s/text", b"/s/status", b"/s/done", b"/s/input", b"/s/output", b"/s/errors", b"/s/x")


def said(
    status: int = 0, nonce: bytes = b"N1", flags: bytes = b"hB", job: bytes = b"", cwd: bytes = b"/w"
) -> bytes:
    path = b"/s/x/%b.%d.%b.%b.%b/%b.%b/%b" % (nonce, status, flags, job, cwd, nonce, b"/old", nonce)
    return b"bash: " + path + b": No such file or directory\n"


# What is said.


def test_the_text_and_the_question_are_two_lines() -> None:
    first, second, end = lines(PLACES, b"N1", BuiltinAccess()).split(b"\n")
    assert first == rb"\. /s/text </dev/null >/s/output 2>/s/errors"
    assert second.startswith(b'((0)) 2>/s/done >"/s/x/N1.$?.')
    assert end == b""


def test_a_way_past_functions_and_disabled_builtins() -> None:
    none: frozenset[bytes] = frozenset()
    assert builtin_access(none, none) == BuiltinAccess()
    assert builtin_access(frozenset({b"."}), none) == BuiltinAccess(rb"\source")
    assert builtin_access(none, frozenset({b"."})) == BuiltinAccess(rb"\source")
    assert builtin_access(frozenset({b".", b"source"}), none) == BuiltinAccess(rb"\builtin .")
    assert builtin_access(frozenset({b".", b"source", b"builtin"}), none) == BuiltinAccess(rb"\command .")
    assert builtin_access(frozenset({b"return"}), none) == BuiltinAccess(rb"\.", rb"\builtin return")
    assert builtin_access(frozenset({b".", b"source", b"builtin", b"command"}), none) is None
    assert builtin_access(none, frozenset({b".", b"source"})) is None


# What is heard.


def test_an_answer_has_everything() -> None:
    found = answer(b"N1", b"noise\n" + said(7, job=b"42", cwd=b"/a.b/c d"))
    assert found is not None
    assert (found.status, found.flags, found.newest_job) == (7, b"hB", 42)
    assert (found.cwd, found.oldpwd) == (b"/a.b/c d", b"/old")


def test_half_an_answer_is_none() -> None:
    whole = said()
    end = whole.rindex(b"N1") + 2
    assert all(answer(b"N1", whole[:cut]) is None for cut in range(end))
    assert answer(b"N1", whole[:end]) is not None


def test_the_answer_to_another_question_is_noise() -> None:
    assert answer(b"N2", said(nonce=b"N1")) is None


def test_the_question_itself_is_no_answer() -> None:
    question = lines(PLACES, b"N1", BuiltinAccess())
    assert answer(b"N1", question) is None
    found = answer(b"N1", question + said(5))
    assert found is not None
    assert found.status == 5


def test_what_is_made_up_inside_is_bounded() -> None:
    for bad in (b"/N1.x.y.z./N1./N1", b"/N1.9999.h../N1./N1", b"/N1.1.h.12345678901./N1./N1"):
        assert answer(b"N1", bad) is None
    found = answer(b"N1", b"/N1.1." + b"h" * 999 + b".." + b"w" * 9999 + b"/N1./N1")
    assert found is not None
    assert len(found.flags) <= 64
    assert len(found.cwd) <= 4096


# When it is over.


def begun(timeout: float) -> Run:
    run = Run(b"N1", b"", timeout)
    run.begin_at(0.0)
    return run


def test_a_run_is_over_with_its_answer_in_pieces() -> None:
    run = Run(b"N1", b"lines")
    for byte in said(3):
        assert not run.over
        run.feed(bytes([byte]), PLACES)
        if run.over:
            break
    assert run.answer is not None
    assert run.answer.status == 3


def test_a_run_is_over_with_its_shell() -> None:
    run = Run(b"N1", b"")
    run.shell_ended(256)
    assert run.over
    assert run.ended == 256


def test_a_shell_that_cannot_answer_is_lost() -> None:
    run = Run(b"N1", b"")
    run.feed(b"bash: /s/done: Too many open files\n", PLACES)
    assert run.lost


def test_a_shell_without_room_for_the_text_has_not_run_it() -> None:
    run = Run(b"N1", b"")
    run.feed(b"bash: /s/errors: Too many open files\n" + said(1), PLACES)
    assert run.refused


def test_noise_does_not_grow() -> None:
    run = Run(b"N1", b"")
    for _ in range(100):
        run.feed(b"x" * 10_000, PLACES)
    assert len(run._noise) <= 64 << 10


def test_the_ladder_is_climbed_in_time() -> None:
    run, now, steps = begun(1.0), 0.0, []
    assert run.step(0.99) is None
    now = 1.0
    while not run.over:
        step = run.step(now)
        if step is not None:
            steps.append(step)
        assert run.deadline is not None
        assert run.over or run.deadline > now
        now = max(now, run.deadline)
    assert steps == [step for step, _ in LADDER]
    assert [step for step in steps if step != ASK_AGAIN][:4] == [BRAKE, INTERRUPT, TERMINATE, KILL]
    assert steps[-1] == KILL_SHELL
    interrupting = [number for number, step in enumerate(steps) if step in (INTERRUPT, TERMINATE, KILL)]
    assert all(steps[number + 1] == ASK_AGAIN for number in interrupting)
    assert run.reason == "timeout"
    assert run.lost
    assert now < 1 + 0.15 + 0.15 + 0.5 + 2.1


def test_an_answer_ends_the_climb() -> None:
    run = begun(1.0)
    assert run.step(1.0) == BRAKE
    run.feed(said(130), PLACES)
    assert run.step(9.0) is None
    assert run.was_ended


def test_closing_ends_the_shell_at_once() -> None:
    run = Run(b"N1", b"")
    run.interrupt("closed", 0.5)
    assert run.reason == "closed"
    assert run.step(0.5) == KILL_SHELL


def test_closing_comes_after_any_other_reason() -> None:
    run = Run(b"N1", b"")
    run.interrupt("cancelled", 0.5)
    assert run.step(0.5) == BRAKE
    run.interrupt("closed", 0.6)
    assert run.step(0.6) == KILL_SHELL
    run.interrupt("cancelled", 0.6)
    assert run.reason == "closed"


def test_the_first_reason_stays() -> None:
    run = begun(1.0)
    run.step(1.0)
    run.interrupt("cancelled", 1.1)
    assert run.reason == "timeout"
