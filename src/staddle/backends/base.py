"""The contract between a plan and whatever enforces it.

A backend answers four questions and does one thing:

    probe()            can it confine anything on this host, by really trying?
    gaps(plan)         what of this plan, or of its own promises, can it not hold here?
    steps(plan)        what will it do, line by line? (printed by `staddle explain`)
    prepare(plan, ..)  the command that, once started, is confined or does not run

`prepare` starts nothing. Whoever starts `Launch.argv` with exactly `Launch.env` and
`Launch.pass_fds` gets the confined command; any failure on the way ends in a non-zero
exit before the command's first instruction.
"""

from __future__ import annotations

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from ..limits.alone import Alone
    from ..limits.holding import Held
    from ..network.host.told import Told
    from ..policy.plan import Plan
else:
    Protocol = object

# What a sandbox promises, by the short name that probes, gaps and `doctor` use.
PROTECTIONS: dict[str, str] = {
    "read": "only granted paths can be read",
    "write": "only granted paths can be written, created, removed or renamed",
    "metadata": "mode, owner, times and attributes of other files cannot be changed or listed",
    "deny": "denied paths do not exist inside, also below a grant",
    "guard": "protected names below a writable path cannot be changed",
    "tmp": "/tmp, /dev/shm and the home directory are private and gone afterwards",
    "network": "the network is exactly what the policy says",
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
    """What a real attempt in a child process showed."""

    backend: str
    usable: bool
    why: str = ""
    fix: str = ""
    version: str = ""


class Step(Value):
    """One thing the backend will do, and the rule that asked for it."""

    action: str
    origin: str


class Launch(Value):
    """A confined command, ready to be started once.

    `status` is the read end of a pipe on which the launcher tells how far it came, and
    `failure` turns what was read there into a sentence when the command never started; the
    pipe is the taker's to close. `relays` says that the started process passes signals on
    to everything it started. `close` releases our copies of `pass_fds` and whatever else was
    kept for the start: call it once the process is started, or will not be. It never raises.
    `uid` is who the command will be on the host where that is not the caller (root's sandbox
    is nobody): a pipe made for its streams must belong to it, or it cannot open /dev/stdout.
    `here`, where there is one, starts the same as a child of this process instead of `argv`:
    for a small program of ours with a single thread. It calls its argument in the child
    before anything else, and returns the child's pid. `told`, where there is a network gateway,
    is what it tells: to be read while the command runs, and finished at the end. `limited` is what
    holds its limits where those take more than its own process: to be closed at the end.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    pass_fds: tuple[int, ...] = ()
    status: int | None = None
    failure: Callable[[bytes], str | None] = lambda _: None
    relays: bool = False
    close: Callable[[], None] = lambda: None
    uid: int | None = None
    here: Callable[[Callable[[], None]], int] | None = None
    told: Told | None = None
    limited: Alone | None = None


class Enforcement(Value):
    """What is really in force: the protections that hold, and every gap."""

    backend: str
    held: tuple[str, ...]
    gaps: tuple[Gap, ...]
    why: str = ""
    #: By what each limit of the policy is held, where a sandbox as a whole is limited.
    limits: tuple[Held, ...] = ()

    @classmethod
    def of(cls, backend: str, gaps: tuple[Gap, ...], why: str = "") -> Enforcement:
        """All protections but those a gap names."""
        open_ = {gap.protection for gap in gaps}
        return cls(backend, tuple(name for name in PROTECTIONS if name not in open_), gaps, why)


class Backend(Protocol):
    """One way to confine a command."""

    name: str

    def probe(self) -> Probe:
        """Try it in a child process. Never raises; the answer says why not and how to fix it."""

    def gaps(self, plan: Plan) -> tuple[Gap, ...]:
        """What this backend cannot hold of `plan` on this host. Starts nothing."""

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        """Everything `prepare` would set up, in order, printable."""

    def prepare(self, plan: Plan, command: Sequence[str]) -> Launch:
        """The confined command. Raises rather than weaken anything."""
