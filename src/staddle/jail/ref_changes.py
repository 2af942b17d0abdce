"""Find the branches and tags of a repository that moved while an agent ran.

An agent commits, so it can write all refs: git keeps them in one place. A ref that is not its own
branch and was moved or removed meanwhile is reported, with the commit that it pointed to.
"""

from __future__ import annotations

import os

from .git import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

#: A repository with more loose refs, or a longer list of packed ones, is compared in part.
MOST_REFS = 50_000
MOST_BYTES = 64 << 20


def snapshot(common: str) -> dict[str, str]:
    """Every ref and what it says, loose ones before packed ones. Runs nothing and follows no link."""
    found: dict[str, str] = {}
    for line in text(f"{common}/packed-refs", MOST_BYTES).split("\n")[:-1]:
        commit, _, name = line.partition(" ")
        if name.startswith("refs/"):
            found[name] = commit
    pending = ["refs"]
    left = MOST_REFS
    while pending and left > 0:
        place = pending.pop()
        try:
            with os.scandir(f"{common}/{place}") as entries:
                for entry in entries:
                    name = f"{place}/{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(name)
                    elif not entry.name.endswith(".lock"):
                        left -= 1
                        found[name] = text(f"{common}/{name}").strip()
        except OSError:
            continue  # gone meanwhile
    return found


def moved(
    before: dict[str, str], after: dict[str, str], own: Collection[str]
) -> tuple[tuple[str, str, str], ...]:
    """(ref, where it was, where it is or "") for each that was there before and is elsewhere now."""
    return tuple(
        (name, was, after.get(name, ""))
        for name, was in sorted(before.items())
        if was and name not in own and after.get(name, "") != was
    )
