"""The proposed policy: the grants that a recording needs, each with the reason, as a policy file."""

from __future__ import annotations

import os
import shlex
from functools import cache

from .._value import Value
from ..display import counted, shown
from ..hostinfo.protected import protected_name
from ..paths import WORKSPACE_PATH, above, covers, not_for
from ..policy import Policy, presets
from ..policy.egress import PLACE
from . import http_folding, policy_data
from .folding import Used, fold, is_never

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..egress_request import EgressRequest
    from ..policy.plan import Plan
    from .facts import Fact, HostFact, Recording

#: Where programs of every user are stored: a proposal never makes these writable.
_SYSTEM = ("/bin", "/boot", "/etc", "/lib", "/lib64", "/opt", "/sbin", "/usr")
#: Sockets through which a program gets out of any sandbox, by their names.
_DANGEROUS_SOCKETS = (
    "docker.sock",
    "containerd.sock",
    "podman.sock",
    "crio.sock",
    "S.gpg-agent",
    "snapd.socket",
)
#: Headroom of the limits above what was measured, and their least values.
_MORE_MEMORY, _MORE_PROCESSES, _MORE_TIME = 1.5, 2, 3
_LEAST_MEMORY, _LEAST_PROCESSES, _LEAST_TIME = 256 << 20, 64, 10
_STEP = 64 << 20
#: The first lines of a learned policy file.
_LEARNED_FROM = "# Learned by staddle from: "
_MOST_NAMED, _LONGEST_REASON = 2, 200
_MOST_LINKS = 8
_LEADING = "directories that are visible because of something below them"
_MOST_LOUD = 12
_MOST_HIDDEN = 4
#: The most proposed grants of one field. Only a run that reads all over a home needs more.
_MOST_GRANTS = 100


class World(Value):
    """The sandbox and host that a proposal is for. All plans are of the directory in which it was learned.

    `plan` is the sandbox without the learned grants, `watched` the one that was watched. `apart`: changes of
    the workspace go to a layer, not to the host.
    """

    policy: Policy
    plan: Plan
    watched: Plan
    home: str
    workspace: str | None
    apart: bool = True
    #: Files of /etc that not every user may read.
    private: tuple[str, ...] = ()
    #: Whether the policy had toolchains before learning.
    had_toolchains: bool = True

    def covers(self, path: str, *, writes: bool = False) -> bool:
        """Whether the policy allows this use of `path` without any learned grant."""
        path = self._followed(path)
        if covers(WORKSPACE_PATH, path):
            return not writes or self.apart or self.plan.access(path) == "write"
        if any(covers(each.path, path) for each in self.plan.hidden):
            return False
        if not writes and (path == "/" or self._leads(path)):
            return True
        if self.watched.shows(path) and not self.plan.shows(path):
            return False  # a private directory of the sandbox has no such file
        return self.plan.access(path) in (("write",) if writes else ("read", "write"))

    def is_hosts(self, path: str) -> bool:
        """Whether the sandbox shows the host's own directory at `path`, or one that only the sandbox has."""
        path = self._followed(path)
        return covers(WORKSPACE_PATH, path) or self.plan.shows(path) or self.watched.shows(path)

    def _followed(self, path: str) -> str:
        """Return `path` behind the links that every sandbox has, such as /bin."""
        for _ in range(_MOST_LINKS):
            link = next((each for each in self.plan.links if covers(each.path, path)), None)
            if link is None:
                break
            target = os.path.normpath(os.path.join(os.path.dirname(link.path), link.target))
            if covers(link.path, target):
                break
            path = target + path[len(link.path) :]
        return path

    def _leads(self, path: str) -> bool:
        """Whether `path` is a directory that is visible because something below it is."""
        known, plan = self.plan.derived, self.plan
        if _LEADING not in known:
            items = (plan.grants, plan.scratch, plan.texts, plan.links)
            paths = [item.path for several in items for item in several]
            known[_LEADING] = frozenset(each for path in paths for each in (path, *above(path)))
        return bool(path in known[_LEADING])

    def is_own(self, path: str) -> bool:
        """Whether `path` is in the workspace or in a private directory of the sandbox."""
        path = self._followed(path)
        return covers(WORKSPACE_PATH, path) or not (self.plan.shows(path) or self.watched.shows(path))

    def denied(self, path: str) -> str:
        """Return the origin of the rule that hides `path` even while learning, or an empty text."""
        if any(covers(each, path) for each in self.private):
            return "its permissions: other users may not read it"
        items = [item for item in self.watched.hidden if covers(item.path, path)]
        if items:
            return max(items, key=lambda item: len(item.path)).origin
        places = _denied(self.policy.preset, self.home)
        return "" if places.isdisjoint((path, *above(path))) else f"preset {self.policy.preset}"


class Learned(Value):
    """The result of learning: the proposed `policy`, its `text`, and the recorded `facts`.

    `warnings` are the lines that are only proposed as comments, because the default denies them for a
    reason. `refused` are uses that the run did without, or failed for.
    """

    recording: Recording
    policy: Policy
    warnings: tuple[str, ...]
    refused: tuple[Fact, ...]
    content: str

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The recorded uses of files and sockets."""
        return self.recording.facts

    def text(self) -> str:
        """Return the policy file, with a comment for each line that was learned."""
        return self.content

    def __repr__(self) -> str:
        return f"<Learned: {len(self.facts)} facts, {len(self.warnings)} warnings>"


@cache
def _denied(preset: str, home: str) -> frozenset[str]:
    return frozenset(each.replace("~", home, 1) for each in presets.denied(preset))


def propose(recording: Recording, world: World, before: str = "") -> Learned:
    """Return the smallest policy that would have let the recorded run through.

    `before` is the text of the policy file that it adds to. All that it grants is kept, with the comments.
    """
    why: dict[tuple[str, str], str] = {}
    loud: dict[str, list[str]] = {}
    data = policy_data.of_policy(world.policy, lambda path: placed(path, world))
    for entry, said in policy_data.comments(before).items():
        why.update({(field, entry): said for field in (*policy_data.PATHS, "network.allow", "network.http")})
    said_of = policy_data.value_comments(before)
    for name, value in data.get("limits", {}).items():
        why["limits." + name, ""] = said_of.get(f"{name} = {policy_data.toml(value)}", "")
    refused: list[Fact] = []
    grants: dict[str, list[Fact]] = {"read": [], "write": [], "sockets": []}
    for fact in recording.facts:
        if (field := _field(fact, world)) is None:
            continue
        if reason := _reason(fact, field, world):
            loud.setdefault(field, []).append(_loud(fact, reason, world))
            refused.append(fact)
        elif (fact.state == "hidden" or field == "write") and recording.succeeded:
            refused.append(fact)  # it was refused, and the run did without it
        else:
            grants[field].append(fact)
    learned: dict[str, dict[str, str]] = {}
    is_whole = recording.is_whole
    written = {fact.path for fact in grants["write"]}
    wanted = [fact for fact in grants["read"] if not written.intersection((fact.path, *above(fact.path)))]
    for field, facts in (("read", wanted), ("write", grants["write"])):
        covered = fold([Used(fact.path, fact.use == "list") for fact in facts], world.home)
        is_whole = is_whole and len(covered) <= _MOST_GRANTS
        covered = dict(list(covered.items())[:_MOST_GRANTS])
        learned[field] = {path: _told(files, facts) for path, files in covered.items()}
        folded = {path for files in covered.values() for path in files}
        for fact in facts:
            if fact.path not in folded and (fact.use == "list" or is_never(fact.path, world.home)):
                said = "far more is in it than was used: name what is needed below it"
                loud.setdefault(field, []).append(_loud(fact, said, world))
                refused.append(fact)
    sockets = grants["sockets"][:_MOST_GRANTS]
    learned["sockets"] = {fact.path: f"connected to by {fact.program}" for fact in sockets}
    for field, found in learned.items():
        for path, said in found.items():
            entry = placed(path, world)
            if entry not in data.setdefault(field, []):
                data[field].append(entry)
                why[field, entry] = said
        if not data.get(field):
            data.pop(field, None)
    _network(recording.hosts, data, why, loud)
    _requests(recording.requests, world, data, why)
    _limits(recording, data, why)
    if not (before and world.had_toolchains):  # an earlier command may need them
        _toolchains(recording, world, data, why)
    order = ("preset", "toolchains", "read", "write", "deny", "sockets")
    data = {key: data[key] for key in sorted(data, key=lambda key: order.index(key) if key in order else 9)}
    for field, several in loud.items():
        loud[field] = _bounded(several)
    earlier = [line for line in before.splitlines() if line.startswith(_LEARNED_FROM)]
    head = _head(earlier, recording.replace(is_whole=is_whole), loud, refused)
    text = head + policy_data.text(data, why, loud)
    warnings = tuple(line for several in loud.values() for line in several)
    policy = Policy.from_dict(data, workspace=world.workspace)
    return Learned(recording, policy, warnings, tuple(refused), content=text)


def placed(path: str, world: World) -> str:
    """Return a path as a policy file spells it, with placeholders."""
    for name, place in (("WORKSPACE", world.workspace), ("HOME", world.home)):
        if place is not None and covers(place, path):
            return f"${{{name}}}" + path[len(place) :].replace("$", "$$")
    return path.replace("$", "$$")


def _field(fact: Fact, world: World) -> str | None:
    """Return the field of the policy that this use needs; None if it is allowed already."""
    if fact.use == "connect":
        granted = any(socket.path == fact.path for socket in world.plan.sockets)
        # A socket that the programs of the sandbox made themselves.
        return None if granted or (world.covers(fact.path) and fact.state == "used") else "sockets"
    writes = fact.use == "write"
    if covers(PLACE, fact.path):
        return None  # the inspector's certificates: every sandbox that needs them has its own
    if fact.state == "hidden" and not world.plan.shows(fact.path):
        return "write" if writes else "read"
    if world.covers(fact.path, writes=writes):
        return None
    if writes and "/__pycache__/" in fact.path:
        return None  # Python goes on without
    return "write" if writes else "read"


def _reason(fact: Fact, field: str, world: World) -> str:
    """Return why the default denies this for a reason, or an empty text."""
    path = fact.path
    if not path.isprintable() or _is_undecodable(path):
        return "its name cannot be written in a policy file"
    if origin := world.denied(path):
        return f"denied by {origin}"
    if field == "sockets":
        name = os.path.basename(path)
        if name in _DANGEROUS_SOCKETS or "/ssh-" in path or name.startswith("agent."):
            return "a program that may use this socket can leave the sandbox"
        if covers(WORKSPACE_PATH, path):
            return "it is in the workspace: name its path on the host"
        return ""
    if field == "write":
        if covers(WORKSPACE_PATH, path):
            return "the workspace is read-only in this mode: use --mode overlay or bind"
        if any(covers(each, path) for each in _SYSTEM):
            return "every program of this host may use it"
        if protected_name(path.lstrip("/")) is not None:
            return "a protected name: what is written there runs outside of the sandbox"
    if found := not_for(field, path):
        return found[0]
    if fact.use != "list" and is_never(path, world.home):
        return "far more is in it than was used"
    return ""


def _is_undecodable(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return True
    return False


def _loud(fact: Fact, reason: str, world: World) -> str:
    entry = policy_data.toml(placed(fact.path, world))
    did = {"run": "run", "connect": "connected to", "write": "written", "list": "listed"}.get(
        fact.use, "read"
    )
    return f"# NOT GRANTED: {shown(entry)}  # {did} by {shown(fact.program)}: {shown(reason)}"


def _bounded(lines: list[str]) -> list[str]:
    more = len(lines) - _MOST_LOUD
    return lines if more <= 0 else [*lines[:_MOST_LOUD], f"# NOT GRANTED: and {more} more"]


def _told(files: tuple[str, ...], facts: Iterable[Fact]) -> str:
    """Return the reason for one grant: which programs, in which command, and some of the paths."""
    named = set(files)
    about = [fact for fact in facts if fact.path in named]
    programs = sorted({fact.program for fact in about})
    did = {"read": "read", "run": "run", "write": "written", "list": "listed"}
    uses = " and ".join(dict.fromkeys(did[fact.use] for fact in about if fact.use in did))
    who = ", ".join(programs[:_MOST_NAMED]) + (" and others" if len(programs) > _MOST_NAMED else "")
    some = ", ".join(os.path.basename(path) for path in files[:_MOST_NAMED])
    return f"{uses} by {who}" + (
        f": {some} and {counted(len(files) - _MOST_NAMED, 'other')}" if len(files) > 2 else ""
    )


def host_line(host: str, command: int) -> tuple[str, str]:
    """Return the entry of a policy for one host, and the reason. All proposed hosts are written here."""
    return host, f"connected to in command {command}"


def _network(
    hosts: Iterable[HostFact],
    data: dict[str, Any],
    why: dict[tuple[str, str], str],
    loud: dict[str, list[str]],
) -> None:
    """Add the hosts that were reached; a host that was refused is a comment."""
    reached = {fact.host: fact for fact in hosts if fact.allowed}
    table = data["network"]
    if reached:
        if table["mode"] != "allow":
            table.clear()
            table.update(mode="allow", allow=[])
        for host, fact in sorted(reached.items()):
            entry, said = host_line(host, fact.command)
            if entry not in table["allow"]:
                table["allow"].append(entry)
                why["network.allow", entry] = said
    for fact in hosts:
        if not fact.allowed and fact.host not in reached:
            entry = (
                f"# NOT GRANTED: {shown(policy_data.toml(fact.host))}  # asked for in command {fact.command}"
            )
            loud.setdefault("network.allow", []).append(f"{entry}: refused while learning")


def _requests(
    requests: Iterable[EgressRequest], world: World, data: dict[str, Any], why: dict[tuple[str, str], str]
) -> None:
    """Replace the hosts whose requests were inspected to learn them by rules about these requests."""
    known = {str(rule) for rule in world.policy.network.http}
    new = [rule for rule in world.watched.network.http if str(rule) not in known]
    made: dict[tuple[str, int], list[EgressRequest]] = {}
    for request in requests:
        if any(rule.covers(request.host, request.port) for rule in new):
            made.setdefault((request.host, request.port), []).append(request)
    table = data["network"]
    for (host, port), several in sorted(made.items()):
        entry = f"{host}:{port}"
        entries = [each for each in table["allow"] if each in (host, entry)] or [entry]
        used = [request for request in several if request.method and request.outcome != "refused"]
        failed = next((request.why for request in several if request not in used), "")
        if failed or not used:
            said = f"its requests cannot be inspected: {failed or 'none was seen'}"
            table["allow"] = list(dict.fromkeys([*table["allow"], *entries]))
            why.update({("network.allow", each): said for each in entries})
            continue
        table["allow"] = [each for each in table["allow"] if each not in (host, entry)]
        for (method, path), paths in http_folding.fold((each.method, each.path) for each in used).items():
            rule = f"{method} {entry}{path}"
            if rule not in table.setdefault("http", []):
                table["http"].append(rule)
            some = ", ".join(list(dict.fromkeys(paths))[:_MOST_NAMED])
            why["network.http", rule] = f"{counted(len(paths), 'request')}: {some}"[:_LONGEST_REASON]


def _limits(recording: Recording, data: dict[str, Any], why: dict[tuple[str, str], str]) -> None:
    """Add limits with headroom. Those that the policy sets itself stay, unless they were too low."""
    measured, table = recording.measured, data.setdefault("limits", {})
    found: dict[str, tuple[Any, str]] = {}
    if recording.commands:
        seconds = max(_LEAST_TIME, -int(-measured.seconds * _MORE_TIME // 1))
        found["timeout"] = seconds, f"took {measured.seconds:.1f} s"
    if measured.memory:
        needed = -int(-measured.memory * _MORE_MEMORY // _STEP) * _STEP
        size = max(_LEAST_MEMORY, needed)
        found["memory"] = f"{size >> 20}M", f"took {measured.memory / (1 << 20):.0f}M"
    if measured.processes:
        most = max(_LEAST_PROCESSES, measured.processes * _MORE_PROCESSES)
        found["processes"] = most, f"{measured.processes} at once were seen"
    for name, (value, said) in found.items():
        if name not in table or _is_more(value, table[name]):
            table[name] = value
            why[f"limits.{name}", ""] = said
    if not table:
        del data["limits"]


def _is_more(value: Any, before: Any) -> bool:
    from ..policy.limits import parse_size

    if before == "none":
        return False
    old, new = (parse_size(each) if isinstance(each, str) else each for each in (before, value))
    return bool(new > old)


def _toolchains(
    recording: Recording, world: World, data: dict[str, Any], why: dict[tuple[str, str], str]
) -> None:
    """Leave out the toolchains on the PATH if no file of one was used."""
    if not world.policy.toolchains or (recording.succeeded is None and world.had_toolchains):
        return
    places = [grant.path for grant in world.plan.grants if grant.origin.startswith("toolchain")]
    if not any(covers(place, fact.path) for fact in recording.facts for place in places):
        data["toolchains"] = False
        why["toolchains", ""] = "no toolchain outside of the system was used"


def _head(earlier: list[str], recording: Recording, loud: dict[str, list[str]], refused: list[Fact]) -> str:
    commands = [shown(each) for each in recording.commands[:3]]
    more = len(recording.commands) - len(commands)
    lines = list(dict.fromkeys([*earlier, *(_LEARNED_FROM + each[:160] for each in commands)]))
    lines += [f"# ... and {counted(more, 'command')} more"] if more > 0 else []
    count = sum(len(several) for several in loud.values())
    if not recording.succeeded:
        lines.append("# WARNING: the run failed, so it may need more than this.")
    if count:
        lines.append(
            "# WARNING: lines with NOT GRANTED are denied for a reason. Read it before you allow one."
        )
    if not recording.is_whole:
        lines.append("# WARNING: the run used too many files to propose all of them.")
    quiet = [
        fact for fact in refused if not any(fact.path in each for many in loud.values() for each in many)
    ]
    for fact in quiet[:_MOST_HIDDEN] if recording.succeeded else ():
        did = "not written" if fact.use == "write" else "hidden"
        path = shown(policy_data.toml(fact.path))
        lines.append(f"# {did}, and {shown(fact.program)} did without: {path}")
    if len(quiet) > _MOST_HIDDEN and recording.succeeded:
        lines.append(f"# ... and {counted(len(quiet) - _MOST_HIDDEN, 'more use')} that the run did without")
    return "\n".join(lines) + "\n" if lines else ""


def shown_command(command: str | tuple[str, ...]) -> str:
    """Return a command as one line."""
    return command if isinstance(command, str) else shlex.join(command)
