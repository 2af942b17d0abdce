"""What may be touched: policies, and the plans they become."""

from __future__ import annotations

from .limits import Limits
from .network import Network
from .plan import Plan
from .policy import Policy

__all__ = ["Limits", "Network", "Plan", "Policy"]
