"""The result of `run()` of a wrapped command: a CompletedProcess with the reason why the command ended."""

from __future__ import annotations

import subprocess
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..limits.usage import Usage


class Completed(subprocess.CompletedProcess[Any]):
    """A CompletedProcess that names the limit that its command exceeded.

    `reason` is a name of `Reason`: "exited", "signalled", "memory" or "processes". `why` describes the limit
    in a sentence, or is empty. `usage` is the total usage if there are control groups, else None.
    """

    reason = "exited"
    why = ""
    usage: Usage | None = None
