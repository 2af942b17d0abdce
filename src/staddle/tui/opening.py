"""Opens the sandbox of the UI in a thread, while the UI is still loading. Does not import textual."""

from __future__ import annotations

import os
import re
import tempfile
import threading

from .. import Policy
from ..errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .. import Sandbox
    from .log_pane import EventFeed


class SandboxOpening:
    """A sandbox that is being opened.

    `open_it` opens a sandbox for `feed`: the kept one for the first tab, new ones later. It is called in a
    thread that lives as long as the program. `argv` is the program of the first terminal (default: a shell),
    and `program` its name. `leaving` is called before the first sandbox is closed. `hidden` is a directory of
    the workspace whose changes are neither shown nor committed. `is_attached`: the sandboxes are a server's
    (`AttachedSandbox`), and stay when the UI ends.
    """

    def __init__(
        self,
        open_it: Callable[[EventFeed, bool], Sandbox],
        feed: EventFeed,
        *,
        directory: str,
        label: str,
        timeout: float | None = None,
        policy_file: str | None = None,
        keep: str | None = None,
        argv: Sequence[str] | None = None,
        program: str = "",
        leaving: Callable[[], object] = tuple,
        hidden: str = "",
        is_attached: bool = False,
    ) -> None:
        self.feed, self.directory, self.label = feed, directory, label
        self.timeout, self.policy_file, self.keep = timeout, policy_file, keep
        self.argv, self.program, self.hidden = argv, program, hidden
        self.is_attached = is_attached
        self._open_it, self._leaving = open_it, leaving
        self._lock = threading.Lock()
        self._opened: Sandbox | BaseException | None = None
        self._then: Callable[[Sandbox | BaseException], object] | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start to open it."""
        self._thread = threading.Thread(target=self._work, name="staddle-tui open", daemon=True)
        self._thread.start()

    def when_open(self, then: Callable[[Sandbox | BaseException], object]) -> None:
        """Call `then` with the sandbox, or the error, possibly at once; from any thread."""
        with self._lock:
            self._then = then
            opened = self._opened
        if opened is not None:
            then(opened)

    def another(self) -> Sandbox:
        """Open another sandbox of the same kind, never a kept one."""
        return self._open_it(self.feed, False)

    def close(self) -> None:
        """Wait until it is open, and end it if no tab uses it."""
        if self._thread is not None:
            self._thread.join()
        if self._opened is not None and not isinstance(self._opened, BaseException):
            self.leave()
            self._opened.close()

    def leave(self) -> None:
        """Call `leaving`, once."""
        leaving, self._leaving = self._leaving, tuple
        leaving()

    @property
    def error(self) -> BaseException | None:
        """The reason why it could not be opened."""
        return self._opened if isinstance(self._opened, BaseException) else None

    def _work(self) -> None:
        opened: Sandbox | BaseException
        try:
            opened = self._open_it(self.feed, True)
        except BaseException as error:
            opened = error
        with self._lock:
            self._opened = opened
            then = self._then
        if then is not None:
            then(opened)


# Add a host to the allow list of a policy file, and change nothing else in it.


_SECTION = re.compile(r"^\s*\[network\]\s*(#.*)?$", re.MULTILINE)
_ANY_SECTION = re.compile(r"^\s*\[", re.MULTILINE)
_ALLOW = re.compile(r"^(\s*allow\s*=\s*\[)", re.MULTILINE)
#: Characters of an entry in an allow list; none can end a TOML string.
_ENTRY = re.compile(r"[A-Za-z0-9.:*/\[\]_-]{1,300}")


def add_host(file: str, entry: str, workspace: str) -> None:
    """Let the policy file allow `entry`. PolicyError, and no change, if that would mean something else."""
    if not _ENTRY.fullmatch(entry):
        raise PolicyError(
            f"{entry!r} cannot be written to a policy file",
            why="TOML has no spelling for it",
            fix="leave it out",
        )
    with open(file, encoding="utf-8") as stream:
        before = stream.read()
    after = added(before, entry)
    known, wanted = _network(before), _network(after)
    hosts = [*known.pop("allow", []), entry]
    if {**known, "allow": sorted(set(hosts))} != {**wanted, "allow": sorted(set(wanted.get("allow", [])))}:
        raise PolicyError(
            f"{file} has a network that an entry cannot be added to",
            why="its mode, or the way its list is written",
            fix=f"add {entry!r} to `allow` in [network] by hand",
        )
    directory = os.path.dirname(os.path.abspath(file))
    handle, name = tempfile.mkstemp(dir=directory, prefix=".staddle-policy-")
    try:
        with open(handle, "w", encoding="utf-8") as stream:
            stream.write(after)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, os.stat(file).st_mode & 0o777)
        Policy.from_file(name, workspace=workspace)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise


def added(text: str, entry: str) -> str:
    """The text of a policy file with one more entry in its allow list."""
    section = _SECTION.search(text)
    if section is None:
        return f'{text.rstrip()}\n\n[network]\nallow = ["{entry}"]\n'.lstrip("\n")
    following = _ANY_SECTION.search(text, section.end())
    end = len(text) if following is None else following.start()
    found = _ALLOW.search(text, section.end(), end)
    if found is None:
        return f'{text[: section.end()]}\nallow = ["{entry}"]{text[section.end() :]}'
    rest = text[found.end() :]
    comma = "" if rest.lstrip().startswith("]") else ", "
    return f'{text[: found.end()]}"{entry}"{comma}{rest.lstrip(" ")}'


def _network(text: str) -> dict[str, Any]:
    import tomllib

    return dict(tomllib.loads(text).get("network", {}))
