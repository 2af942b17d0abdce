"""Resolve the rules of a policy to paths on this host, each with its origin and links."""

from __future__ import annotations

import os
import pwd

from ..errors import PathEscape, PolicyError
from ..paths import above, absolute, covers, join, not_for
from . import installation, presets, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Literal

    from ..hostinfo.resolution import HostPaths, PathContext, ResolvedPath
    from .policy import Policy

    Field = Literal["read", "write", "deny", "sockets", "home"]


#: The homes of accounts, by the identity of the passwd file.
_ACCOUNTS: dict[tuple[int, int, int], tuple[str, ...]] = {}


class ResolvedRule:
    """One rule of a policy, resolved on this host.

    `link` is its own path if it is a link. `asked` is False for rules of a preset or the system.
    """

    __slots__ = ("asked", "field", "link", "origin", "place")

    def __init__(
        self, field: Field, place: ResolvedPath, origin: str, *, asked: bool = False, link: str = ""
    ) -> None:
        self.field, self.place, self.origin, self.asked, self.link = field, place, origin, asked, link


def resolve(policy: Policy, context: PathContext, host: HostPaths) -> list[ResolvedRule]:
    """Return all rules of `policy`, its preset and the system. Raises PolicyError for an invalid rule."""
    asked = list(_from_policy(policy, context, host))
    rules = [*asked, *_from_preset(policy, context, host)]
    rules += preset_denies(policy, context, host, asked)
    if policy.system and policy.base is None:
        for path in system.directories():
            place = host.find(path)
            if place.kind == "directory":
                rules.append(ResolvedRule("read", place, "system"))
    return rules


def _from_policy(policy: Policy, context: PathContext, host: HostPaths) -> Iterator[ResolvedRule]:
    fields: tuple[tuple[Literal["read", "write"], tuple[str, ...]], ...] = (
        ("read", policy.read),
        ("write", policy.write),
    )
    for field, paths in fields:
        for path in paths:
            place = host.find(context.at(path))
            must_be_grantable(field, path, place)
            yield ResolvedRule(field, place, f"{field} {path!r}", asked=True)
    yield from denied(policy, context, host)
    for path in policy.sockets:
        place = host.find(context.at(path))
        if reason := not_for("sockets", place.path):
            raise _refused("sockets", path, place, reason)
        if place.kind not in ("socket", "missing", "unreadable"):
            raise PolicyError(
                f"sockets names {path!r}", why="it is not a socket", fix="use read or write for files"
            )
        yield ResolvedRule("sockets", place, f"sockets {path!r}", asked=True)


def denied(policy: Policy, context: PathContext, host: HostPaths) -> Iterator[ResolvedRule]:
    """Yield the denies of `policy` and of the installation, which apply to every policy."""
    for path in policy.deny:
        place = host.find(context.at(path))
        if place.path == "/":
            raise _refused("deny", path, place, not_for("deny", "/"))
        yield ResolvedRule(
            "deny", place, f"deny {path!r}", asked=True, link=_itself(context.at(path), place, host)
        )
    for path in installation.denied():
        at = context.at(path)
        place = host.find(at)
        yield ResolvedRule(
            "deny", place, f"{installation.PATH} denies {path!r}", asked=True, link=_itself(at, place, host)
        )


def _from_preset(policy: Policy, context: PathContext, host: HostPaths) -> Iterator[ResolvedRule]:
    """Yield the preset's grants for paths that exist. A preset is the same on every host.

    `preset_denies` does the same for denies. Enforcing a deny for a path that may appear later is expensive
    for a backend, so users have to ask for it in `deny`.
    """
    origin = f"preset {policy.preset}"
    if policy.preset != "coding-agent":
        return
    home = context.at(policy.home or "~")
    optional: tuple[tuple[Literal["read", "write"], tuple[str, ...]], ...] = (
        ("write", presets.AGENT_CONFIG),
        ("read", presets.AGENT_TOOLS),
    )
    for field, paths in optional:
        for path in paths:
            place = host.find(absolute(path, "", home))
            if place.kind in ("directory", "file") and not not_for(field, place.path):
                yield ResolvedRule(field, place, origin)


def preset_denies(
    policy: Policy, context: PathContext, host: HostPaths, granted: Iterable[ResolvedRule]
) -> Iterator[ResolvedRule]:
    """Yield the preset's denies, for the home of the starting user and each home that `granted` shows."""
    denied = presets.denied(policy.preset)
    if not denied:
        return
    own = context.at(policy.home or "~") if policy.preset == "coding-agent" else context.home
    shown = [rule.place.path for rule in granted if rule.place.kind == "directory" and rule.field != "deny"]
    for home in dict.fromkeys((own, *_homes(shown))):
        for path in _there(denied if home == own else [path for path in denied if path[0] == "~"], home):
            at = absolute(path, "", home)
            place = host.find(at)
            if place.path != "/" and place.kind not in ("missing", "unreadable", "circle"):
                yield ResolvedRule("deny", place, f"preset {policy.preset}", link=_itself(at, place, host))


def _homes(shown: Iterable[str]) -> Iterator[str]:
    """Yield the homes in these directories: of this host's accounts, and directories that look like one."""
    directories = list(shown)
    if not directories:
        return
    for home in _homes_of_accounts():
        if any(covers(directory, home) for directory in directories):
            yield home
    for directory in directories:
        if any(os.path.lexists(f"{directory}/{name}") for name in presets.MARKS_OF_A_HOME):
            yield directory


def _homes_of_accounts() -> tuple[str, ...]:
    """Return the homes of the host's accounts, read again when the file has changed."""
    try:
        status = os.stat("/etc/passwd")
    except OSError:
        return ()
    key = status.st_ino, status.st_size, status.st_mtime_ns
    if key not in _ACCOUNTS:
        homes = {os.path.normpath(entry.pw_dir) for entry in pwd.getpwall() if entry.pw_dir[:1] == "/"}
        _ACCOUNTS.clear()
        _ACCOUNTS[key] = tuple(sorted(homes - {"/"}))
    return _ACCOUNTS.get(key, ())


def _there(paths: Iterable[str], home: str) -> Iterator[str]:
    """Yield the preset's paths that exist. A listing of the home rules most of them out."""
    try:
        names = frozenset(os.listdir(home)) if home else frozenset()
    except OSError:
        names = None
    for path in paths:
        if names is not None and path.startswith("~/") and path[2:].partition("/")[0] not in names:
            continue
        if os.path.lexists(absolute(path, "", home)):
            yield path


def _itself(path: str, place: ResolvedPath, host: HostPaths) -> str:
    """Return the path of the link if `path` itself is a link, else an empty string."""
    if not place.links:
        return ""
    parent, _, name = path.rpartition("/")
    here = join(host.find(parent or "/").path, name)
    return here if any(here == link for link, _ in place.links) else ""


def refuse_planted_links(rules: Iterable[ResolvedRule], written: set[str]) -> None:
    """Refuse grants through a link that a sandbox may have created, because it would widen the next sandbox.

    A deny may lead through such a link, because it only removes access.
    """
    for rule in rules:
        if rule.field == "deny":
            continue
        for link, target in rule.place.links:
            beneath = next((path for path in above(link) if path in written), None)
            if beneath is not None:
                raise PathEscape(
                    f"{rule.origin} leads through the link {link!r} to {target!r}",
                    why=f"{beneath!r} may be written, so a sandbox could have made that link",
                    fix=f"grant {rule.place.path!r} itself, or replace the link",
                )


def must_be_grantable(field: Literal["read", "write"], path: str, place: ResolvedPath) -> None:
    """Raise PolicyError if this path cannot be granted."""
    if place.kind == "missing":
        why = f"it points to {place.path!r}, which does not exist" if place.links else "it does not exist"
        raise PolicyError(f"{field} names {path!r}", why=why, fix="create it, or leave it out")
    if place.kind == "circle":
        raise PolicyError(f"{field} names {path!r}", why="its links form a circle", fix="repair them")
    if place.kind == "unreadable":
        raise PolicyError(
            f"{field} names {path!r}",
            why="a directory above it cannot be entered",
            fix="leave it out, or run as a user who may",
        )
    if reason := not_for(field, place.path):
        raise _refused(field, path, place, reason)
    if place.kind == "socket":
        raise PolicyError(f"{field} names {path!r}", why="it is a socket", fix="name it in sockets")
    if place.kind == "other":
        raise PolicyError(
            f"{field} names {path!r}",
            why="it is a device or a pipe",
            fix="grant a file or a directory",
        )


def _refused(field: str, path: str, place: ResolvedPath, reason: tuple[str, str] | None) -> PolicyError:
    why, fix = reason or ("", "")
    return PolicyError(f"{field} names {path!r}, which is {place.path!r}", why=why, fix=fix)
