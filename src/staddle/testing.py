"""Helpers for testing programs that use staddle: a backend that runs nothing, and a few fixtures.

    from staddle.testing import FakeBackend, Scripted

    with FakeBackend([Scripted(stdout=b"3 passed\\n")]) as fake:
        my_agent.run_tests()
    assert fake.commands == [["pytest", "-q"]]
    assert fake.plans[0].access("/home/me/.ssh") == "none"

Nothing here needs pytest; the context managers work in any test runner.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import sys
import tempfile
from typing import TYPE_CHECKING, Self

from . import backends
from ._value import Value
from .enforcement import Gap, Probe, Step
from .launch.contract import Launch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from .backends.base import Backend
    from .policy.plan import Plan

__all__ = ["Canary", "FakeBackend", "Scripted", "Trace", "trace", "unchanged", "workspace"]

# Program in place of the command: prints and exits as scripted. The script is on the command line in
# hexadecimal, so that any byte survives.
_PLAYER = """
import os, sys, time
out, err, code, delay = sys.argv[1:5]
time.sleep(float(delay))
for fd, text in ((1, out), (2, err)):
    data = bytes.fromhex(text)
    while data:
        data = data[os.write(fd, data):]
code = int(code)
if code < 0:
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class Scripted(Value):
    """Result of one command. A negative `exit_code` means death by that signal, as in subprocess."""

    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int = 0
    delay: float = 0.0


class FakeBackend:
    """A backend that records its calls and plays back your script. It runs nothing.

    As a context manager it replaces every backend, including `auto`. It answers commands from `results` in
    order, then with `default`. `declares` are the gaps it claims to have, to test how a program handles them.
    Use one at a time, without threads.
    """

    name = "fake"

    def __init__(
        self,
        results: Iterable[Scripted] = (),
        *,
        default: Scripted = Scripted(),  # noqa: B008 - a frozen value
        declares: Iterable[Gap] = (),
        usable: bool = True,
    ) -> None:
        self._results = list(results)
        self._default = default
        self._declares = tuple(declares)
        self._usable = usable
        self._replaced: dict[str, Backend] | None = None
        self.plans: list[Plan] = []
        self.commands: list[list[str]] = []

    def probe(self) -> Probe:
        """Report it as usable, unless it was made with `usable=False`."""
        why = "" if self._usable else "this FakeBackend was made unusable"
        return Probe(self.name, usable=self._usable, why=why)

    def gaps(self, plan: Plan) -> tuple[Gap, ...]:
        """Return the gaps that it was made with."""
        return self._declares

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        """Return a single step."""
        return (Step("play back a scripted result", "FakeBackend"),)

    def prepare(self, plan: Plan, command: Sequence[str]) -> Launch:
        """Record the call; the launch plays back the next scripted result."""
        self.plans.append(plan)
        self.commands.append(list(command))
        result = self._results.pop(0) if self._results else self._default
        script = (result.stdout.hex(), result.stderr.hex(), str(result.exit_code), str(result.delay))
        return Launch((sys.executable, "-I", "-S", "-c", _PLAYER, *script), plan.environment(), "/")

    def __enter__(self) -> Self:
        if self._replaced is not None:
            raise RuntimeError("this FakeBackend is in use already")
        self._replaced = dict(backends._made)
        backends._made.update(dict.fromkeys(backends.NAMES, self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        backends._made.clear()
        backends._made.update(self._replaced or {})
        self._replaced = None


@contextlib.contextmanager
def workspace(files: Mapping[str, str | bytes] | None = None) -> Iterator[str]:
    """Create a directory with these files and their parents; it is removed afterwards. Names are relative."""
    with tempfile.TemporaryDirectory(prefix="staddle-test-") as directory:
        root = os.path.realpath(directory)
        for name, content in (files or {}).items():
            path = os.path.normpath(os.path.join(root, name))
            if not path.startswith(root + "/"):
                raise ValueError(f"{name!r} is not below the workspace")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
        yield root


class Canary:
    """A secret that must not leak. Put `text` somewhere, then ask `leaked_into(output)`.

    It recognises itself plain, reversed, in hexadecimal and in base64 at any offset.
    """

    def __init__(self) -> None:
        self.text = f"canary-{secrets.token_hex(12)}"

    def __str__(self) -> str:
        return self.text

    def leaked_into(self, *outputs: str | bytes) -> bool:
        """Whether any of `outputs` contains the secret in a known encoding."""
        import base64

        raw = self.text.encode()
        spellings = [raw, raw[::-1], raw.hex().encode(), raw.hex().upper().encode()]
        for shift in range(3):
            # Base64 depends on the preceding bytes; the first and last characters mix with neighbours and are
            # cut off.
            encoded = base64.b64encode(b"\0" * shift + raw).rstrip(b"=")
            spellings.append(encoded[(0, 2, 3)[shift] : -1])
        data = [
            output.encode("utf-8", "surrogateescape") if isinstance(output, str) else output
            for output in outputs
        ]
        return any(spelling in item for spelling in spellings for item in data)


Trace = dict[str, tuple[object, ...]]


def trace(root: str) -> Trace:
    """Record all facts about the tree at `root`: names, kinds, modes, owners, contents.

    It includes modification times of files, but not of directories, and no access times.
    """
    seen: Trace = {}
    pending = [root]
    while pending:
        path = pending.pop()
        info = os.lstat(path)
        mode = info.st_mode
        entry: tuple[object, ...] = (stat.S_IFMT(mode), stat.S_IMODE(mode), info.st_uid, info.st_gid)
        if stat.S_ISDIR(mode):
            pending += [os.path.join(path, name) for name in os.listdir(path)]
        elif stat.S_ISLNK(mode):
            entry += (os.readlink(path),)
        elif stat.S_ISREG(mode):
            with open(path, "rb") as file:
                content = hashlib.sha256(file.read()).hexdigest()
            entry += (info.st_nlink, info.st_mtime_ns, info.st_size, content)
        seen[os.path.relpath(path, root)] = entry
    return seen


@contextlib.contextmanager
def unchanged(root: str) -> Iterator[None]:
    """Fail with the names that differ if the tree at `root` has changed afterwards."""
    before = trace(root)
    yield
    after = trace(root)
    differs = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if differs:
        raise AssertionError(f"{root!r} has changed: {differs!r}")
