"""Confine the commands of an environment: choose the backend, the write grants, and a layer or none."""

from __future__ import annotations

import _thread
import os

from .. import backends, places
from ..enforcement import Enforcement
from ..errors import BackendUnavailable, CommandNotFound, LayerError, PolicyError, PolicyNotEnforceable
from ..launch.view import find_program
from ..paths import covers
from ..policy.compiler import compile
from ..policy.plan import Layered
from ..policy.workspace import with_copy
from ..wrapping import WrappedCommand, checked, prepare
from . import writable_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..enforcement import Gap
    from ..errors import LaunchFailed
    from ..events import Event
    from ..files.globs import GlobSet
    from ..policy import Policy
    from ..policy.plan import Plan
    from .command_layer import CommandLayer, CommandLayers

#: The backend with layers, and the one without confinement.
_LAYERED, _UNCONFINED = "namespaces", "native"


class CommandConfinement:
    """Confines commands that work in `path` by `policy` and, if given, by `globs`.

    `plan` is the policy compiled without the environment's write grants.
    """

    def __init__(
        self,
        path: str,
        policy: Policy,
        globs: GlobSet | None,
        *,
        plan: Plan,
        backend: str,
        record: bool,
    ) -> None:
        if backend not in ("auto", *backends.NAMES):
            backends.get(backend)  # raises an error
        self._path, self._policy, self._globs = path, policy, globs
        self._hidden = tuple(item.path for item in plan.hidden)
        written = [grant.path for grant in plan.grants if grant.access == "write"]
        self._by_policy = tuple(writable_paths.by_policy(place) for place in written if covers(path, place))
        self._backend, self._record = backend, record
        self._layers: CommandLayers | None = None
        self._first = _thread.allocate_lock()
        #: The kernel's reason, once a command could not be started in a layer.
        self._refused = ""

    def prepared(
        self, root: int, argv: list[str], env: Mapping[str, str] | None, cwd: str | None = None
    ) -> tuple[WrappedCommand, CommandLayer | None]:
        """Return the unstarted command, and its layer if it needs one. `root` is the open directory.

        It starts in `cwd` (see `directly`); in a layer always in the directory.
        """
        writable_paths.refuse_replaced(root, self._path)
        division = self._division(root)
        if division is not None:
            try:
                return self._in_a_layer(root, division, argv, env)
            except (BackendUnavailable, LayerError, PolicyNotEnforceable):
                pass  # `limits` reports it
        if self._copied() is not None:
            return self._in_a_copy(root, argv, env, cwd)
        return self.directly(root, argv, env, cwd), None

    def directly(
        self, root: int, argv: list[str], env: Mapping[str, str] | None, cwd: str | None = None
    ) -> WrappedCommand:
        """Return the unstarted command without a layer. `writable_paths.grants` decides what it may write.

        It starts in `cwd` if the policy makes it visible, else in the directory.
        """
        writable_paths.refuse_replaced(root, self._path)
        names = [""] if self._globs is None else writable_paths.grants(root, self._globs, make=True)
        policy, written = self._with(names)
        start = self._path if cwd is None else _visible(policy, cwd, self._path)
        try:
            made = self._wrap(argv, policy, self._backend, env, start)
        except BackendUnavailable:
            if not self._record:
                raise
            made = self._wrap(argv, policy, "native", env, start)
        return _looked_at(made, argv[0], written)

    def take_over(self, layer: CommandLayer) -> tuple[Event, ...]:
        """Write the allowed changes in `layer` to the directory. Returns the others as events."""
        globs, unprotect = self._globs, self._policy.unprotect
        own = places.within(self._path)

        def why_not(name: str) -> str:
            if globs is not None and not globs.matches(name):
                return writable_paths.NOT_NAMED
            if any(covers(place, f"{self._path}/{name}") for place in own):
                return "it is staddle's own, and trusted later"
            return "the policy denies it" if self.hides(name) else ""

        def may_be_protected(name: str, protected: str) -> bool:
            return protected in unprotect or (globs is not None and name in globs.literals)

        return layer.take_over(why_not, may_be_protected)

    def goes_on_without_layer(self, error: LaunchFailed) -> bool:
        """Whether to start a command without a layer after this error. `limits` reports it from then on."""
        from ..mounts.builder import NO_LAYER

        if NO_LAYER not in error.why:
            return False
        if self._record:
            self._refused = error.why
        else:
            error.fix = "use on_unavailable='record' to have commands confined to directories instead"
        return self._record

    def hides(self, name: str) -> bool:
        """Whether the policy hides `name`, below the directory."""
        path = os.path.join(self._path, name)
        return any(covers(hidden, path) for hidden in self._hidden)

    def enforced(self, root: int) -> Enforcement:
        """Return the enforcement of the next command, with all gaps."""
        writable_paths.refuse_replaced(root, self._path)
        found = self._layered(root)
        if isinstance(found, Enforcement):
            return _with_gaps(found, self._by_policy)
        if (copied := self._copied()) is not None:
            return _with_gaps(copied, (writable_paths.copied(self._path), *self._by_policy))
        held = self._without_layer(root)
        return _with_gaps(held, self._limits(root, found, held))

    def _without_layer(self, root: int) -> Enforcement:
        """Return the enforcement of a command without a layer."""
        names = [""] if self._globs is None else writable_paths.grants(root, self._globs, make=False)
        plan = compile(self._with(names)[0], cwd=self._path)
        try:
            return backends.choose(plan, self._backend, best_effort=self._record)[1]
        except BackendUnavailable:
            if not self._record:
                raise
            return backends.choose(plan, _UNCONFINED, best_effort=True)[1]

    def limits(self, root: int) -> tuple[Gap, ...]:
        """Return the gaps: commands may write more than the globs name, or cannot be started in a layer."""
        found = self._layered(root)
        if isinstance(found, Enforcement) or self._copied() is not None:
            return self._by_policy
        # Only in these two cases can a command be unconfined.
        open_ended = self._record or self._backend == _UNCONFINED
        return self._limits(root, found, self._without_layer(root) if open_ended else None)

    def _limits(self, root: int, found: str, held: Enforcement | None) -> tuple[Gap, ...]:
        """Return the gaps of commands without a layer, for the reason `found`, with enforcement `held`."""
        if held is not None and held.backend == _UNCONFINED:
            return (writable_paths.unconfined(held.why),)
        if self._globs is None:
            return ()
        wider = writable_paths.limits(root, self._globs)
        if wider and found:
            wider = (*wider, writable_paths.unlayered(found))
        return (*wider, *self._by_policy)

    def close(self) -> None:
        """Release the resources for commands."""
        if self._layers is not None:
            self._layers.close()

    # Internal.

    def _division(self, root: int) -> list[str] | None:
        """Return the directories that a command in a layer writes directly; None if it gets no layer."""
        if self._globs is None or self._refused or self._backend not in ("auto", _LAYERED):
            return None
        if _LAYERED not in (*backends.candidates(), self._backend):
            return None
        whole, more = writable_paths.division(root, self._globs)
        return whole if more else None

    def _layered(self, root: int) -> Enforcement | str:
        """Return the enforcement of a command in a layer, or why there is none; "" if none is needed."""
        division = self._division(root)
        if division is None:
            return self._refused
        plan = compile(self._with(division)[0], cwd=self._path)
        # Only for the question: this layer is never mounted.
        asked = plan.replace(layers=(Layered(self._path, self._path, self._path, "writable_paths"),))
        try:
            _, held = backends.choose(asked, self._backend)
            self._kept(copies=False).layer(root, None).close()
        except (BackendUnavailable, LayerError, PolicyNotEnforceable) as error:
            return f"{error.what}: {error.why}"
        return held

    def _in_a_layer(
        self, root: int, division: list[str], argv: list[str], env: Mapping[str, str] | None
    ) -> tuple[WrappedCommand, CommandLayer]:
        from ..linux.idmaps import unprivileged_uid

        policy, written = self._with(division)
        plan = compile(policy, cwd=self._path, env=env)
        probe = backends.get(_LAYERED).probe()
        if not probe.usable:
            raise BackendUnavailable("there is no backend with layers", why=probe.why, fix=probe.fix)
        who = unprivileged_uid()
        layer = self._kept(copies=False).layer(root, who if isinstance(who, int) else None)
        return self._over(layer, plan, argv, written, best_effort=False), layer

    def _copied(self) -> Enforcement | None:
        """Return the enforcement of a command that works in a copy; None if it can write in place.

        Raises PolicyNotEnforceable if no backend can enforce the policy even with a copy.
        """
        if os.geteuid() != 0 or self._backend not in ("auto", "landlock"):
            return None
        if self._backend == "auto" and backends.get(_LAYERED).probe().usable:
            return None
        if not backends.needs_copy(compile(self._with([""])[0], cwd=self._path)):
            return None
        # Only for the question: the copy will be elsewhere.
        asked = with_copy(compile(self._policy, cwd=self._path), self._path, moved=False)
        try:
            chosen, held = backends.choose(asked, self._backend, best_effort=self._record)
        except BackendUnavailable:
            return None  # without a copy there is none either; starting it reports that
        return held if chosen.name == "landlock" else None

    def _in_a_copy(
        self, root: int, argv: list[str], env: Mapping[str, str] | None, cwd: str | None
    ) -> tuple[WrappedCommand, CommandLayer]:
        start = self._path if cwd is None else _visible(self._policy, cwd, self._path)
        plan = compile(self._policy, cwd=start, env=env)
        prefix = self._path.rstrip("/") + "/"
        hidden = [path.removeprefix(prefix) for path in self._hidden if path.startswith(prefix)]
        layer = self._kept(copies=True).copy(root, hidden)
        return self._over(layer, plan, argv, [], best_effort=self._record), layer

    def _over(
        self, layer: CommandLayer, plan: Plan, argv: list[str], written: list[str], *, best_effort: bool
    ) -> WrappedCommand:
        """Return the command with `layer` over the directory. Closes the layer on an error."""
        try:
            made = prepare(checked(argv), layer.under(plan), backend=self._backend, best_effort=best_effort)
            return _looked_at(made, argv[0], written)
        except BaseException:
            layer.close()
            raise

    def _kept(self, *, copies: bool) -> CommandLayers:
        if self._layers is None:
            from .command_layer import CommandLayers  # loads all of commit; only if needed

            with self._first:
                self._layers = self._layers or CommandLayers(self._path, copies=copies)
        return self._layers

    def _with(self, names: list[str]) -> tuple[Policy, list[str]]:
        """Return the policy with write grants for `names` below the directory, and their paths."""
        written = [os.path.join(self._path, name) if name else self._path for name in names]
        return self._policy.with_write(*written), written

    def _wrap(
        self, argv: list[str], policy: Policy, backend: str, env: Mapping[str, str] | None, cwd: str
    ) -> WrappedCommand:
        if backend == "native":
            argv = ["setsid", *argv]  # a new session, to find all its processes
        # Not `wrap`, which makes a program readable that is named by path: here an agent names it.
        plan = compile(policy, cwd=cwd, env=env)
        return prepare(checked(argv), plan, backend=backend, best_effort=self._record)


def _with_gaps(enforced: Enforcement, more: Iterable[Gap]) -> Enforcement:
    gaps = (*enforced.gaps, *more)
    return Enforcement.of(enforced.backend, gaps, enforced.why, nested=enforced.nested)


def _visible(policy: Policy, directory: str, otherwise: str) -> str:
    """Return `directory` if a command with `policy` can start there, else `otherwise`.

    Below a private directory only grants exist inside.
    """
    try:
        plan = compile(policy, cwd=directory)
    except PolicyError:
        return otherwise
    is_private = any(covers(place.path, plan.cwd) and place.path != plan.cwd for place in plan.scratch)
    return otherwise if is_private and not plan.shows(plan.cwd) else plan.cwd


def _looked_at(made: WrappedCommand, program: str, written: list[str]) -> WrappedCommand:
    """Return `made` if no writable path leads elsewhere and the program exists."""
    try:
        writable_paths.refuse_strangers(made.plan, written)
        if made.backend == "native":
            _find_anywhere(made.plan, made.env, program)
        else:
            find_program(made.plan, program)
    except BaseException:
        made.close()
        raise
    return made


def _find_anywhere(plan: Plan, env: Mapping[str, str], program: str) -> None:
    """Raise CommandNotFound as for a confined command, without hidden paths."""
    import shutil

    at = os.path.join(plan.cwd, program) if "/" in program else program
    if shutil.which(at, path=env.get("PATH", os.defpath)) is None:
        raise CommandNotFound(
            f"there is no program {program!r}",
            why="it is in no directory of the PATH inside",
            fix="give its full path, and grant it with policy.with_read()",
        )
