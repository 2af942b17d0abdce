"""What travels is plain: a result without its layers, an error that any process can load."""

from __future__ import annotations

import asyncio
import pickle
from concurrent.futures import Future
from typing import Any

import pytest

from staddle import Change, Reason, Result
from staddle.errors import CommandFailed, FleetError, InvalidCall
from staddle.fleet.cluster import RESOURCE, capacity_of
from staddle.fleet.messages import checked_options, portable, portable_error
from staddle.fleet.steps import Sleep, Within, finish, finish_awaited, step
from staddle.fleet.task_map import Progress, line
from staddle.limits.usage import Usage

pytestmark = pytest.mark.same_for_everyone


def change() -> Change:
    made = Change("added", "/workspace/a")
    made.__dict__["_source"] = lambda: None  # what cannot be pickled
    return made


def result() -> Result:
    return Result(
        "true", 1, b"\x80\x04.", b"", 0.1, Reason.exited, None, False, "/", Usage(0.1), changes=(change(),)
    )


def test_a_result_travels_without_its_layers() -> None:
    sent = pickle.loads(pickle.dumps(portable(result())))  # noqa: S301 - our own
    assert sent == result()
    assert "_source" not in sent.changes[0].__dict__
    assert portable([change()]) == [change()]


def test_an_error_travels_with_its_facts() -> None:
    error = CommandFailed("no", why="because", status=3, output=b"out", result=result())
    sent = pickle.loads(pickle.dumps(portable_error(error)))  # noqa: S301
    assert (sent.status, sent.why, sent.result.exit_code) == (3, "because", 1)
    assert isinstance(portable_error(FileNotFoundError(2, "No such file")), FileNotFoundError)


def test_an_error_of_an_unknown_class_is_told_in_words() -> None:
    class Odd(Exception):
        """Of this function only."""

    found = portable_error(Odd("very"))
    assert type(found) is FleetError
    assert "Odd" in str(found)
    assert "very" in str(found)
    assert type(portable_error(Odd("very"), foreign=True)) is FleetError  # it cannot be pickled
    assert type(portable_error(LookupError("own"), foreign=True)) is LookupError


def test_options_that_are_of_one_process_are_refused() -> None:
    with pytest.raises(InvalidCall, match="does not work in a fleet"):
        checked_options({"cancel": object()})
    assert checked_options({"timeout": None, "cwd": None, "env": {"A": "1"}}) == {
        "timeout": None,
        "env": {"A": "1"},
    }


async def work(future: Future[int]) -> int:
    await step(Sleep(0))
    try:
        return int(await step(Within(future, 60)))
    except ValueError:
        return -1


@pytest.mark.parametrize("face", ["thread", "loop"])
def test_one_implementation_has_two_faces(face: str) -> None:
    def driven(future: Future[int]) -> Any:
        return finish(work(future)) if face == "thread" else asyncio.run(finish_awaited(work(future)))

    good: Future[int] = Future()
    good.set_result(7)
    bad: Future[int] = Future()
    bad.set_exception(ValueError())
    assert (driven(good), driven(bad)) == (7, -1)


def test_the_capacity_of_a_node() -> None:
    assert capacity_of({"CPU": 2.0, "memory": 64.0 * 2**30}, None) == 256
    assert capacity_of({"CPU": 8.0, "memory": 1.0 * 2**30}, None) == 32
    assert capacity_of({"CPU": 8.0}, 5) == 5
    assert capacity_of({"CPU": 8.0, RESOURCE: 3.0}, 5) == 3
    assert capacity_of({"CPU": 0.0}, None) == 1


def test_progress_is_told() -> None:
    seen: list[object] = []
    progress = Progress(lambda *now: seen.append(now), 4)
    progress.show(1, 0)
    progress.close()
    assert seen == [(1, 0, 4)]
    assert line(2, 1, 4, 2.0) == "[###############...............] 2/4 done, 1 failed, 1.0/s"
    assert line(2, 0, None, 2.0) == "2 done, 0 failed, 1.0/s"
