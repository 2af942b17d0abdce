"""The specification for both ends of the systemd backend, as bytes in a memory file. Pure.

One file serves both: the client outside the unit reads how to start it and hands the file
on; the process inside reads what to make around the command. Neither a path nor a variable
of the policy is ever in a unit property or on a command line.
"""

from __future__ import annotations

from . import namespace_spec, wire
from .namespace_spec import NamespaceSpec
from .wire import Malformed

MAGIC = b"staddle-systemd-spec-1\n"


class SystemdSpec(NamespaceSpec):
    """One confined start by way of a service manager."""

    #: The systemd-run command, whole; and the variables it needs to find the manager.
    starter: tuple[bytes, ...] = ()
    starter_environment: tuple[bytes, ...] = ()
    #: (file, most): what the unit's control group must say at most.
    bounds: tuple[tuple[bytes, int], ...] = ()


_SHAPES = wire.shapes(SystemdSpec, **namespace_spec.ROWS)


def encode(spec: SystemdSpec) -> bytes:
    """The bytes for the memory file. Raises Malformed for what decode would refuse."""
    data = wire.pack(MAGIC, spec, _SHAPES)
    _check(spec)
    return data


def decode(data: bytes) -> SystemdSpec:
    """The specification in `data`, or Malformed."""
    spec = wire.unpack(MAGIC, data, SystemdSpec, _SHAPES)
    _check(spec)
    return spec


def _check(spec: SystemdSpec) -> None:
    namespace_spec.check(spec)
    if not spec.starter or not spec.starter[0].startswith(b"/"):
        raise Malformed("there is nothing to start the unit with")
