"""The shells of a kept sandbox: the state of each session as it was at the end, and at each snapshot.

It is text of the sandbox, which only a shell of the sandbox reads again. The file lies beside the record, for
its owner only: a shell's variables may hold secrets. Variables that the sandbox was opened with, and that no
command has changed, are not in it: the next sandbox has its own.
"""

from __future__ import annotations

import os

from ...shell.state import SavedShell
from .snapshot_file import read_shells, shell_facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FILE = "shells.json"
FORMAT = 1
_MOST_BYTES = 128 << 20


class KeptShell:
    """The state of one shell, and the names of the variables that it had from the sandbox."""

    def __init__(self, shell: SavedShell, given: tuple[str, ...] = ()) -> None:
        self.shell, self.given = shell, given

    @classmethod
    def of(cls, shell: SavedShell, environment: Mapping[str, str]) -> KeptShell:
        """Keep a shell of a sandbox that was opened with `environment`."""
        if shell.dump is None:
            return cls(shell)
        dump, given = shell.dump.without_variables(environment)
        return cls(SavedShell(dump, shell.status, shell.cwd), given)

    def with_environment(self, environment: Mapping[str, str]) -> SavedShell:
        """The shell for a sandbox that is opened with `environment`."""
        if self.shell.dump is None:
            return self.shell
        now = {name: environment[name] for name in self.given if name in environment}
        return SavedShell(self.shell.dump.with_exported(now), self.shell.status, self.shell.cwd)


class KeptShells:
    """The shells of a kept sandbox by session: `now`, and those of its snapshots by label."""

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{FILE}"
        self.now: dict[str, KeptShell] = {}
        self.points: dict[str, dict[str, KeptShell]] = {}
        self._read()

    def _read(self) -> None:
        """Read the file; no shells if it cannot be read: the layers are worth more than a shell's state."""
        import json

        try:
            with open(self._path, "rb") as file:
                facts = json.loads(file.read(_MOST_BYTES))
            if facts["format"] == FORMAT:
                now = _shells(facts["now"])
                self.points = {str(label): _shells(found) for label, found in facts["points"].items()}
                self.now = now
        except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError):
            return

    def write(self) -> None:
        """Replace the file, whole or not at all."""
        import json

        facts = {
            "format": FORMAT,
            "now": _facts(self.now),
            "points": {label: _facts(found) for label, found in self.points.items()},
        }
        temporary = f"{self._path}.{os.getpid()}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            json.dump(facts, file)
        os.replace(temporary, self._path)


def _facts(shells: dict[str, KeptShell]) -> dict[str, Any]:
    return {
        name: {"shell": shell_facts(kept.shell), "given": list(kept.given)} for name, kept in shells.items()
    }


def _shells(facts: Any) -> dict[str, KeptShell]:
    shells = read_shells({name: kept["shell"] for name, kept in facts.items()})
    return {name: KeptShell(shell, tuple(map(str, facts[name]["given"]))) for name, shell in shells.items()}
