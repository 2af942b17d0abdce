"""Which part of a view all sandboxes of a plan share, and which is each one's own. Pure.

What only shows the host, or never changes, is made once and is the same for everybody. What a
sandbox can write, its processes and its terminals are its own, and so is everything that
lies below them; the shared part only has the places for them. The workspace comes last, when
it is known which sandbox it is for.

What is shown of the host below something of a sandbox's own cannot be opened any more when
that is made. It is kept aside in the shared part, in a directory that no sandbox gets to see.
"""

from __future__ import annotations

from .._value import Value
from ..layout.operations import Bind, Directory, Empty, Processes
from ..policy.paths import covers
from ..policy.workspace import PLACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..layout.operations import Operation

#: In the template: what is shown later, and the old root. Unmounted before anything of a sandbox
#: runs; then the session's control files are there, a directory for each shell.
ASIDE = CONTROL = "/.staddle"
OLD_ROOT = f"{ASIDE}/host"
LENT = f"{ASIDE}/lent"
_OURS = "sandbox"


class Shared(Value):
    """The operations of a view, by who carries them out."""

    template: tuple[Operation, ...]
    own: tuple[Operation, ...]
    workspace: tuple[Operation, ...]


def share(operations: Sequence[Operation]) -> Shared:
    """Split a view. The first operation is the root."""
    root, *rest = operations
    template: list[Operation] = [root, Empty(ASIDE, 0o700, 1 << 20, _OURS)]
    template += [Directory(OLD_ROOT, 0o700, _OURS), Directory(LENT, 0o700, _OURS)]
    own: list[Operation] = []
    workspace: list[Operation] = []
    roots: list[str] = []
    for operation in rest:
        path = operation.path
        if path == "/proc/1":
            continue  # the first process hides itself
        if (isinstance(operation, Bind) and path == PLACE) or (workspace and covers(PLACE, path)):
            if not workspace:
                template.append(Directory(PLACE, 0o755, _OURS))
            workspace.append(operation)
        elif any(covers(root, path) for root in roots):
            own.append(_kept_aside(operation, template))
        elif isinstance(operation, Processes) or (isinstance(operation, Empty) and operation.mode):
            roots.append(path)
            if isinstance(operation, Processes) or not operation.below:
                template.append(Directory(path, 0o755, _OURS))
            if isinstance(operation, Empty):  # /proc comes before anything else can be done
                own.append(operation.replace(below=True))
        else:
            template.append(operation)
    return Shared(tuple(template), tuple(own), tuple(workspace))


def _kept_aside(operation: Operation, template: list[Operation]) -> Operation:
    if not isinstance(operation, Bind) or operation.again:
        return operation
    place = f"{ASIDE}/{len(template)}"
    template.append(operation.replace(path=place, source=operation.outside, below=False))
    return operation.replace(source=place)
