"""What the helper says about a command that did not start."""

from __future__ import annotations

import pytest

from staddle.ipc.wire import CONFINEMENT, EXEC, NotStarted, not_started, sentence, written


def test_silence_means_that_the_command_was_started() -> None:
    assert sentence(b"") is None


@pytest.mark.parametrize(
    "why", ["no such file", "'/a b' cannot be granted: Permission denied", "ü \N{SNOWMAN}"]
)
def test_a_sentence_arrives_as_it_was_said(why: str) -> None:
    assert sentence(written(CONFINEMENT, why)) == why


def test_names_that_are_not_text_do_not_stop_the_sentence() -> None:
    assert sentence(written(CONFINEMENT, "\udcff does not exist")) == "\\udcff does not exist"


def test_it_fits_into_one_write() -> None:
    assert len(written(CONFINEMENT, "x" * 100_000)) <= 4096


@pytest.mark.parametrize("noise", [b"x", b"3", b"3 ", b"\xff\xfe", b"no number here"])
def test_anything_else_is_a_failure_too(noise: bytes) -> None:
    assert sentence(noise)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (NotStarted(EXEC, "as it is"), "as it is"),
        (OSError(1, "mount: Operation not permitted"), "mount: Operation not permitted"),
        (PermissionError(13, "Permission denied", "/a"), "Permission denied: '/a'"),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
def test_every_error_is_a_reason(error: BaseException, why: str) -> None:
    assert str(not_started(error)) == why
    assert not_started(error).code == (EXEC if isinstance(error, NotStarted) else CONFINEMENT)
