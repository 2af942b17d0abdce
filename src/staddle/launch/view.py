"""Inspect what a command will see: programs on its PATH, and protected names that appeared."""

from __future__ import annotations

import os

from ..errors import CommandNotFound
from ..paths import covers, upward
from ..policy.plan import COPY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..events import Event
    from ..policy.plan import Plan

#: Builtins of shells that people expect to be programs.
_OF_SHELLS = frozenset(
    ("alias", "cd", "export", "history", "jobs", "pushd", "set", "source", "ulimit", "unset")
)


def hidden_program(plan: Plan, name: str) -> str:
    """Return the path of an executable that is named by path but hidden inside; else ""."""
    if "/" not in name or plan.base:
        return ""
    path = os.path.normpath(os.path.join(plan.cwd, name))
    real = os.path.realpath(path)
    if plan.shows(real) and (plan.shows(path) or any(covers(link.path, path) for link in plan.links)):
        return ""
    if plan.outside(real) != real:
        return ""  # another file is at that path inside
    return path if os.path.isfile(real) and os.access(real, os.X_OK) else ""


def find_program(plan: Plan, name: str) -> str:
    """Return the path of the program `name` inside. Raises CommandNotFound (127 or 126)."""
    if "/" in name:
        places = [name if name.startswith("/") else os.path.join(plan.cwd, name)]
    else:
        search = plan.environment().get("PATH", "/usr/bin:/bin")
        places = [os.path.join(directory or plan.cwd, name) for directory in search.split(":")]
    there_but_hidden = there_but_not_executable = ""
    for place in places:
        if plan.base and (found := _in_the_base(plan, place)):
            if not os.access(found, os.X_OK):
                there_but_not_executable = place
                continue
            return place
        try:
            is_file = os.path.isfile(place)
        except ValueError as error:
            raise CommandNotFound(
                f"{name!r} cannot be a program", why=str(error), fix="name a program, or its path"
            ) from None
        if not is_file:
            continue
        real = os.path.realpath(place)
        if plan.outside(real) != real:
            continue  # the host's own; another file is at that path inside
        if not plan.shows(real):
            there_but_hidden = "" if plan.base else place
        elif not os.access(place, os.X_OK):
            there_but_not_executable = place
        else:
            return place
    if there_but_not_executable:
        raise CommandNotFound(
            f"{there_but_not_executable!r} is not executable",
            why="it has no execute permission",
            status=126,
            fix="chmod +x it, or name an interpreter in front of it",
        )
    if not there_but_hidden and "/" not in name and not plan.base:
        there_but_hidden = _on_our_path(name)
        if there_but_hidden and plan.shows(os.path.realpath(there_but_hidden)):
            there_but_hidden = ""
    if there_but_hidden:
        raise CommandNotFound(
            f"{name!r} is not visible inside",
            why=f"the policy does not let {there_but_hidden!r} be read",
            fix=f"grant it with policy.with_read({os.path.dirname(there_but_hidden)!r})"
            + ("" if there_but_hidden in places else ", and give its full path"),
        )
    looked = (
        "nothing is there inside"
        if "/" in name
        else f"it is in none of the {len(places)} directories of the PATH inside"
    )
    if " " in name.strip() or name in _OF_SHELLS:
        what = "it has a space in it" if " " in name.strip() else "it is a command of shells"
        raise CommandNotFound(
            f"there is no program {name!r}",
            why=what,
            fix=f"have a shell run it: bash -c {name!r} (staddle run -c {name!r}), or write words one by one",
        )
    if plan.base:
        raise CommandNotFound(
            f"the base {plan.base!r} has no program {name!r}",
            why=looked,
            fix="use a base that has it, or grant it from the host",
        )
    raise CommandNotFound(
        f"there is no program {name!r}",
        why=looked,
        fix="give its full path, and grant its directory with policy.with_read()",
    )


def _on_our_path(name: str) -> str:
    """Return the path of a program on our own PATH, or ""."""
    for directory in os.environ.get("PATH", "").split(":"):
        place = os.path.join(directory, name)
        if directory.startswith("/") and os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    return ""


def _in_the_base(plan: Plan, path: str) -> str:
    """Return the host's path of the file at `path` inside, following the base's own links, or ""."""
    from ..hostinfo.resolution import HostPaths

    found = HostPaths(plan.base).find(path)
    outside = plan.outside(found.path)
    return outside if found.kind == "file" and plan.shows(found.path) and outside != found.path else ""


def appeared(plan: Plan) -> tuple[Event, ...]:
    """Return events for protected names that appeared below a writable path since the plan was made.

    The kernel refuses changes to existing ones. Refusing a new one would require a file in the user's tree,
    so it is reported instead.
    """
    if not any(grant.access == "write" and grant.directory for grant in plan.grants):
        return ()
    from ..events import Event

    return tuple(
        Event(
            "violation",
            path,
            "a protected name appeared during the run",
            "remove it, or review it before you use it",
        )
        for path in sorted(_new_names(plan))
    )


def _new_names(plan: Plan) -> set[str]:
    from ..hostinfo.protected import find_protected

    writable = {grant.path for grant in plan.grants if grant.access == "write"}
    held = {guard.path for guard in plan.guards} | {item.path for item in plan.hidden}
    covered = [scratch.path for scratch in plan.scratch]
    found: set[str] = set()
    for grant in plan.grants:
        if grant.access == "write" and grant.directory and grant.origin != COPY:
            unseen = [path for path in covered if covers(grant.path, path)]
            for path in find_protected(grant.path, plan.unprotect):
                if not any(covers(item, path) for item in unseen):
                    found.add(path)
    return {path for path in found if path not in writable and held.isdisjoint(_below_grant(path, writable))}


def _below_grant(path: str, writable: set[str]) -> Iterator[str]:
    """Yield `path` and its parents, up to the write grant that contains it."""
    for place in upward(path):
        if place in writable:
            return
        yield place
