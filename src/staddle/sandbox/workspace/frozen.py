"""A copy of the host's directory below the layers of a sandbox, in place of the directory."""

from __future__ import annotations

from ..._value import Value
from ...errors import LayerError
from ...layers.frozen_base import ASKED, UNASKED, FrozenBase, NotFrozen, freeze_base
from ...layers.host_directory import HostDirectory
from ...paths import WORKSPACE_PATH, covers
from ...policy.workspace import compile_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...layers.store import Store
    from ...policy import Policy
    from ...policy.plan import Plan

#: With more denied files in one directory, the view shows its entries one by one, from the host.
_MOST_DENIED_FILES = 7


class BaseFreezer(Value):
    """Copies the workspace of one sandbox, without the paths that its policy denies.

    `env` and `asks` are those of the sandbox's plan, so that it is compiled only once.
    """

    policy: Policy
    env: Mapping[str, str]
    asks: int

    def freeze(self, store: Store, directory: str, *, asked: bool) -> FrozenBase | None:
        """Copy `directory`, acquired once for the caller; None if it cannot be copied.

        If it was `asked` for, it may be larger, and a failure raises LayerError.
        """
        try:
            if not HostDirectory.of(directory).is_there():
                raise NotFrozen("it was moved or deleted")  # denied paths are known by its path
            hidden = _denied(directory, self.policy, self.env, self.asks)
            return freeze_base(store, directory, hidden, ASKED if asked else UNASKED)
        except NotFrozen as error:
            if not asked:
                return None
            raise LayerError(
                f"the workspace {str(directory)!r} cannot be frozen",
                why=str(error),
                fix="leave freeze out: edits on the host are then seen inside, and drift() lists them; "
                "or use mode='copy'",
            ) from None


def covered_in_workspace(plan: Plan) -> bool:
    """Whether something is mounted in the workspace, as over denied paths that a saved copy may lack."""
    from ...mounts.from_plan import layout_of

    return any(item.path.startswith(f"{WORKSPACE_PATH}/") for item in layout_of(plan).operations)


def _denied(directory: str, policy: Policy, env: Mapping[str, str], asks: int) -> tuple[str, ...]:
    """Return the denied paths in `directory`. Raises NotFrozen if the view does not simply cover them."""
    _, alone = compile_session(policy, str(directory), access="read", moved=True, env=env, asks=asks)
    hidden = [item for item in (alone.hidden if alone else ()) if covers(directory, item.path)]
    if any(item.kind == "missing" for item in hidden):
        raise NotFrozen("the policy denies a path in it that does not exist yet")
    if sum(item.kind == "file" for item in hidden) > _MOST_DENIED_FILES:
        raise NotFrozen("the policy denies many files in it")
    return tuple(item.path[len(directory) :].lstrip("/") for item in hidden)
