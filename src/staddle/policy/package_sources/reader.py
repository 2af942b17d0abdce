"""Read the configuration of this host's pip, uv, apt, npm and yarn."""

from __future__ import annotations

import os

from ...errors import PolicyError
from .sources import MANAGERS, HostFiles, Sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .sources import Manager


def read(
    managers: Iterable[Manager] = MANAGERS,
    *,
    environ: Mapping[str, str] | None = None,
    home: str | None = None,
    root: str = "",
) -> Sources:
    """The sources that this host is configured with. `root` is put before the path of each file."""
    from . import apt_config, npm_config, pip_config

    variables = os.environ if environ is None else environ
    place = HostFiles(variables, home or variables.get("HOME") or os.path.expanduser("~"), root.rstrip("/"))
    found = Sources()
    readers = {"pip": pip_config.read, "apt": apt_config.read, "npm": npm_config.read}
    for manager in managers:
        if manager not in readers:
            raise PolicyError(f"there is no package manager {manager!r}", fix=f"use {', '.join(readers)}")
        readers[manager](place, found)
    _common_proxies(place, found, managers)
    return found


def _common_proxies(place: HostFiles, found: Sources, managers: Iterable[Manager]) -> None:
    for names in (("https_proxy", "HTTPS_PROXY"), ("http_proxy", "HTTP_PROXY"), ("all_proxy", "ALL_PROXY")):
        said = place.variable(*names)
        if said is not None:
            for manager in managers:
                found.add_proxy(manager, said[1], said[0])
