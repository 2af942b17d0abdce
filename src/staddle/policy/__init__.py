"""Policies, which say what a command may access, and the plans compiled from them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .identity import Identity
    from .limits import Limits
    from .network import Network
    from .plan import Plan
    from .policy import Policy

__all__ = ["Identity", "Limits", "Network", "Plan", "Policy"]


def __getattr__(name: str) -> object:
    # Imported on first use: staddle's process in every sandbox needs none of them, and is a fifth smaller
    # without them.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = __import__(f"{__name__}.{name.lower()}", fromlist=(name,))  # without the cost of importlib
    found = globals()[name] = getattr(module, name)
    return found
