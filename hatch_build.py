"""Add the manual pages and shell completions to a wheel, made from the tables of options."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManualPages(BuildHookInterface):  # type: ignore[type-arg]
    """Write the files to a temporary directory, and have the wheel install them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds; an editable install gets no manual."""
        if version == "editable":
            return
        sys.path.insert(0, str(Path(self.root, "scripts")))
        import manual

        self._made = tempfile.TemporaryDirectory()
        build_data["shared_data"].update(manual.write(Path(self._made.name)))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called by hatchling when the wheel is written."""
        if version != "editable":
            self._made.cleanup()
