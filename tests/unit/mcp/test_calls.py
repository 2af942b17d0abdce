"""Text within a bound, and calls that are repeated."""

from __future__ import annotations

import asyncio

import pytest

from staddle.mcp.calls import clipped
from staddle.mcp.file_tools import media_type
from staddle.mcp.questions import listed_changes
from staddle.mcp.sandboxes import ANSWERS, ServedSandbox

pytestmark = pytest.mark.same_for_everyone


def test_a_long_text_keeps_its_ends_and_says_what_is_missing() -> None:
    text = "".join(f"{n}\n" for n in range(1000))
    cut, was_cut = clipped(text, 100)
    head, _, tail = cut.partition("\n[…")
    assert was_cut
    assert text.startswith(head)
    assert text.endswith(tail.partition("…]\n")[2])
    assert int(tail.split()[0]) == len(text) - len(head) - len(tail.partition("…]\n")[2])
    assert clipped("short", 100) == ("short", False)
    assert clipped("x" * 1000, 10)[0].startswith("xxxxx\n[…")


def test_media_are_known_by_their_first_bytes() -> None:
    assert media_type(b"\x89PNG\r\n\x1a\n...") == "image/png"
    assert media_type(b"RIFF....WEBP") == "image/webp"
    assert media_type(b"RIFF....WAVE") == "audio/wav"
    assert media_type(b"\x7fELF\0") == "application/octet-stream"
    assert media_type("é\n".encode()) == "text/plain"


def test_a_repeated_call_gets_the_first_answer_also_while_it_runs() -> None:
    async def task() -> None:
        handle, done = ServedSandbox("a"), []

        async def work() -> int:
            await asyncio.sleep(0)
            done.append(1)
            return len(done)

        assert await asyncio.gather(*(handle.once("x", work) for _ in range(5))) == [1] * 5
        assert [await handle.once(None, work), await handle.once("y", work)] == [2, 3]
        for number in range(ANSWERS):
            await handle.once(f"z{number}", work)
        assert await handle.once("x", work) > 3  # forgotten by now

    asyncio.run(task())


def test_a_call_that_failed_may_be_made_again() -> None:
    async def task() -> None:
        handle = ServedSandbox("a")

        async def fails() -> int:
            raise FileNotFoundError

        async def works() -> int:
            return 1

        with pytest.raises(FileNotFoundError):
            await handle.once("x", fails)
        assert await handle.once("x", works) == 1

    asyncio.run(task())


def test_a_name_in_a_question_stays_on_its_line() -> None:
    from staddle import Change

    rows = listed_changes([Change("added", "/workspace/a\nyes\x1b[2J")] * 3, 2).splitlines()
    assert rows == ["added /workspace/a\\x0ayes\\x1b[2J"] * 2 + ["… and 1 more"]
