"""A result says everything about a command, as bytes for programs and as text for people."""

from __future__ import annotations

import json
import pickle

import pytest

from staddle.errors import CommandFailed, CommandTimedOut
from staddle.limits.usage import Usage
from staddle.sandbox.result import Reason, Result, signal_in


def result(
    exit_code: int = 0, reason: Reason = Reason.exited, out: bytes = b"", err: bytes = b"", **more: object
) -> Result:
    fields = {"signal": None, "shell_exited": False, "cwd": "/workspace", "usage": Usage(0.5), **more}
    return Result("make", exit_code, out, err, 0.5, reason, **fields)


def test_the_bytes_are_exact_and_the_text_is_readable() -> None:
    got = result(out=b"caf\xc3\xa9 \xff\n", err=b"\xe2\x82")
    assert got.stdout == "café \ufffd\n"
    assert got.stderr == "\ufffd"
    assert got.stdout_bytes == b"caf\xc3\xa9 \xff\n"


def test_only_a_command_that_came_to_its_own_end_with_0_is_ok() -> None:
    assert result().ok
    assert result(reason=Reason.shell_exited, shell_exited=True).ok  # exit 0
    assert not result(1).ok
    assert not result(0, Reason.cancelled).ok
    assert not result(124, Reason.timeout).ok
    assert result(124, Reason.timeout).timed_out
    assert not result(124).timed_out  # `timeout 1 sleep 2` inside is its own affair


def test_every_reason_of_the_design_is_there_and_is_text() -> None:
    names = "exited signalled timeout cancelled output_limit memory processes disk shell_exited closed"
    names += " not_started"
    assert {str(reason) for reason in Reason} == set(names.split())
    assert Reason.timeout == "timeout"


def test_check_returns_the_result_or_raises_with_it() -> None:
    fine = result()
    assert fine.check() is fine
    failed = result(2, err=b"first\nmake: *** no rule\n\n", out=b"partial")
    with pytest.raises(CommandFailed) as failure:
        failed.check()
    assert failure.value.result is failed
    assert (failure.value.status, failure.value.output) == (2, b"partial")
    assert str(failure.value) == "'make' ended with 2: make: *** no rule"
    with pytest.raises(CommandTimedOut):
        result(124, Reason.timeout).check()


def test_what_the_command_said_is_made_harmless_in_the_message() -> None:
    with pytest.raises(CommandFailed) as failure:
        result(1, err=b"\x1b]0;gotcha\x07").check()
    assert "\x1b" not in str(failure.value)


def test_as_plain_data_it_is_json() -> None:
    data = json.loads(json.dumps(result(3, out=b"\xff\nx", stdout_bytes_dropped=7, stdout_cut=2).as_dict()))
    assert data["exit_code"] == 3
    assert data["stdout"] == "\ufffd\n[… 7 bytes left out …]\nx"
    assert data["reason"] == "exited"
    assert data["stdout_truncated"] is True
    assert data["usage"]["wall"] == 0.5
    assert "stdout_bytes" not in data


def test_it_survives_a_process_boundary() -> None:
    got = result(out=b"x")
    assert pickle.loads(pickle.dumps(got)) == got  # noqa: S301 - our own


def test_a_status_above_128_means_a_signal_where_there_is_one() -> None:
    assert signal_in(137) == 9
    assert signal_in(128) is None
    assert signal_in(255) is None
    assert signal_in(1) is None


def test_what_is_left_out_is_marked_between_whole_lines() -> None:
    out = b"1\n2\n3\n45" + b"96\n97\n98\n"
    got = result(out=out, stdout_bytes_dropped=100, stdout_cut=8)
    assert got.stdout == "1\n2\n3\n[… 105 bytes left out …]\n97\n98\n"
    assert got.stdout_parts == ("1\n2\n3\n", "97\n98\n")
    assert got.stdout_bytes == out
    assert result(out=out).stdout_parts == (out.decode(), "")
    line = result(out="é".encode() * 3 + b"z" * 4, stdout_bytes_dropped=10, stdout_cut=5)
    assert line.stdout == "éé\n[… 10 bytes left out …]\nzzzz"


def test_the_text_for_a_model_has_streams_and_end() -> None:
    assert result(out=b"fine\n").text() == "fine"
    failed = result(3, out=b"out\n", err=b"err\n")
    assert failed.text() == str(failed) == "out\nerr\n[ended with 3]"
    late = result(124, Reason.timeout, out=b"begun\n", why="it was ended after 5 seconds")
    assert late.text() == "begun\n[was ended after 0.5 seconds]", "once is enough"
    long = result(out=b"".join(b"line %d\n" % n for n in range(1000)))
    short = long.text(200)
    assert len(short) <= 200
    assert short.startswith("line 0\n")
    assert short.endswith("\nline 999")
    assert " characters left out …]\n" in short
    assert long.text(None, lines=4) == "line 0\nline 1\n[… 996 lines left out …]\nline 998\nline 999"
    assert result(out=b"x" * 1000).text(100).startswith("x")


def test_its_repr_is_short() -> None:
    shown = repr(result(1, out=b"x" * 100_000))
    assert shown == "<Result of 'make': ended with 1, 100,000 bytes of stdout, 0.5 s>"
