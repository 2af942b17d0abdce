"""Where the view is built. What is built there is for the tests with a kernel."""

from __future__ import annotations

import os

import pytest

from staddle.errors import LaunchFailed
from staddle.mounts import builder
from staddle.mounts.builder import place_for
from staddle.mounts.operations import Bind


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "isdir", lambda path: path in ("/mnt", "/media", "/run"))
    monkeypatch.setattr(os.path, "islink", lambda path: path == "/mnt")


def shown(*paths: str) -> list[Bind]:
    return [Bind(path, False, "") for path in paths]


def test_nothing_is_shown_from_there_and_no_link_leads_there() -> None:
    assert place_for(shown("/", "/usr", "/mediax")) == "/media"
    assert place_for(shown("/media")) == "/run"
    assert place_for(shown("/media/disk/x")) == "/run"


def test_when_something_is_shown_from_everywhere_it_is_taken_before() -> None:
    assert place_for(shown("/media/disk", "/run/x")) == "/media"


def test_a_host_without_any_of_them_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "_PLACES", ("/none",))
    with pytest.raises(LaunchFailed, match="none of the directories"):
        place_for([])
