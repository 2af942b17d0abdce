"""Facts about sandboxes and snapshots, pages of them, E2B's options in staddle's terms, and its errors."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TypedDict

from ... import Network
from ...errors import InvalidCall, SandboxClosed, StaddleError, UserUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ... import Policy

ALL_TRAFFIC = "0.0.0.0/0"


class SandboxState(StrEnum):
    """Whether a sandbox runs."""

    RUNNING = "running"
    PAUSED = "paused"


@dataclass
class SandboxQuery:
    """Filter for sandboxes: all of this metadata, one of these states, this template, not started earlier."""

    metadata: dict[str, str] | None = None
    state: list[SandboxState] | None = None
    template: str | None = None
    started_after: datetime | None = None

    def matches(self, info: SandboxInfo) -> bool:
        """Whether the filter accepts this sandbox."""
        if self.started_after is not None and info.started_at < self.started_after:
            return False
        return (
            (self.metadata or {}).items() <= info.metadata.items()
            and (self.state is None or info.state in self.state)
            and self.template in (None, info.template_id)
        )


@dataclass
class SandboxInfo:
    """A running or paused sandbox."""

    sandbox_id: str
    template_id: str
    metadata: dict[str, str]
    started_at: datetime
    end_at: datetime
    state: SandboxState = SandboxState.RUNNING
    name: str | None = None


@dataclass
class SandboxMetrics:
    """Usage of processors, memory and disk at one time. Sizes are bytes."""

    cpu_count: int
    cpu_used_pct: float
    disk_total: int
    disk_used: int
    mem_total: int
    mem_used: int
    timestamp: datetime


@dataclass
class SnapshotInfo:
    """A snapshot: `Sandbox.create(info.snapshot_id)` continues from it, in this process."""

    snapshot_id: str
    names: list[str] = field(default_factory=list)


class Pages:
    """Sandboxes or snapshots, `limit` at a time, from the one after `token`. The first page finds all."""

    def __init__(
        self, found: Callable[[], list[Any]], limit: int | None = None, token: str | None = None
    ) -> None:
        self._found, self._limit = found, limit
        self._items: list[Any] | None = None
        self.has_next, self.next_token = True, token

    def next_items(self) -> list[Any]:
        """The next page."""
        if self._items is None:
            self._items = self._found()
            if self.next_token is not None:
                known = [_id(item) for item in self._items]
                at = known.index(self.next_token) + 1 if self.next_token in known else len(known)
                self._items = self._items[at:]
        size = self._limit or max(len(self._items), 1)
        page, self._items = self._items[:size], self._items[size:]
        self.has_next = bool(self._items)
        self.next_token = _id(page[-1]) if self.has_next else None
        return page


def _id(item: Any) -> str:
    name: str = item.sandbox_id if isinstance(item, SandboxInfo) else item.snapshot_id
    return name


# ---------------------------------------------------------------- network


class SandboxNetworkOpts(TypedDict, total=False):
    """E2B's rules for the network. `allow_out` and `deny_out` are supported; the others are refused."""

    allow_out: list[str] | Callable[[Any], list[str]]
    deny_out: list[str] | Callable[[Any], list[str]]
    allow_public_traffic: bool
    mask_request_host: str
    rules: Any
    egress_proxy: Any


@dataclass(frozen=True)
class SelectorContext:
    """The argument of a function that is given instead of a list of hosts."""

    all_traffic: str = ALL_TRAFFIC
    rules: Any = field(default_factory=dict)


def network_of(options: Any, open_by_default: bool) -> Network:
    """The network policy for E2B's rules. Options that would be ignored or cannot be enforced are refused."""
    unknown = [key for key in options if key not in ("allow_out", "deny_out", "allow_public_traffic")]
    if options.get("allow_public_traffic") is False:
        unknown.append("allow_public_traffic=False")
    if unknown:
        raise InvalidArgumentException(f"network: {', '.join(unknown)}: not offered here")
    allowed, denied = _hosts(options.get("allow_out")), _hosts(options.get("deny_out"))
    if ALL_TRAFFIC not in denied and open_by_default:
        if denied:
            raise InvalidArgumentException(
                f"network: an open network without {', '.join(denied)} is not offered: "
                "deny all traffic (`lambda ctx: [ctx.all_traffic]`) and name in allow_out what is needed"
            )
        return Network.open()
    if ALL_TRAFFIC in allowed:
        return Network.open()
    with translated():
        return Network.allow(*allowed) if allowed else Network.deny()


def _hosts(given: Any) -> list[str]:
    """A list of hosts, or the result of a function."""
    return list((given(SelectorContext()) if callable(given) else given) or ())


# ---------------------------------------------------------------- timeout


@dataclass(frozen=True)
class OnTimeout:
    """Action after a sandbox's timeout: kill it, or pause it with or without its processes."""

    pause: bool = False
    keep_memory: bool = True


def on_timeout_of(lifecycle: Any) -> OnTimeout:
    """The action that E2B's `lifecycle` asks for; options that would be ignored are refused."""
    if lifecycle is None:
        return OnTimeout()
    unknown = sorted(lifecycle.keys() - {"on_timeout", "auto_resume"})
    if unknown:
        raise InvalidArgumentException(f"lifecycle: {', '.join(unknown)}: not offered here")
    if lifecycle.get("auto_resume"):
        raise InvalidArgumentException(
            "lifecycle: auto_resume: not offered here; connect() continues a paused sandbox"
        )
    asked = lifecycle.get("on_timeout")
    about = asked if isinstance(asked, dict) else {"action": asked}
    keep_memory = about.get("keep_memory")
    if about.get("action") not in (None, "kill", "pause"):
        raise InvalidArgumentException(f"lifecycle: on_timeout is 'kill' or 'pause', not {asked!r}")
    if about.get("action") != "pause" and keep_memory is not None:
        raise InvalidArgumentException("lifecycle: keep_memory is for the action 'pause'")
    return OnTimeout(about.get("action") == "pause", keep_memory is not False)


# ---------------------------------------------------------------- the interpreter


@dataclass(frozen=True)
class CodePython:
    """The interpreter of `run_code`: the first executable of `places` inside.

    `needed` are the host directories that it needs.
    """

    places: tuple[str, ...] = ("python3",)
    needed: tuple[str, ...] = ()


def python_of(asked: str | None, policy: Policy, workspace: str | None) -> CodePython:
    """The interpreter that `python=` names, or the caller's own if that is in a virtual environment.

    The caller's own is not used with a base, or without the host's toolchains.
    """
    if asked is not None:
        return CodePython((asked,))
    root, programs = sys.prefix, os.path.dirname(sys.executable)
    wide = Path.home().is_relative_to(root)  # not an environment, and much else
    if root == sys.base_prefix or wide or not policy.toolchains or policy.base is not None:
        return CodePython()
    places = [sys.executable]
    if programs in os.environ.get("PATH", "").split(":"):
        places.insert(0, "/home/user/.venv/bin/python3")  # continues it, see docs/toolchains.md
    base = [f"{sys.base_prefix}/{name}" for name in ("bin", "lib", "lib64")]
    needed = [root, *base]
    if workspace is not None and Path(root).is_relative_to(os.path.abspath(workspace)):
        places.insert(0, f"/workspace/{os.path.relpath(sys.executable, workspace)}")
        needed = base
    return CodePython((*places, "python3"), tuple(path for path in needed if os.path.isdir(path)))


def server_said() -> str:
    """The server that the environment names: a socket or a URL, `1` for your own, or empty."""
    said = os.environ.get("STADDLE_E2B_SERVER", "")
    return "" if said == "0" else said


def now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


# E2B's exceptions, and the only place that translates staddle's errors to them.


class SandboxException(Exception):
    """The base class; `status_code` is the status of E2B's service, and None here."""

    status_code: int | None = None


class TimeoutException(SandboxException):
    """A command or the sandbox took too long, or the sandbox has ended."""


class SandboxNotRunningException(TimeoutException):
    """The sandbox was killed, or reached its end of life."""


class SandboxUnreachableException(TimeoutException):
    """Never raised here: a sandbox of this process is reachable while it runs."""


class InvalidArgumentException(SandboxException):
    """An invalid argument."""


class NotEnoughSpaceException(SandboxException):
    """The disk, or the sandbox's share of it, is full."""


class NotFoundException(SandboxException):
    """Something does not exist."""


class FileNotFoundException(NotFoundException):
    """A file does not exist."""


class SandboxNotFoundException(NotFoundException):
    """No sandbox of this process has this id."""


class AuthenticationException(Exception):
    """Never raised here: there is no service with keys. Programs name it in `except`."""


class RateLimitException(SandboxException):
    """Never raised here: there is no service that counts requests."""


class ServiceBusyException(Exception):
    """Never raised here: there is no service."""


class TemplateException(SandboxException):
    """Never raised here: an unknown template is an InvalidArgumentException."""


class CommandExitException(SandboxException):
    """A command exited with a status other than 0. It has the fields of its result."""

    def __init__(self, stdout: str | None, stderr: str | None, exit_code: int, error: str | None) -> None:
        super().__init__(f"Command exited with code {exit_code} and error:\n{stderr or ''}")
        self.stdout, self.stderr, self.exit_code, self.error = stdout, stderr, exit_code, error


@contextmanager
def translated() -> Iterator[None]:
    """Raise staddle's errors and file errors as E2B's."""
    try:
        yield
    except (InvalidCall, UserUnavailable) as error:
        raise InvalidArgumentException(str(error)) from error
    except SandboxClosed as error:
        raise SandboxNotRunningException(f"The sandbox is not running: {error}") from error
    except StaddleError as error:
        raise SandboxException(str(error)) from error
    except FileNotFoundError as error:
        raise FileNotFoundException(str(error)) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NotEnoughSpaceException(str(error)) from error
        if isinstance(error, IsADirectoryError | NotADirectoryError | FileExistsError):
            raise InvalidArgumentException(str(error)) from error
        raise SandboxException(str(error)) from error
