"""What a command will find inside: programs on its PATH, and what appeared during a run."""

from __future__ import annotations

import os

from .errors import CommandNotFound
from .events import Event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .policy.plan import Plan


def find_program(plan: Plan, name: str) -> str:
    """The path of the program `name` as the sandbox will see it, or CommandNotFound (127, or 126)."""
    if "/" in name:
        places = [name if name.startswith("/") else os.path.join(plan.cwd, name)]
    else:
        search = plan.environment().get("PATH", "/usr/bin:/bin")
        places = [os.path.join(directory or plan.cwd, name) for directory in search.split(":")]
    there_but_hidden = there_but_not_executable = ""
    for place in places:
        try:
            is_file = os.path.isfile(place)
        except ValueError as error:
            raise CommandNotFound(f"{name!r} cannot be a program", why=str(error)) from None
        if not is_file:
            continue
        if not plan.shows(os.path.realpath(place)):
            there_but_hidden = place
        elif not os.access(place, os.X_OK):
            there_but_not_executable = place
        else:
            return place
    if there_but_not_executable:
        raise CommandNotFound(
            f"{there_but_not_executable!r} is not executable", why="it has no execute permission", status=126
        )
    if there_but_hidden:
        raise CommandNotFound(
            f"{name!r} is not visible inside",
            why=f"the policy does not let {there_but_hidden!r} be read",
            fix=f"grant it with --read {os.path.dirname(there_but_hidden)}",
        )
    looked = (
        "" if "/" in name else f"it is in none of {', '.join(os.path.dirname(place) for place in places)}"
    )
    raise CommandNotFound(f"there is no program {name!r}", why=looked)


def appeared(plan: Plan) -> tuple[Event, ...]:
    """Protected names that are below a writable path now and were not when the plan was made.

    The kernel refuses changes to those that existed; a new one cannot be refused without
    placing something in the user's tree, so it is reported instead.
    """
    if not any(grant.access == "write" and grant.directory for grant in plan.grants):
        return ()
    from .policy import protected

    return tuple(
        Event(
            "violation",
            path,
            "a protected name appeared during the run",
            "remove it, or review it before you use it",
        )
        for path in sorted(protected.appeared(plan))
    )
