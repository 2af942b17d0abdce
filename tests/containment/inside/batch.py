"""Runs attacks and twins, each in a child of its own, and prints one line of JSON for each."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
import traceback

from .kit import ATTACKS, TWINS, Refused

SECONDS = 15


def main(asked: dict) -> None:
    """Run what `asked` names, in order. A result is one line, so that a lost one is noticed."""
    world = asked["world"]
    _say({"kind": "start"})
    for name in asked["attacks"]:
        attack, function = ATTACKS[name]
        _in_child("attack", name, function, world, attack.reached)
    for name in asked["twins"]:
        _in_child("twin", name, TWINS[name], world, frozenset())
    _say({"kind": "end"})


def _in_child(kind: str, name: str, function, world: dict, reached: frozenset) -> None:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        try:
            _say({"kind": kind, "name": name, **_outcome(function, world, name, reached)})
        finally:
            os._exit(0)
    how = _wait(child)
    if how:
        why = signal.Signals(how).name if how > 0 else f"exit {-how}"
        _say({"kind": kind, "name": name, "outcome": "killed", "why": why, "detail": ""})


def _wait(child: int) -> int:
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)


def _outcome(function, world: dict, name: str, reached: frozenset) -> dict:
    try:
        seen = function({**world, "name": name})
    except Refused as refused:
        return {"outcome": "refused", "why": "nothing", "detail": str(refused)}
    except OSError as error:
        why = errno.errorcode.get(error.errno or 0, type(error).__name__)
        return {
            "outcome": "through" if why in reached else "refused",
            "why": why,
            "detail": str(error)[:200],
        }
    except BaseException:
        return {"outcome": "broken", "why": "exception", "detail": traceback.format_exc()[-1500:]}
    return {"outcome": "through", "why": "", "detail": repr(seen)[:1000]}


def _say(line: dict) -> None:
    data = json.dumps(line).encode() + b"\n"
    while data:
        try:
            data = data[os.write(1, data) :]
        except BlockingIOError:
            time.sleep(0.01)
