"""One bash at a time, its state, and the words that reach its builtins.

If bash may not survive the next text, its state is read first; otherwise shortly after each command that may
have changed it, while the shell is idle. If bash has ended, another one with the known state replaces it. For
one thread at a time.
"""

from __future__ import annotations

import os
import time
from functools import partial

from ..errors import LaunchFailed
from ..interrupts import uninterrupted, uninterruptible
from ..ipc.agent_client import exit_code
from ..ipc.agent_messages import BRAKE, BRAKE_TRAP, KILL_SHELL
from ..launch.signals import SIGKILL
from . import hazards, protocol, state
from .bash_process import BashProcess
from .command import shell_outcome
from .quoting import quoted
from .state import SavedShell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ipc.opened_shell import ShellPaths
    from .command import BegunCommand, CommandSpec, Outcome
    from .state import Dump, State
    from .usage_meter import UsageMeter

#: Seconds for our own texts; a shell that needs longer is unusable.
_PATIENCE = 10.0
#: Builtins without which a shell can be given no text.
_NEEDED = b"builtin enable . source return"
#: Reasons to replace a shell that has not ended.
_DEAF = "the shell was replaced, and has the state of before: it ran no text that it was given any more"
_DAMAGED = "the shell was replaced, and has its state: bash is damaged by a text that ends within `$(`"
#: Bash's error for such a text. It may misread the next ones, or abort.
_UNTERMINATED = b"unexpected EOF while looking for matching `)'"


#: For the next command's result, if a shell has ended between two commands.
_REPLACED = "the shell of this session had ended: another one with its last known state has taken its place"


class ShellEnded(Exception):
    """The shell did not survive a text of ours."""


class FirstState:
    """The state of every new shell of one plan, once one of them has reported it."""

    dump: Dump | None = None


class ShellState:
    """A bash that is replaced when it ends, and the state that its successor must get."""

    def __init__(
        self,
        bash: BashProcess,
        directory: str | None,
        meter: UsageMeter | None,
        start: str = "",
        first: FirstState | None = None,
    ) -> None:
        """Take over `bash`. `meter` measures the usage of commands.

        `directory` is the directory of `bash`, which a replacement must enter first because it does not start
        there. Otherwise `start` is the directory. `first` is shared with the other new shells of its plan.
        """
        self.bash, self._meter = bash, meter
        self._first = FirstState() if first is None else first
        self._directory = directory
        #: Initial directory, if known.
        self._start = os.fsencode(directory or start)
        self._secret, self._serial = os.urandom(6).hex().encode(), 0
        #: What the running command may do, judged by its words.
        self._may_end = self._may_shadow = False
        #: Seconds that the last reading of the state took.
        self.cost = 0.0
        self._notice = ""  # why the shell was replaced, for the next outcome
        self._is_compared = False  # whether `become` may compare the present state with a saved one
        #: Usual lines of a run, without its nonce, for these files and this access.
        self._usual: tuple[ShellPaths | None, protocol.BuiltinAccess | None, bytes] = None, None, b""
        self._forget()
        self.pending_setup = b""

    def _forget(self) -> None:
        """Reset all knowledge: bash has just started."""
        self._checked, self._used = False, False
        self._end_is_told = False  # by a result, or by an error
        self.access, self._prefix = protocol.BuiltinAccess(), state.BUILTIN_PREFIXES[0]
        self.known = KnownState()
        self._initial: state.Dump | None = None
        #: A text may have hidden a builtin; because of it a later text may end the shell; the shell may
        #: misread later texts.
        self._may_be_shadowed, self._tainted, self._damaged = False, False, False
        self.traps = OurTraps()
        self.status, self.newest_job, self._flags = 0, 0, b""
        self.cwd, self._oldpwd = b"", b""
        #: Lines before the next text, and lines after the running command.
        self.pending_setup = self._put_back = b""
        if self._directory is not None:
            self.pending_setup = protocol.first_directory(self._directory)

    # ---------------------------------------------------------------- a command

    def ensure_bash(self, *, look: bool = True) -> None:
        """Ensure a running bash with its own pipes.

        Without `look`, the next text detects a bash that has just ended.
        """
        if self.bash.ended is not None or (look and not self.bash.idle()):
            self.replace()
        elif self.bash.stale:
            uninterrupted(self.bash.renew)

    def is_ready(self, spec: CommandSpec) -> bool:
        """Whether `begin` needs no exchange with the shell before this command."""
        must_ask = self._damaged or self._must_be_asked(hazards.may_end(spec.text))
        unknown = must_ask or (spec.cwd is not None and not self.cwd)
        return not unknown and not self.bash.parked and not self.bash.stale and self.bash.idle()

    def begin(self, command: BegunCommand) -> BashProcess:
        """Give `command` to a bash that can take it, and set its `run`. Returns that bash."""
        if self.bash.ended is not None or self.bash.stale:
            self.ensure_bash(look=False)
        if self.bash.parked:
            self.bash.attach()  # first: nothing is held open while it waits for descriptors
        if self._meter is not None:
            self._meter.begin(self.bash.host_pid)
        self._prepare(command.spec)
        pending = self.pending_setup
        try:
            self._give(command)
        except BaseException:
            if not self.bash.has_begun(command.run):
                self.pending_setup = pending
            elif not command.is_given:
                self._ask_again(command.run, pending)
            raise
        return self.bash

    def begin_elsewhere(self, command: BegunCommand) -> None:
        """Give it to another bash: this one has ended, or has no free descriptors."""
        self._check_version()
        self.replace()
        self._give(command)

    def _prepare(self, spec: CommandSpec) -> None:
        """Prepare a bash that can take the text."""
        may_end, self._may_shadow = hazards.judge(spec.text)
        self._may_end = may_end
        if self._damaged:
            self._leave_damaged()
        if self._must_be_asked(may_end):
            self.read_state()
        if may_end or not self.traps.braked:
            self._set_traps(spec.text)
        if spec.cwd is not None:
            self.directory()
        if spec.env and None in spec.env.values() and (self.known.is_dirty or self.known.dump is None):
            self.read_state()  # unset variables get their value back afterwards

    def _must_be_asked(self, may_end: bool) -> bool:
        """Whether the shell must report its state before a text that it may not survive."""
        wary = may_end or self._may_be_shadowed or self._tainted or ERREXIT in self._flags
        return wary and self.known.is_dirty

    def _set_traps(self, text: bytes) -> None:
        """Set our traps in the shell, unless `text` might see them."""
        self.pending_setup += self.traps.lines(text, self._prefix)
        if self.traps.wants_guard(text, self._prefix, self.known.dump, self._flags, self._tainted):
            asked = state.question(self._secret, self.bash.files.paths.done, self._prefix)
            self.pending_setup += self.traps.guard(asked, self._prefix)

    def _give(self, command: BegunCommand) -> None:
        """Hand the text of `command` over to bash."""
        spec, known = command.spec, self.known.dump
        text, stdin, cwd, status = spec.text, spec.stdin, spec.cwd, self.status
        self._used = True
        if known is not None and known.debug_trap is not None and b"T" not in self._flags:
            # A sourced text does not see the DEBUG trap, and restores it at its end.
            text = b"%btrap -- %b DEBUG; %b" % (self._prefix, quoted(known.debug_trap), text)
            self.pending_setup += self._prefix + b"trap - DEBUG\n"
        settings: protocol.RunSettings = {}
        if status or stdin is not None or spec.merge:
            settings = {"status": status, "has_input": stdin is not None, "merge": spec.merge}
        if cwd is not None:
            settings["cwd"] = os.fsencode(cwd if cwd.startswith("/") else f"./{cwd}")
        if spec.env:
            settings["env"], unset, self._put_back = state.variables(spec.env, known, self._prefix)
            self.pending_setup += unset
        command.run = run = self._next_run(spec.timeout, settings)
        out, err, give_back = command.give_out, command.give_err, self.access.give_back
        may_load = self._may_shadow and hazards.may_load_builtins(spec.text)
        try:
            self.bash.begin(run, out, err, text, status, give_back, stdin, listen=self.traps.guarded)
            # While it runs: nobody waits for this.
            self.known.runs(spec.text, as_it_is=cwd is None and not spec.env, may_load=may_load)
        except BaseException:
            self.known.runs(spec.text, as_it_is=False, may_load=may_load)
            raise

    def _next_run(self, timeout: float | None, settings: protocol.RunSettings | None = None) -> protocol.Run:
        self._serial += 1
        nonce, paths = b"%b%d" % (self._secret, self._serial), self.bash.files.paths
        before, self.pending_setup = self.pending_setup, b""
        if before or settings:
            said = protocol.lines(paths, nonce, self.access, before=before, **(settings or {}))
        else:
            known, access, said = self._usual
            if known is not paths or access is not self.access:
                said = protocol.lines(paths, b"%b", self.access)
                self._usual = paths, self.access, said
            said %= (nonce, nonce, nonce)
        return protocol.Run(nonce, said, timeout)

    def finish(
        self, run: protocol.Run, spec: CommandSpec, duration: float, last_errors: bytes = b""
    ) -> Outcome:
        """Record how a command ended, and return its outcome. Its stderr ended with `last_errors`."""
        code = self._note(run, is_elsewhere=spec.cwd is not None)
        self._may_be_shadowed = self._may_be_shadowed or self._may_shadow
        self._tainted = self._tainted or (self._may_end and hazards.may_break_later(spec.text))
        self._damaged = self._damaged or (code == 2 and _UNTERMINATED in last_errors)
        outcome = shell_outcome(run, code, duration, self.cwd or self._start, self.newest_job)
        if self._notice:
            outcome.why, self._notice = outcome.why or self._notice, ""
        if self._meter is not None:
            self._meter.end(outcome, self.bash.used)
        return outcome

    def _note(self, run: protocol.Run, *, is_elsewhere: bool) -> int:
        """Record bash's answer at the end of a command. Returns the exit status.

        With `is_elsewhere` the command ran in another directory, and the shell must return.
        """
        self._check_version()
        answer, put_back = run.answer, self._put_back
        self._put_back = b""
        if answer is not None:
            self.pending_setup += put_back
            self.status, self.newest_job = answer.status, answer.newest_job
            if run.was_ended:
                self.known.doubt()
            if is_elsewhere:
                self._flags = answer.flags
                self.pending_setup += protocol.back_to(self.cwd, self._oldpwd)
            else:
                self._compare(answer)
        elif run.ended is not None:
            self._end_is_told = True
            self.status, self.newest_job, self._flags = exit_code(run.ended), 0, b""
            if self.traps.guarded and (last := state.Dump.find(self._secret, bytes(self.bash.noise or b""))):
                self.known.told(self.traps.without(last))
        return self.status

    # ---------------------------------------------------------------- our own texts

    def _do(self, text: bytes) -> bytes:
        """Run a text of ours, ignoring its output. Returns what the shell itself printed meanwhile."""
        bash = self.bash
        if self._meter is not None:
            self._meter.is_prewarmed = False
        run = self._next_run(_PATIENCE)
        bash.begin(run, _drop, _drop, text, listen=True)
        bash.wait_briefly()
        while not run.over:
            bash.step(max(0.0, (run.deadline or 0) - time.monotonic()))
            step = run.step(time.monotonic())
            if step not in (None, BRAKE):
                bash.ask_step(step, run.began, self.newest_job)
        bash.drain()
        self._check_version()
        if run.answer is None:
            bash.ended = bash.ended or SIGKILL
            raise ShellEnded
        self._compare(run.answer)
        return bytes(bash.noise or b"")

    def _compare(self, answer: protocol.ShellAnswer) -> None:
        """Record the state in an answer, and mark the known state as doubtful if it differs."""
        told = answer.flags, answer.cwd, answer.oldpwd
        if told != (self._flags, self.cwd, self._oldpwd):
            self.known.doubt()
            self._flags, self.cwd, self._oldpwd = told

    @uninterruptible
    def read_state(self) -> None:
        """Read the state, and find words that reach builtins; replace the shell if that ends it."""
        began = time.monotonic()
        try:
            self._read_state()
        except ShellEnded:
            self.replace()
        self.cost = time.monotonic() - began

    def _read_state(self, *, desperate: bool = False) -> None:
        every = ((access, prefix) for prefix in state.BUILTIN_PREFIXES for access in protocol.ACCESSES)
        together = not desperate and not may_print(self.known.dump, self._flags, self._tainted)
        for access, prefix in ((self.access, self._prefix), *every):
            self.access = access
            self._serial += 1
            nonce = b"%bd%d" % (self._secret, self._serial)
            place = self.bash.files.paths.done
            self.pending_setup += state.debug_question(nonce, place, prefix)
            asked = state.question(nonce, place, prefix, together=together)
            if (found := state.Dump.find(nonce, self._do(asked))) is not None:
                break
            together = False
        else:
            self.access = protocol.BuiltinAccess()
            if not desperate:  # perhaps no builtin is left that reads a file
                for word in state.BUILTIN_PREFIXES:
                    self.pending_setup += b"%benable %b 2>/dev/null\n" % (word, _NEEDED)
                self._read_state(desperate=True)
            elif not self._can_be_given_a_text():
                self._notice = _DEAF
                raise ShellEnded
            self.known.give_up()
            self._may_be_shadowed = False
            return
        self._prefix = prefix
        self.known.told(self.traps.without(found))
        self.access = protocol.builtin_access(found.functions(), found.disabled()) or access
        self._may_be_shadowed = False

    def _can_be_given_a_text(self) -> bool:
        """Whether the shell runs a text at all, even if it does not report its state."""
        paths, mark = self.bash.files.paths, b"%bx" % self._secret
        return mark in self._do(b"((0)) 2>%b >%b/%b || _=" % (paths.done, paths.missing_dir, mark))

    def _leave_damaged(self) -> None:
        """Continue in another bash, unless this one has jobs."""
        self._damaged = False
        self.read_state()
        if not self.newest_job:
            self._notice = _DAMAGED
            self.replace()

    def last_state(self) -> state.State | None:
        """Return the last read state, if any, with the directory, which is known after each command."""
        known, cwd = self.known.state(), self.cwd
        return known.replace(cwd=os.fsdecode(cwd)) if known is not None and cwd else known

    def state(self) -> state.State:
        """Return the state of the shell now."""
        if self.known.is_dirty or self.known.dump is None:
            self.read_state()
        if (known := self.known.state()) is not None:
            return known
        raise LaunchFailed(
            "the state of the shell cannot be read",
            why="a function shadows a bash builtin, or a DEBUG trap blocks commands",
            fix="unset it, or start again: sb.session(NAME).restart(), sb.reset()",
        )

    def saved(self) -> SavedShell:
        """Save the present state of the shell."""
        self._is_compared = True
        if self.known.is_dirty or self.known.dump is None:
            self.read_state()
        return SavedShell(self.known.dump, self.status, self.cwd)

    def directory(self) -> str:
        """Return the shell's working directory."""
        if not self.cwd:
            uninterrupted(partial(self._do, b""))
        return os.fsdecode(self.cwd)

    def reenter_directory(self) -> None:
        """Enter the present directory by its name, or one above if it is gone.

        This happens before the next text, a caller's or our own.
        """
        self.directory()
        said = protocol.back_to(self.cwd, self._oldpwd, or_above=True)
        if not self.pending_setup.endswith(said):
            self.pending_setup += said

    @uninterruptible
    def flush_setup(self) -> None:
        """Run the lines that wait for the next text."""
        if self.pending_setup:
            try:
                self._do(b"")
            except ShellEnded:
                self.replace()

    # ---------------------------------------------------------------- between commands

    def maintain(self) -> None:
        """Do now, while the shell is idle, what would delay the next command."""
        if not self.bash.parked:
            self.ensure_bash()
            if self._damaged:
                self._leave_damaged()
            elif self.known.is_dirty:
                self.read_state()
            else:
                self.flush_setup()
            self.prewarm()
            if self._is_compared:
                self.known.precompute_key()

    def prewarm(self) -> None:
        """Take the meter's sample now, before the next command."""
        if self._meter is not None:
            self._meter.prewarm(self.bash.host_pid)

    def park(self) -> None:
        """Release descriptors that an idle shell does not need."""
        self.bash.park()
        if self._meter is not None:
            self._meter.park()

    def close(self) -> None:
        """End bash and its processes."""
        self.bash.close()
        if self._meter is not None:
            self._meter.park()

    # ---------------------------------------------------------------- replacing bash

    def abandon(self, run: protocol.Run) -> None:
        """Give up `run`, which is driven no further: its shell ends, and the next text gets another one."""
        self.bash.ask_step(KILL_SHELL, run.began, self.newest_job)
        self.bash.ended, self._end_is_told = SIGKILL, True

    def _ask_again(self, run: protocol.Run, pending_setup: bytes) -> None:
        """Make a shell answer that may or may not have received `run`, or end it.

        `pending_setup` are the lines that would have come before it.
        """
        if not self.bash.say_instead(
            run, pending_setup + protocol.question(self.bash.files.paths, run.nonce)
        ):
            self.abandon(run)

    @uninterruptible
    def become(self, saved: SavedShell | None) -> None:
        """Enter the saved state, in another bash if necessary; without one, begin anew."""
        if saved is not None and saved.dump is not None and not self.bash.stale and self.bash.idle():
            self._is_compared = True
            is_new = not self._used and self.known.dump is None
            now = (self._first.dump if is_new else None) or self.saved().dump
            if is_new:
                self._first.dump = now
            if now is not None and now.equals(saved.dump) and not self.newest_job:
                # Equal except for the directory, which a shell that continues from here enters as well.
                self.known.dump, self.status, self.cwd = saved.dump, saved.status, saved.cwd
                self.reenter_directory()
                return
            if now is not None and not self._used and self._replay_here(saved, now):
                return
        if saved is None:
            self.restart()
        else:
            self.known.dump, self.status, self.cwd = saved.dump, saved.status, saved.cwd
            self.replace()

    def _replay_here(self, saved: SavedShell, usual: Dump) -> bool:
        """Replay a state in an unused shell. Returns whether the shell has survived it."""
        known = saved.dump
        if known is None:
            return False
        self._initial = usual
        hidden = known.disabled() | known.functions() & {b"builtin", b"command"}
        try:
            self._do(known.replay(usual))
            self.known.assume(known)
            if (
                hidden
                or known.debug_trap is not None
                or protocol.builtin_access(known.functions(), hidden) != self.access
            ):  # else it is reached as before, and verified when there is time
                self._read_state()
        except (ShellEnded, ValueError):
            return False
        self.status = saved.status
        return True

    @uninterruptible
    def restart(self) -> None:
        """Start another bash in its initial state."""
        old, self.bash = self.bash, self.bash.start_another()
        old.close()
        self._first = FirstState()  # files that a shell reads when it starts may be others now
        self._forget()

    @uninterruptible
    def replace(self) -> None:
        """Replace an ended bash by another one with the known state."""
        if not self._checked and self.bash.why:
            raise LaunchFailed(
                "bash could not be started", why=self.bash.why, fix="install bash, or let the policy show it"
            )
        if self.bash.ended is not None and not self._end_is_told:
            self._notice = self._notice or _REPLACED
        known, status, cwd = self.known.dump, self.status, self.cwd
        for careful in (False, True, None):
            self.restart()  # in the session's first directory: the known state leads on from there
            try:
                self._read_state()
                self._initial = self.known.dump
                if known is not None and careful is not None:
                    self._do(known.replay(self._initial, careful=careful))
                    self.known.assume(known)
                    self._read_state()
                elif cwd:
                    self._do(protocol.enter(cwd) + b"\n")
                break
            except (ShellEnded, ValueError):
                continue  # part of the state ends any shell that has it, or it is invalid
        self.known.dump = self.known.dump or known
        self.status = status

    def _check_version(self) -> None:
        """Check once that this bash is recent enough."""
        if not self._checked and self.bash.hello:
            protocol.check_version(self.bash.hello)
            self._checked = True


def _drop(_: bytes) -> None:
    pass


# Our own traps in a shell.
#
# The brake stops the shell on request; the guard reports its state when it exits.


#: Among the letters of `$-`.
ERREXIT = ord("e")


#: Options that print what the shell runs, or run traps within a text.
_TELLING = frozenset(b"xvTE")


def may_print(known: state.Dump | None, flags: bytes, tainted: bool) -> bool:
    """Whether a shell may print something between the commands of a text of ours."""
    return known is None or tainted or known.may_intervene() or not _TELLING.isdisjoint(flags)


class OurTraps:
    """Our traps that a shell has. It has the brake from the beginning."""

    def __init__(self) -> None:
        #: Whether it stops on request, and whether a command uses that signal otherwise.
        self.braked, self._brake_is_theirs = True, False
        #: Whether it reports its state when it exits.
        self.guarded = False

    def lines(self, text: bytes, prefix: bytes) -> bytes:
        """Return the lines that set or remove our traps so that `text` does not see them."""
        said = b""
        listed = hazards.lists_traps(text)
        if self.braked == listed and not self._brake_is_theirs:
            self.braked = not listed
            action = b"-" if listed else b"-- " + quoted(BRAKE_TRAP)
            said += b"%btrap %b SIGRTMAX\n" % (prefix, action)
        if b"trap" in text and self.guarded:
            self.guarded = False
            said += prefix + b"trap - EXIT\n"
        return said

    def wants_guard(
        self, text: bytes, prefix: bytes, known: state.Dump | None, flags: bytes, tainted: bool
    ) -> bool:
        """Whether the shell should report its state when it exits, unnoticed by the text."""
        if b"trap" in text or self.guarded or known is None or prefix == state.BUILTIN_PREFIXES[-1]:
            return False
        trapped = known.exit_trap is not None or known.debug_trap is not None
        traced = b"x" in flags or b"v" in flags or hazards.traces(text)
        leaves = hazards.may_leave(text) or tainted or ERREXIT in flags
        return leaves and not trapped and not traced

    def guard(self, asked: bytes, prefix: bytes) -> bytes:
        """Return the line that makes the shell run `asked` when it exits."""
        self.guarded = True
        return b"%btrap -- %b EXIT\n" % (prefix, quoted(asked))

    def without(self, found: state.Dump) -> state.Dump:
        """Return the dump without our traps, and record which are there."""
        self.guarded = self.guarded and found.exit_trap is not None
        if self.guarded:
            found.without_trap(b"EXIT")
        brake = found.trap(b"SIGRTMAX")
        self.braked = brake == BRAKE_TRAP
        self._brake_is_theirs = brake is not None and not self.braked
        if self.braked:
            found.without_trap(b"SIGRTMAX")
        return found


# Last reported state of a shell, and whether it is known to be still the same.
#
# A program does not change the state of the shell that runs it. So a text that only runs programs leaves the
# reported state valid. Its words decide about that, off the command's path.


#: The most texts kept for later judgement.
_MOST_UNJUDGED = 256


class KnownState:
    """Known state of one bash. For one thread at a time, except `is_settled`."""

    def __init__(self) -> None:
        self.dump: Dump | None = None
        self._is_dirty, self._is_settled = True, False
        self._unjudged: list[bytes] = []
        #: Whether an apparent program may be a loaded builtin.
        self._has_more_builtins = False

    def told(self, dump: Dump) -> None:
        """Record the state that the shell reported."""
        self.dump = dump
        self._is_dirty, self._is_settled = False, True
        self._unjudged.clear()

    def assume(self, dump: Dump) -> None:
        """Assume this state, which a replay has produced; verify it when the shell is idle."""
        self.dump, self._is_dirty = dump, True

    def give_up(self) -> None:
        """Stop asking before the next text: the state cannot be read."""
        self._is_dirty = False

    def runs(self, text: bytes, *, as_it_is: bool, may_load: bool) -> None:
        """Record that `text` runs; `as_it_is` without other variables and in the same directory.

        `may_load`: the text may load builtins.
        """
        may_stay = self._is_settled and as_it_is and len(text) <= hazards.LONGEST_PLAIN
        if may_stay and len(self._unjudged) < _MOST_UNJUDGED:
            self._unjudged.append(text)
        else:
            self.doubt()
        self._has_more_builtins = self._has_more_builtins or may_load

    def doubt(self) -> None:
        """Mark the reported state as possibly outdated."""
        self._is_dirty, self._is_settled = True, False
        self._unjudged.clear()

    @property
    def is_settled(self) -> bool:
        """Whether the variables are known to be the last reported ones. From any thread."""
        return self._is_settled and not self._unjudged

    @property
    def is_dirty(self) -> bool:
        """Whether the state may differ from the last reported one."""
        if self._unjudged:
            dump = self.dump
            if dump is None or self._has_more_builtins or not all(map(dump.is_kept_by, self._unjudged)):
                self.doubt()
            self._unjudged.clear()
        return self._is_dirty

    def state(self) -> State | None:
        """Return the last reported state; None if there is none, or it cannot be parsed."""
        try:
            return None if self.dump is None else self.dump.state()
        except (ValueError, IndexError):
            return None  # a command can make a shell print anything

    def precompute_key(self) -> None:
        """Compute the key for comparisons in advance."""
        if self.dump is not None and not self.is_dirty:
            try:
                self.dump.key()
            except ValueError:
                pass  # the comparison detects it
