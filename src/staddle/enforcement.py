"""Protections by name, gaps, probe results, backend steps, and the enforcement of a policy. Values only."""

from __future__ import annotations

from ._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    BackendName: TypeAlias = Literal[
        "auto", "namespaces", "bwrap", "systemd", "landlock", "seatbelt", "native"
    ]
    #: Treatment of the workspace's changes in a session.
    Mode: TypeAlias = Literal["overlay", "copy", "bind", "readonly"]

# Promises of a sandbox, by the short name that probes, gaps and `doctor` use.
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
    "devices": "only null, zero, full, random, urandom, a private terminal and named devices exist",
    "capabilities": "no capability in any set, and none can be gained",
    "filter": "the system call filter is on",
    "keyring": "no key of the host's keyrings can be read",
    "descriptors": "only standard input, output, error and declared descriptors are open",
    "environment": "only the plan's variables exist",
    "terminal": "nothing can be typed into the user's terminal",
    "parent": "everything ends when the process that started it ends",
}


class Gap(Value):
    """One protection that is not enforced. Naming the backend accepts its `documented` gaps."""

    protection: str
    why: str
    fix: str = ""
    documented: bool = False


class Probe(Value):
    """Result of an actual attempt in a child process."""

    backend: str
    usable: bool
    why: str = ""
    fix: str = ""
    version: str = ""


class Step(Value):
    """One action of the backend, and the rule that requires it."""

    action: str
    origin: str


class EnforcedLimit(Value):
    """A limit in force, and its mechanism. `exact` is False if it can be exceeded for a moment.

    `default`: the policy does not set it; it is a share of this host's resources.
    """

    limit: str
    by: str
    exact: bool = True
    default: bool = False


#: Not empty once this program was warned of accepted gaps; the command line reports them itself.
TOLD: list[str] = []


class Enforcement(Value):
    """Protections in force, and every gap."""

    backend: str
    held: tuple[str, ...]
    gaps: tuple[Gap, ...]
    why: str = ""
    #: Mechanism of each limit of the policy, where a whole sandbox is limited.
    limits: tuple[EnforcedLimit, ...] = ()
    #: Whether gaps were accepted because the policy or STADDLE_NESTED declares this host a container.
    nested: bool = False

    @classmethod
    def of(cls, backend: str, gaps: tuple[Gap, ...], why: str = "", *, nested: bool = False) -> Enforcement:
        """Return all protections except those that a gap names."""
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
        """Return one sentence about the missing protections, for a person."""
        names = ", ".join(dict.fromkeys(gap.protection for gap in self.gaps))
        return (
            f"nested: the {self.backend} backend does not enforce {names} here; `staddle doctor` prints why"
        )
