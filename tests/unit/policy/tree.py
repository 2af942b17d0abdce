"""Small trees to compile policies against.

They lie below /tmp, which is private in every plan: what is not granted there is scratch,
and `Plan.access` says "write" for it, about a directory that is not the host's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from staddle import Plan, Policy
from staddle.policy.compiler import compile as compile_policy


def make(root: Path, *names: str, text: str = "x", mode: int = 0o644) -> Path:
    """Directories (a name that ends in `/`), links (`name -> target`) and files below `root`."""
    for name in names:
        path, arrow, target = name.partition(" -> ")
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if arrow:
            place.symlink_to(target)
        elif path.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.write_text(text)
            place.chmod(mode)
    return root


def plan(policy: Policy, root: Path, **kwargs: Any) -> Plan:
    """The plan with `root` as base and home, and an empty host environment."""
    kwargs.setdefault("base", str(root))
    kwargs.setdefault("home", str(root))
    return compile_policy(policy, host_env={}, **kwargs)


def own(plan: Plan, root: Path) -> dict[str, str]:
    """{path below root: access} of the plan's grants there."""
    return {
        grant.path[len(str(root)) + 1 :]: grant.access
        for grant in plan.grants
        if grant.path.startswith(str(root))
    }


def names(items: Any, root: Path) -> set[str]:
    """Paths of `items` below `root`, relative to it."""
    return {item.path[len(str(root)) + 1 :] for item in items if item.path.startswith(f"{root}/")}
