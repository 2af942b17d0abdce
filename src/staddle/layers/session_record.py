"""The record of a kept sandbox: the layers that outlive their process, by its name.

    <state>/staddle/sessions/NAME/claim        locked by the process that uses the rest
                                 /session      the record: its workspace, policy and layers
                                 /layers/<n>   as in any store
                                 /layers/users-<pid>  locked by that process's fork server
                                 /gone/...     to be deleted

The record is replaced whole, and only layers that it does not name are ever deleted. So a kill at any moment
leaves a usable kept sandbox. The record is ours, in a directory of ours. It is still parsed as strictly as
any other input that decides what is mounted and deleted.
"""

from __future__ import annotations

import os
import stat

from .. import places
from .._value import Value
from ..errors import LayerError
from .baseline import Baseline
from .store import can_hold_layers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
RECORD, CLAIM, LAYERS = "session", "claim", "layers"
LONGEST_NAME, LONGEST_LABEL = 64, 200
_MOST_BYTES = 256 << 20
_FIRST = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_LETTERS = _FIRST | frozenset("._-")


class TreeRecord(Value):
    """The record of a tree besides the workspace: its root, its mount points, its layers.

    `bases` are the directories below the layers, topmost first: paths of the host, or names in the store.
    """

    root: str
    places: tuple[str, ...]
    bases: tuple[str, ...]
    layers: tuple[str, ...]


class SnapshotRecord(Value):
    """The record of a snapshot: its layers by name, topmost first."""

    label: str
    created: float
    layers: tuple[str, ...]
    baseline: Baseline
    beside: tuple[TreeRecord, ...] = ()

    @property
    def every_layer(self) -> tuple[str, ...]:
        """The names of all its layers."""
        return (*self.layers, *(name for tree in self.beside for name in tree.layers))


class SessionRecord(Value):
    """The record of a kept sandbox. `layers` are those of its workspace, the writable layer first.

    `workspace` is None for a sandbox without a directory; `inode` distinguishes that directory from another
    of the same name. `policy` is the last policy, for display.
    """

    name: str
    workspace: str | None
    inode: int
    created: float
    used: float
    policy: Mapping[str, object]
    layers: tuple[str, ...]
    baseline: Baseline
    points: tuple[SnapshotRecord, ...] = ()
    beside: tuple[TreeRecord, ...] = ()
    #: The uid that mounted its layers last, if that was not the caller's.
    mounter: int = -1

    @property
    def every_layer(self) -> frozenset[str]:
        """The names of all layers that must stay."""
        ours = (self.layers, *(tree.layers for tree in self.beside))
        return frozenset(
            name for names in (*ours, *(point.every_layer for point in self.points)) for name in names
        )

    @property
    def every_base(self) -> frozenset[str]:
        """The lower directories of its other trees."""
        trees = (*self.beside, *(tree for point in self.points for tree in point.beside))
        return frozenset(base for tree in trees for base in tree.bases)


# ---------------------------------------------------------------- where


def checked_name(name: object) -> str:
    """Return the name if it is one plain word, because it is also a directory's name."""
    if not isinstance(name, str) or not name or name[0] not in _FIRST or not set(name) <= _LETTERS:
        raise LayerError(
            f"{name!r} is not a valid name for a kept sandbox",
            why="it is also the name of a directory",
            fix="use letters, digits, '.', '_' and '-', and start with a letter or a digit",
        )
    if len(name) > LONGEST_NAME:
        raise LayerError(
            f"the name {name[:16]!r}... is too long",
            fix=f"use at most {LONGEST_NAME} letters",
            why="it becomes the name of a directory",
        )
    return name


def home() -> str:
    """Return the directory of all kept sandboxes.

    Root's is outside root's home: another uid mounts its layers.
    """
    given = os.environ.get("XDG_STATE_HOME", "").startswith("/")
    place = "/var/lib/staddle" if os.geteuid() == 0 and not given else places.of_user("state")
    return f"{os.path.realpath(os.path.dirname(place))}/{os.path.basename(place)}/sessions"


def directory_of(name: str) -> str:
    """Return the directory of a kept sandbox, even if it does not exist."""
    return f"{home()}/{checked_name(name)}"


def names() -> list[str]:
    """Return the names of all kept sandboxes with a record."""
    try:
        found = os.listdir(home())
    except FileNotFoundError:
        return []
    return sorted(name for name in found if os.path.isfile(f"{home()}/{name}/{RECORD}"))


def make_home(workspace: str | None) -> str:
    """Return `home`, created if missing; LayerError if it cannot contain layers."""
    place = home()
    if workspace is not None and _overlap(place, workspace):
        raise LayerError(
            "the sandbox cannot be kept",
            why=f"{place!r} lies in the workspace, and the sandbox would see its own layers",
            fix="name a directory elsewhere in $XDG_STATE_HOME, or choose a smaller workspace",
        )
    mode = 0o711 if os.geteuid() == 0 else 0o700
    try:
        os.makedirs(os.path.dirname(os.path.dirname(place)), exist_ok=True)
        for path in (os.path.dirname(place), place):
            try:
                os.mkdir(path, mode)
                os.chmod(path, mode)
            except FileExistsError:
                _ours_alone(path, mode)
        can_hold_layers(place)
    except (OSError, LayerError) as error:
        raise LayerError(
            f"no sandbox can be kept in {place!r}",
            why=str(getattr(error, "strerror", None) or error),
            fix="name a directory that you own on ext4, xfs, btrfs or tmpfs in $XDG_STATE_HOME",
        ) from None
    if os.geteuid() == 0 and (closed := _closed_to_others(place)):
        raise LayerError(
            f"no sandbox can be kept in {place!r}",
            why=f"a sandbox that root starts is not root, and other users may not pass through {closed!r}",
            fix="name another directory in $XDG_STATE_HOME; /var/lib is the default",
        )
    return place


def _ours_alone(path: str, mode: int) -> None:
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise LayerError(
            f"{path!r} is not a directory of staddle's alone",
            why="others may change what is kept there",
            fix="set STADDLE_LAYERS to a directory that only you can write",
        )
    if stat.S_IMODE(found.st_mode) & mode != mode:
        os.chmod(path, stat.S_IMODE(found.st_mode) | mode)


def _closed_to_others(path: str) -> str:
    while path != "/":
        if not os.stat(path).st_mode & 0o001:
            return path
        path = os.path.dirname(path)
    return ""


def _overlap(place: str, workspace: str) -> bool:
    return f"{place}/".startswith(f"{workspace.rstrip('/')}/") or workspace.startswith(f"{place}/")


# ---------------------------------------------------------------- the record


def read(directory: str) -> SessionRecord | None:
    """Return the record in `directory`; None if there is none, LayerError if it is not ours."""
    import json

    try:
        fd = os.open(f"{directory}/{RECORD}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
                raise ValueError("another user has written it")
            if found.st_size > _MOST_BYTES:
                raise ValueError("it is too large")
            facts = json.loads(file.read(_MOST_BYTES))
        return _record(facts, os.path.basename(directory))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        name = os.path.basename(directory)
        raise LayerError(
            f"the kept sandbox {name!r} cannot be read",
            why=str(error) if not isinstance(error, KeyError) else f"it does not contain {error}",
            fix=f"its layers are in {directory!r}; `staddle rm --force {name}` removes them",
        ) from None


def write(directory: str, record: SessionRecord) -> None:
    """Replace the record, whole or not at all, even if the power fails."""
    import json

    facts = {
        "format": FORMAT,
        **record.replace(points=(), baseline=None).as_dict(),
        "baseline": record.baseline.facts(),
        "points": [point_facts(point) for point in record.points],
    }
    temporary = f"{directory}/{RECORD}.new"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(fd, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(json.dumps(facts))
        file.flush()
        os.fsync(fd)
    os.replace(temporary, f"{directory}/{RECORD}")


def _record(facts: object, name: str) -> SessionRecord:
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError("another version of staddle wrote it")
    if facts["name"] != name:
        raise ValueError(f"it is that of {facts['name']!r}")
    workspace = facts["workspace"]
    if workspace is not None and not (isinstance(workspace, str) and workspace.startswith("/")):
        raise ValueError(f"{workspace!r} is not a workspace")
    if type(facts["inode"]) is not int or not isinstance(facts["policy"], dict):
        raise ValueError("it does not name what it belongs to")
    if type(mounter := facts.get("mounter", -1)) is not int or not -1 <= mounter < 1 << 32:
        raise ValueError(f"the mounter {mounter!r} is not a user id")
    points = tuple(point_of(point) for point in facts["points"])
    if len({point.label for point in points}) != len(points):
        raise ValueError("two of its snapshots have one name")
    layers = _names(facts["layers"])
    beside = _several(facts.get("beside", []))
    frozen = {name for point in points for name in point.every_layer}
    if not layers or any(not one or one[0] in frozen for one in (layers, *(tree.layers for tree in beside))):
        raise ValueError("it does not name the layer that is written")
    return SessionRecord(
        name,
        workspace,
        facts["inode"],
        _time(facts["created"]),
        _time(facts["used"]),
        facts["policy"],
        layers,
        Baseline.from_facts(facts["baseline"]),
        points,
        beside,
        mounter,
    )


def point_facts(point: SnapshotRecord) -> dict[str, object]:
    """Return the record of a snapshot as data for JSON."""
    return {**point.replace(baseline=None).as_dict(), "baseline": point.baseline.facts()}


def point_of(facts: object) -> SnapshotRecord:
    """Parse the record of a snapshot. Raises ValueError if it is not valid."""
    if not isinstance(facts, dict):
        raise ValueError(f"{facts!r} is not a snapshot")
    baseline = Baseline.from_facts(facts["baseline"])
    beside = _several(facts.get("beside", []))
    layers = _names(facts["layers"])
    return SnapshotRecord(checked_label(facts["label"]), _time(facts["created"]), layers, baseline, beside)


def _several(facts: object) -> tuple[TreeRecord, ...]:
    if not isinstance(facts, list):
        raise ValueError("its other trees are not a list")
    found = tuple(_beside(tree) for tree in facts)
    if len({tree.root for tree in found}) != len(found):
        raise ValueError("two of its trees have one root")
    return found


def _beside(facts: object) -> TreeRecord:
    several = ("places", "bases", "layers")
    if not isinstance(facts, dict) or not all(isinstance(facts[name], list) for name in several):
        raise ValueError(f"{facts!r} is not a tree")
    for path in (facts["root"], *facts["places"]):
        if not _is_path(path):
            raise ValueError(f"{path!r} is not a valid place of a tree")
    for base in facts["bases"]:
        if not isinstance(base, str) or not base.strip("./") or not _is_path(f"/{base.lstrip('/')}"):
            raise ValueError(f"{base!r} is not a base of a tree")
    if not facts["bases"]:
        raise ValueError("it does not name what a tree lies over")
    return TreeRecord(facts["root"], tuple(facts["places"]), tuple(facts["bases"]), _names(facts["layers"]))


def _is_path(text: object) -> bool:
    return isinstance(text, str) and text.startswith("/") and "\0" not in text and ".." not in text.split("/")


def checked_label(label: object) -> str:
    """Check the name of a snapshot: any text that is not too long."""
    if not isinstance(label, str) or not label or len(label) > LONGEST_LABEL or "\0" in label:
        raise ValueError(f"a snapshot's label is text of 1 to {LONGEST_LABEL} letters")
    return label


def _names(layers: object) -> tuple[str, ...]:
    if not isinstance(layers, list) or len(set(map(str, layers))) != len(layers):
        raise ValueError("its layers are not a list of different ones")
    for name in layers:
        if not (isinstance(name, str) and name.isascii() and name.isdigit() and len(name) < 10):
            raise ValueError(f"{name!r} is not a layer")
    return tuple(layers)


def _time(when: object) -> float:
    if isinstance(when, bool) or not isinstance(when, int | float) or not 0 <= when < 1 << 40:
        raise ValueError(f"{when!r} is not a time")
    return float(when)
