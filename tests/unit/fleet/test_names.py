"""A sandbox of a fleet has the public names of a local one: each works, or says why it does not."""

from __future__ import annotations

import pytest

from staddle import AsyncSandbox, Sandbox, fleet
from staddle.errors import InvalidCall
from staddle.fleet import keeper_sandboxes, parts
from staddle.fleet.sandbox import REFUSED, AsyncFleetSandbox, AsyncFleetStream, FleetSandbox, FleetStream
from staddle.sandbox.files import Files
from staddle.sandbox.processes import Process
from staddle.sandbox.session import Session
from staddle.sandbox.stream import Stream
from staddle.sandbox.terminal import Terminal

pytestmark = pytest.mark.same_for_everyone

#: Names of a terminal that are about its descriptor on the node.
OF_A_DESCRIPTOR = {"fileno", "end_fileno", "read_some", "write_some", "failure", "closed"}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("local", "remote", "without"),
    [
        (Sandbox, FleetSandbox, set()),
        (AsyncSandbox, AsyncFleetSandbox, set()),
        (Files, parts.FleetFiles, set()),
        (Files, parts.AsyncFleetFiles, set()),
        (Process, parts.FleetProcess, set()),
        (Process, parts.AsyncFleetProcess, set()),
        (Session, parts.FleetSession, set()),
        (Session, parts.AsyncFleetSession, set()),
        (Terminal, parts.FleetTerminal, OF_A_DESCRIPTOR),
        (Terminal, parts.AsyncFleetTerminal, OF_A_DESCRIPTOR),
        (Stream, FleetStream, {"result"}),  # of each one
        (Stream, AsyncFleetStream, {"result"}),
    ],
)
def test_every_public_name_is_there(local: type, remote: type, without: set[str]) -> None:
    assert public(local) - public(remote) - without == set()


@pytest.mark.parametrize("name", fleet.__all__)
def test_every_name_of_the_package_is_found(name: str) -> None:
    assert getattr(fleet, name).__name__ == name


def test_a_name_that_is_refused_says_why_and_what_there_is_instead() -> None:
    for face in (FleetSandbox, AsyncFleetSandbox):
        for name, (why, fix) in REFUSED.items():
            with pytest.raises(InvalidCall) as refused:
                getattr(face, name)(object())
            assert (refused.value.why, refused.value.fix) == (why, fix)
    for path, (why, fix) in parts.REFUSED_PARTS.items():
        kind, _, name = path.partition(".")
        for face in (getattr(parts, f"Fleet{kind}"), getattr(parts, f"AsyncFleet{kind}")):
            with pytest.raises(InvalidCall) as refused:
                getattr(face, name)(object())
            assert (refused.value.why, refused.value.fix) == (why, fix)


def test_what_a_keeper_may_be_asked_for_exists() -> None:
    kinds = {"": Sandbox, "files": Files, "process": Process, "session": Session, "terminal": Terminal}
    assert set(keeper_sandboxes.ALLOWED) == set(kinds)
    for part, names in keeper_sandboxes.ALLOWED.items():
        assert names - public(kinds[part]) == set()
