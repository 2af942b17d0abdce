"""Text within a bound, and calls that are repeated."""

from __future__ import annotations

import asyncio

import pytest

from staddle.mcp.calls import clipped
from staddle.mcp.file_tools import media_type
from staddle.mcp.questions import MOST_LISTED, question
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
    from staddle import Change, Review

    changes = (Change("added", "/workspace/a\nyes\x1b[2J"),) * (MOST_LISTED + 1)
    rows = question(Review((), (), (), (), changes=changes), "main", "/here", overwrite=False).splitlines()
    assert rows[0] == f"Write {MOST_LISTED + 1} changes of the sandbox main to /here?"
    assert rows[1:-2] == ["added /workspace/a\\x0ayes\\x1b[2J"] * MOST_LISTED
    assert rows[-2] == "… and 1 more"


def test_a_question_begins_with_what_matters() -> None:
    from staddle import Change, Review
    from staddle.layers.review import Conflict

    padding = [Change("added", f"/workspace/a{number:03}", "file", mode=0o644) for number in range(60)]
    matters = [
        Change("modified", "/workspace/z/package.json", "file", mode=0o644),
        Change("added", "/workspace/z/tool", "file", mode=0o755),
        Change("modified", "/workspace/z/code.c", "file", mode=0o644),
    ]
    conflicts = (Conflict("z/code.c", "modified", "the host changed it"),)
    review = Review((), (), conflicts, (), changes=(*padding, *matters))
    text = question(review, "main", "/here", overwrite=True)
    rows = text.splitlines()
    assert "REPLACES" in rows[1]
    assert rows[2] == "z/code.c: the host changed it"
    assert rows[3:6] == [
        "modified /workspace/z/package.json",
        "added /workspace/z/tool (executable)",
        "modified /workspace/z/code.c",
    ]
    assert "REPLACES" not in question(review, "main", "/here", overwrite=False)
    assert review.digest[:16] in rows[-1]
