"""Protections by name, gaps, probe results, backend steps, and the enforcement of a policy. Values only."""

from __future__ import annotations

from ._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    BackendName: TypeAlias = Literal[
        "auto", "namespaces", "bwrap", "systemd", "landlock", "seatbelt", "native"
    ]
    #: What becomes of the workspace's changes in a session.
    Mode: TypeAlias = Literal["overlay", "copy", "bind", "readonly"]

# What a sandbox promises, by the short name that probes, gaps and `doctor` use.
PROTECTIONS: dict[str, str] = {
    "read": "only granted paths can be read",
    "write": "only granted paths can be written, created, removed or renamed",
    "metadata": "mode, owner, times and attributes of other files cannot be changed or listed",
    "deny": "denied paths cannot be read, listed or changed, even below a grant; their names can be seen",
    "guard": "protected names below a writable path cannot be changed",
    "tmp": "/tmp, /dev/shm and the home directory are private and deleted afterwards",
    "network": "the network is exactly what the policy allows",
    "sockets": "no UNIX socket of the host can be reached but those granted by name (see 'Files you grant')",
    "processes": "no process of the host can be seen",
    "signals": "no process of the host can be signalled, traced or slowed down",
    "ipc": "no shared memory, semaphore or message queue of the host can be reached",
    "devices": "only null, zero, full, random, urandom and a private terminal exist",
    "capabilities": "no capability in any set, and none can be gained",
    "filter": "the system call filter is on",
    "keyring": "no key of the host's keyrings can be read",
    "descriptors": "only standard input, output, error and declared descriptors are open",
    "environment": "only the plan's variables exist",
    "terminal": "nothing can be typed into the user's terminal",
    "parent": "everything ends when the process that started it ends",
}


class Gap(Value):
    """One thing that will not hold. `documented` gaps are accepted by naming the backend."""

    protection: str
    why: str
    fix: str = ""
    documented: bool = False


class Probe(Value):
    """The result of a real attempt in a child process."""

    backend: str
    usable: bool
    why: str = ""
    fix: str = ""
    version: str = ""


class Step(Value):
    """One thing the backend will do, and the rule that asked for it."""

    action: str
    origin: str


class EnforcedLimit(Value):
    """A limit that holds, and by what. `exact` is false where it can be exceeded for a moment.

    `default`: the policy does not say it; it is a part of what this host has.
    """

    limit: str
    by: str
    exact: bool = True
    default: bool = False


#: Not empty once this program has been told of accepted gaps; the command line tells them itself.
TOLD: list[str] = []


class Enforcement(Value):
    """The protections that are in force, and every gap."""

    backend: str
    held: tuple[str, ...]
    gaps: tuple[Gap, ...]
    why: str = ""
    #: By what each limit of the policy is held, where a sandbox as a whole is limited.
    limits: tuple[EnforcedLimit, ...] = ()
    #: Whether gaps were accepted because the policy, or STADDLE_NESTED, says that this host is a container.
    nested: bool = False

    @classmethod
    def of(cls, backend: str, gaps: tuple[Gap, ...], why: str = "", *, nested: bool = False) -> Enforcement:
        """All protections but those a gap names."""
        open_ = {gap.protection for gap in gaps}
        held = tuple(name for name in PROTECTIONS if name not in open_)
        return cls(backend, held, gaps, why, nested=nested)

    def tell_once(self) -> None:
        """Warn the program, once, that gaps are accepted."""
        if not TOLD:
            import warnings

            TOLD.append("by a warning")
            warnings.warn(self.notice(), stacklevel=3)

    def notice(self) -> str:
        """One sentence for a person about what does not hold."""
        names = ", ".join(dict.fromkeys(gap.protection for gap in self.gaps))
        return (
            f"nested: the {self.backend} backend does not enforce {names} here; `staddle doctor` prints why"
        )
