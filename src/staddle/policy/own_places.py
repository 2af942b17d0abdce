"""Keep staddle's own places (`staddle.places`) from being written, whatever the policy grants.

A grant at or below one of them is refused. Below a grant that contains one, the place is guarded as protected
names are. It must exist for that: an empty directory is made for a missing one before the command starts, and
removed afterwards. Otherwise the command could make it, and staddle would trust it later.
"""

from __future__ import annotations

import os

from .. import places
from ..errors import LaunchFailed, PathEscape, PolicyError
from .paths import covers
from .plan import Guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .grants import Visibility
    from .plan import Grant, Plan
    from .resolution import HostPaths

ORIGIN = "staddle's own"


def own_paths(grants: Mapping[str, Grant], host: HostPaths) -> dict[str, str]:
    """Path and kind of each place in what may be written. PolicyError for a grant in one of them."""
    written = [path for path, grant in grants.items() if grant.access == "write"]
    if not written:
        return {}
    found: dict[str, str] = {}
    known = {place: host.find(place) for place in places.trusted()}
    for path in written:
        inside = next((place.path for place in known.values() if covers(place.path, path)), None)
        if (inside is not None or places.is_shared(path)) and not places.is_worktree(path):
            raise PolicyError(
                f"{grants[path].origin} cannot be granted",
                why=f"{inside or path!r} is staddle's own: what is stored there is trusted later",
                fix="work in another directory",
            )
    for name, place in known.items():
        links = [link for link, _ in place.links if any(covers(path, link) for path in written)]
        if links:
            raise PathEscape(
                f"{links[0]!r} is a link, and leads to {place.path!r}, which is staddle's own",
                why="the sandbox could replace the link",
                fix="put the real directory there, or grant less",
            )
        if any(covers(path, place.path) for path in written):
            if place.kind == "missing" and name == os.environ.get(places.JAIL_CONFIG):
                raise PolicyError(
                    f"{places.JAIL_CONFIG} names {name!r}, which does not exist",
                    why="the sandbox could make that file, and it would be obeyed",
                    fix=f"make it, or unset {places.JAIL_CONFIG}",
                )
            if place.kind != "missing" or _can_appear(place.path):
                found[place.path] = place.kind
    return found


def _can_appear(path: str) -> bool:
    """Whether this user, and so a sandbox, could make `path`."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return os.access(path, os.W_OK) or os.stat(path).st_uid == os.geteuid()


def guard_own(own: Mapping[str, str], sight: Visibility) -> dict[str, Guard]:
    """Guards for the places that can be seen and written; the outermost of them."""
    seen = {path: kind for path, kind in own.items() if _is_written(sight.through(path))}
    return {
        path: Guard(path, kind != "file", ORIGIN)
        for path, kind in seen.items()
        if not any(path != other and covers(other, path) for other in seen)
    }


def _is_written(grant: Grant | None) -> bool:
    return grant is not None and grant.access == "write"


def make_own(plan: Plan) -> None:
    """Make the guarded places that do not exist, before a command starts; removed when this process exits.

    Runs outside, with the rights of the starting user.
    """
    for guard in plan.guards:
        if guard.origin == ORIGIN and guard.directory:
            _hold(plan.outside(guard.path))


#: The places that this process keeps for its sandboxes, each open with a shared lock, and what it has made.
_held: dict[str, int] = {}
_made: list[str] = []


def _hold(path: str) -> None:
    """Make a place if it is missing, and have no other process of ours remove it while this one runs."""
    if path in _held and os.path.lexists(path):
        return
    import atexit
    import fcntl

    while True:
        missing = []
        place = path
        while not os.path.lexists(place):
            missing.append(place)
            place = os.path.dirname(place)
        for place in reversed(missing):
            try:
                places.make_directory(place)
            except FileExistsError:
                continue  # another process needs it as well
            except OSError as error:
                raise LaunchFailed(
                    f"{place!r} cannot be made",
                    why=f"it is staddle's own, below what may be written, and must exist: {error.strerror}",
                    fix="make it, or grant less",
                ) from None
            if not _made:
                atexit.register(remove_made, os.getpid())
            _made.append(place)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # the process that had made it has just removed it
        except OSError:
            return  # a file, or not ours: nothing that we would remove
        fcntl.flock(fd, fcntl.LOCK_SH)
        if os.path.lexists(path):
            _held[path] = fd
            return
        os.close(fd)


def remove_made(process: int = 0) -> None:
    """Remove the empty directories that `make_own` made, unless a sandbox of another process needs them.

    Nothing, if this is not `process` but a fork of it.
    """
    import fcntl

    for path in reversed(_made if process in (0, os.getpid()) else []):
        try:
            if path in _held:
                fcntl.flock(_held[path], fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rmdir(path)
        except OSError:
            pass  # in use by another process, or no longer empty
