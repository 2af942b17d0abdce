"""The installed bwrap: its version and abilities, and why one that is there does not confine."""

from __future__ import annotations

from ..._value import Value
from ...linux.userns import UsernsFacts, observe, obstacle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .launching import Starter


#: The first version that can forbid user namespaces inside (--disable-userns).
OLDEST = (0, 8, 0)

_described: dict[tuple[int, ...], Bubblewrap] = {}


class Bubblewrap(Value):
    """The version and the abilities of an installed bwrap, as far as its own text tells."""

    version: str
    mounts_descriptors: bool


def describe(path: str, identity: tuple[int, ...] = ()) -> Bubblewrap:
    """Version and abilities of the bwrap at `path`, read from the file: a tenth of starting it.

    A file that does not have them in its text (a script around it) is asked instead. Told
    the file's `identity`, it is read once per process.
    """
    if identity not in _described:
        _described[identity] = _describe(path)
    return _described[identity] if identity else _described.pop(identity)


def _describe(path: str) -> Bubblewrap:
    with open(path, "rb") as file:
        text = file.read(1 << 20)
    version = _version(text)
    if not version:
        text = _ask(path, "--version") + _ask(path, "--help")
        version = _version(text)
    return Bubblewrap(version, b"--ro-bind-fd" in text)


def is_old(version: str) -> bool:
    """Whether this version, or a text that is none, is older than what we need."""
    numbers = version.split(".")
    if not all(number.isdigit() for number in numbers):
        return True
    return tuple(int(number) for number in numbers) < OLDEST


def _version(text: bytes) -> str:
    mark = b"bubblewrap "
    at = text.find(mark)
    while at >= 0:
        word = text[at + len(mark) : at + len(mark) + 16]
        digits = word[: len(word) - len(word.lstrip(b"0123456789."))]
        if digits[:1].isdigit() and b"." in digits:
            return digits.decode().rstrip(".")
        at = text.find(mark, at + 1)
    return ""


def _ask(path: str, question: str) -> bytes:
    import subprocess

    try:
        answer = subprocess.run(
            [path, question],
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return b""
    return answer.stdout[: 1 << 20]


_REINSTALL = "reinstall bubblewrap, and see what else has put a program of that name there"


def diagnose(found: Starter, problem: str, message: str) -> tuple[str, str]:
    """The true cause and its remedy: tried out again, step by step, without bwrap."""
    return judge(found.bwrap, problem, message, observe(found.unprivileged_uid))


def judge(bwrap: str, problem: str, message: str, facts: UsernsFacts) -> tuple[str, str]:
    """The same from facts: what the self-test found wrong, bwrap's message, what the kernel allows us."""
    if problem != "the command did not run":
        return f"{bwrap} ran its self-test without confining it: {problem}", _REINSTALL
    in_the_way = obstacle(facts)
    if in_the_way is not None:
        return in_the_way.why, in_the_way.fix
    if not message:
        return f"{bwrap} ended without running the command, and without a word", _REINSTALL
    return f"its self-test failed: {message.splitlines()[-1]}", "see whether bwrap works by itself"
