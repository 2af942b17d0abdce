"""`staddle tui` in tmux: typed with send-keys, resized, read with capture-pane. `make test-tui` runs it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.staddle_command import COMMAND
from tests.support.tmux import Tmux
from tests.support.waiting import unique_seconds, until, with_argument


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    work = tmp_path / "work"
    work.mkdir()
    made = Tmux(tmp_path, [*COMMAND, "tui", str(work), "--no-ask"])
    yield made
    made("kill-server")


def test_type_resize_read_and_leave(tmux: Tmux, tmp_path: Path) -> None:
    tmux.until("/workspace$", "no changes")
    tmux.keys("for i in a b c; do echo $i > $i; done; ls", "Enter")
    tmux.until("a  b  c", "3 changes: 3 added", "A a  2 B")
    tmux("resize-window", "-x", "80", "-y", "24")
    assert until(lambda: "3 changes: 3 added" not in tmux.screen())
    tmux.keys("F3")
    tmux.until("3 changes: 3 added")
    tmux("resize-window", "-x", "140", "-y", "40")
    tmux.until("/workspace$", "3 changes: 3 added")
    tmux.keys("F2")
    tmux.keys("seq -f line%g 1 200", "Enter")
    tmux.until("line200")
    tmux.keys("S-PPage")
    assert until(lambda: "line200" not in tmux.screen())
    tmux.keys("F9")
    tmux.until("Commit 3 changes")
    tmux.keys("c")
    tmux.until("no changes")
    assert sorted(os.listdir(tmp_path / "work")) == ["a", "b", "c"]
    tmux.keys("C-p")
    tmux.until("Close tab")
    tmux.keys("Escape")
    assert until(lambda: "Close tab" not in tmux.screen())
    tmux.keys("F10")
    tmux.until("ended with 0")
    tmux.keys("plain again")  # the terminal is as it was
    tmux.until("plain again")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGKILL"])
def test_a_signal_ends_it_and_everything_in_it(tmux: Tmux, tmp_path: Path, name: str) -> None:
    seconds = unique_seconds()
    tmux.until("/workspace$", "no changes")
    tmux.keys(f"(setsid sleep {seconds} &); sleep {seconds}", "Enter")
    assert until(lambda: len(with_argument(seconds)) == 2)
    number = signal.Signals[name]
    # The child that gives the terminal back has the same arguments, and ends with its parent.
    os.kill(min(with_argument(str(tmp_path / "work"))), number)
    if number == signal.SIGKILL:  # what the shell prints at that moment may be on the screen that is left
        assert until(lambda: tmux("list-panes", "-F", "#{alternate_on}").strip() == "0")
    else:
        tmux.until(f"ended with {128 + number}")
    tmux.keys("plain again")  # the terminal is as it was
    tmux.until("plain again")
    assert until(lambda: not with_argument(seconds) and not with_argument(str(tmp_path / "work")))
