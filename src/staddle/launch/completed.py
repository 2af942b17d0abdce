"""The result of `run()` of a wrapped command: as subprocess has it, and why the command ended."""

from __future__ import annotations

import subprocess
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..limits.usage import Usage


class Completed(subprocess.CompletedProcess[Any]):
    """A CompletedProcess that knows which limit its command ran into.

    `reason` is a name of `Reason`: "exited", "signalled", "memory" or "processes". `why` says the
    limit in a sentence, empty when it was none. `usage` is what was used in all, where control
    groups tell; None else.
    """

    reason = "exited"
    why = ""
    usage: Usage | None = None
