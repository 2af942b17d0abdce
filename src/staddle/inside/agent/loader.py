"""Import our modules from code objects, because our files are not visible inside a sandbox.

Uses only the standard library. An interpreter that a backend has confined becomes the agent this way: it gets
this module's own code object first (see `standalone`). An agent loads the modules of a file server in the
same way.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType


def load(rows: Iterable[tuple[str, bool, CodeType]]) -> None:
    """Run each module (name, whether it is a package, code) that is not loaded yet, in this order."""
    for name, is_package, body in rows:
        if name in sys.modules:
            continue
        module = sys.modules[name] = type(sys)(name)
        module.__package__ = name if is_package else name.rpartition(".")[0]
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
        if is_package:
            module.__path__ = []
        else:
            exec(body, module.__dict__)  # noqa: S102
