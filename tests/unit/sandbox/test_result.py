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
    data = json.loads(json.dumps(result(3, out=b"\xff", stdout_bytes_dropped=7).as_dict()))
    assert data["exit_code"] == 3
    assert data["stdout"] == "\ufffd"
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
