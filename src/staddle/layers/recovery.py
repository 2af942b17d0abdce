"""Finishing, or taking back, what a commit left that was killed on the way."""

from __future__ import annotations

import fcntl
import json
import os

from ..errors import StaddleError
from .commit_dir import FORMAT, erase, homes, open_home, tidy
from .journal import KINDS, Steps


def recover() -> list[str]:
    """Finish what commits left that were killed on the way, or take it back; the targets concerned.

    To be called at a start: without such a commit it costs one look at each place. A target
    that is not there, or was changed in between so that neither way is open, is left as it is.
    """
    touched = []
    for home in homes():
        try:
            directory = open_home(home)
        except (OSError, StaddleError):
            continue  # none, or one that is not ours alone
        names = os.listdir(directory)
        os.close(directory)
        for name in names:
            target = _recovered(f"{home}/{name}")
            if target is not None:
                touched.append(target)
        tidy(home)
    return touched


def _recovered(path: str) -> str | None:
    """Deal with one directory of a commit whose process is gone; its target, if there was anything to do."""
    try:
        lock = os.open(f"{path}/lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        tidy(path, path)  # empty: the process that made it was killed that moment, or makes another one
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        where = _facts(f"{path}/where")
        if where is None:  # killed before anything else was made
            erase(path, None)
            return None
        target, slots = str(where["target"]), str(where["slots"])
        record = _facts(f"{path}/record")
        if record is not None:
            if not _finished(where, record):
                return None
            os.unlink(f"{path}/record")  # before the slots go, or they would be missed
        erase(path, slots)
        return target
    except (BlockingIOError, KeyError, TypeError, ValueError):
        return None  # in use; or not written by us
    finally:
        os.close(lock)


def _finished(where: dict[str, object], record: dict[str, object]) -> bool:
    """Go forward, or back where that is not possible any more; False when neither is."""
    rows = record["steps"]
    if not isinstance(rows, list):
        return False
    steps = [KINDS[row[0]](*row[1:]) for row in rows]
    opened: list[int] = []
    try:
        for place in (where["target"], where["slots"]):
            opened.append(os.open(str(place), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        if os.fstat(opened[0]).st_ino != where["inode"]:
            return False  # another directory has the name now
        work = Steps(opened[0], opened[1], steps)
        if work.can_go_on():
            try:
                work.do()
                return True
            except (OSError, StaddleError):
                pass
        if work.can_go_back():
            work.undo()
            return True
        return False
    except (OSError, StaddleError):
        return False
    finally:
        for fd in opened:
            os.close(fd)


def _facts(path: str) -> dict[str, object] | None:
    try:
        with open(path) as file:
            facts = json.load(file)
    except FileNotFoundError:
        return None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError("another version of staddle wrote it")
    return facts
