"""A copy of the host's directory below the layers of a sandbox, in place of the directory itself."""

from __future__ import annotations

from ...errors import LayerError
from ...layers.frozen_base import ASKED, UNASKED, FrozenBase, NotFrozen, freeze_base
from ...policy.paths import covers
from ...policy.workspace import compile_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...layers.store import Store
    from ...policy import Policy

#: With so many denied files in one directory the view shows its entries one by one, from the host.
_MOST_DENIED_FILES = 7


def frozen_base(
    store: Store,
    directory: str,
    policy: Policy,
    env: Mapping[str, str],
    asks: int,
    *,
    asked: bool,
) -> FrozenBase | None:
    """The copy of `directory`, without what `policy` denies, held once for the caller.

    None where there is none. If it was `asked` for, it may be larger, and LayerError says why there is none.
    `env` and `asks` are those that the sandbox's plan is compiled with: then that is done once.
    """
    try:
        hidden = _denied(directory, policy, env, asks)
        return freeze_base(store, directory, hidden, ASKED if asked else UNASKED)
    except NotFrozen as error:
        if not asked:
            return None
        raise LayerError(
            f"the workspace {str(directory)!r} cannot be frozen",
            why=str(error),
            fix="leave freeze out: edits on the host are then seen inside, and drift() lists them; or use "
            "mode='copy'",
        ) from None


def _denied(directory: str, policy: Policy, env: Mapping[str, str], asks: int) -> tuple[str, ...]:
    """The denied paths in `directory`. NotFrozen if these are not simply covered in the view."""
    _, alone = compile_session(policy, str(directory), access="read", moved=True, env=env, asks=asks)
    hidden = [item for item in (alone.hidden if alone else ()) if covers(directory, item.path)]
    if any(item.kind == "missing" for item in hidden):
        raise NotFrozen("the policy denies a path in it that does not exist yet")
    if sum(item.kind == "file" for item in hidden) > _MOST_DENIED_FILES:
        raise NotFrozen("the policy denies many files in it")
    return tuple(item.path[len(directory) :].lstrip("/") for item in hidden)
