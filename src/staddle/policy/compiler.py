"""Compile a Policy to a Plan: resolve it on this host.

The compiler runs with the rights of the starting user, before anything else. It reads the disk and changes
nothing. Backends open the plan's paths by descriptor, without following links, so they refuse a path that
changes between the plan and the start.
"""

from __future__ import annotations

import os

from ..errors import PolicyError
from ..hostinfo import toolchains
from ..hostinfo.layouts import INSTALLED
from ..hostinfo.package_config import configuration
from ..hostinfo.resolution import HostPaths, PathContext, ResolvedPath
from ..linux.fileio import current_directory
from ..paths import WORKSPACE_PATH, Ancestry, above, covers, upward
from . import environment, presets, system
from .grants import Visibility, guard, hidden, outermost, strongest, without_covered, without_dead
from .own_places import guard_own, own_paths, refuse_server
from .plan import Device, Grant, Guard, Hidden, Link, Note, Plan, Scratch, Socket, Text
from .resolve_rules import (
    ResolvedRule,
    denied,
    must_be_grantable,
    preset_denies,
    refuse_planted_links,
    resolve,
)
from .tools import Tools
from .tools import tools as find_tools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Literal, TypeVar

    from .base import BaseView
    from .policy import Policy

    Located = TypeVar("Located", Device, Grant, Guard, Hidden, Link, Scratch, Socket, Text)

#: The home inside if /home/user would have to be created on the host.
OTHER_HOME = "/tmp/home"


def compile(
    policy: Policy,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    base: str | None = None,
    home: str | None = None,
    host_env: Mapping[str, str] | None = None,
    workspace: str | None = None,
    frozen: bool = False,
) -> Plan:
    """Resolve `policy` on this host. Raises PolicyError for an invalid policy, PathEscape for a planted link.

    The command starts in `cwd`. The default is the current directory if it, or something below it, is visible
    inside, else the home. Relative paths are relative to `base` (default: `cwd`, else the current directory),
    and `~` is `home` (default: $HOME). `env` is added for this command. `workspace` is the directory that a
    session shows at another path; if `frozen`, it is read-only there.
    """
    context = PathContext(cwd, base, home, host_env)
    host = HostPaths()
    visible: Mapping[str, str] = context.env
    placeholders: dict[str, str] = {}
    if policy.secrets or policy.network.is_inspected:
        from . import egress  # rarely needed

        egress.site_packages()  # refuses without the extra, before anything starts
    if policy.secrets:
        policy, visible, placeholders = egress.without_sources(policy, context.env)
    rules = resolve(policy, context, host)
    devices = None
    if policy.gpu or policy.devices:
        from .devices import granted_devices  # rarely needed

        devices = granted_devices(policy, host, rules)
        rules += [ResolvedRule("read", host.find(path), origin) for path, origin in devices.reads]
    home = policy.home or policy.identity.home
    root = None
    if policy.base is not None:
        from . import base as bases  # rarely needed

        root = bases.find(policy.base, context, host)
        rules += _in_the_base(policy, context, HostPaths(root))
    # With a base, the default home exists only inside. Any other home is a path of the host.
    own_home = policy.home is None and root is not None
    home_place = ResolvedPath(home, "directory") if own_home else host.find(context.at(home))
    home_rule = ResolvedRule("home", home_place, "home")
    refuse_planted_links([*rules, home_rule], {rule.place.path for rule in rules if rule.field == "write"})

    links = [
        Link(where, to, rule.origin)
        for rule in (*rules, home_rule)
        if rule.field != "deny"
        for where, to in rule.place.links
    ]
    texts: list[Text] = []
    if policy.system and root is None:
        granted, more, texts = system.etc(host)
        rules += [ResolvedRule("read", host.find(path), "system") for path in granted]
        links += [*more, Link("/var/run", "/run", "system")]

    tools = Tools()
    if policy.toolchains and policy.system and root is None:
        beside = workspace or context.cwd or current_directory()
        tools = find_tools(
            context, host, rules, home_rule.place.path, workspace=beside, moved=workspace is not None
        )
        rules += tools.rules
        links += tools.links
    if policy.system and root is None:
        links += system.state_links(
            [*(rule.place.path for rule in (*rules, home_rule)), *(link.path for link in links)]
        )
    denies = outermost(_denies(rules))
    shown = None
    if root is not None:
        taken = {rule.place.path for rule in rules if rule.field in ("read", "write", "sockets")}
        taken |= {item.path for item in system.scratch(home_rule.place.path)}
        shown = bases.show(root, taken | system.MADE_UP)
        links += [*shown.links, Link("/var/run", "/run", "system")]
        texts += shown.texts
    of_the_base = () if shown is None else shown.grants
    live, dead = without_dead(strongest((*_grants(rules), *of_the_base)), denies)
    _refuse_own_source(policy, live)
    scratch, inside, private_notes = _private(home_rule, live, host)
    places = {item.path for item in scratch}
    kept, covered, idle = without_covered(live, places)
    sight = Visibility(kept, places)
    concealed = hidden(denies, sight, places)
    if root is not None:
        concealed = _as_the_base_has_it(concealed, sight, HostPaths(root))
    trusted = own_paths(live, host)
    # The worktree of a jail is in one of these places, and needs its own grant.
    kept |= {path: grant for path, grant in covered.items() if any(covers(place, path) for place in trusted)}
    guards, reopened = guard(kept, covered, {*concealed, *places, *trusted}, policy.unprotect, host)
    guards |= guard_own(trusted, Visibility(kept, {*concealed, *places}))
    kept.update(reopened)
    sockets, socket_notes = _sockets(rules)

    identity = policy.identity.at(inside)
    shell = system.shell() if root is None else bases.shell(root)
    if policy.system:
        ours = system.made_up(identity, shell, policy.network.mode)
        texts = [*(_with_accounts(ours, shown) if shown else ours), *texts]
        etc, own = configuration(policy.network.mode)
        texts += [Text(path, content, "packages") for path, content in etc.items()]
        if inside in places:
            texts += system.home_files(inside, own)
        if policy.limits.memory is not None:
            texts.append(system.memory(policy.limits.memory))
    first, own_variables = _own_programs(policy, inside, inside in places, context), {}
    behind = None
    if inside in places:
        behind = _read_only_environment(tools.before, sight, workspace, frozen)
    if behind is not None:
        place = f"{inside}/{toolchains.NAME}"
        files, pointers = toolchains.continued(behind, place)
        texts += [Text(path, content, toolchains.ORIGIN, mode) for path, content, mode in files]
        links = [*links, *(Link(path, target, toolchains.ORIGIN) for path, target in pointers)]
        first.append(f"{place}/bin")
        if context.env.get("VIRTUAL_ENV") and policy.environment != "empty":
            own_variables["VIRTUAL_ENV"] = place
    variables, env_notes = environment.build(
        identity,
        shell,
        [*first, *tools.before],
        visible,
        policy.pass_env,
        (toolchains.ORIGIN, own_variables),
        ("gpu", devices.variables if devices and policy.environment != "empty" else {}),
        ("env", policy.env),
        ("call", environment.checked(env or {})),
        ("secrets", placeholders),
        preset=policy.environment,
        behind=tools.after,
        secret=policy.secret_names,
    )
    links, link_notes = _links_inside(links, rules, denies, sight, places)
    plan = Plan(
        grants=_sorted(kept.values()),
        hidden=_sorted(concealed.values()),
        guards=_sorted(guards.values()),
        links=_sorted(links),
        texts=_sorted(_texts_inside(texts, denies, sight)),
        scratch=_sorted(scratch),
        sockets=_sorted(sockets),
        variables=variables,
        network=policy.network,
        limits=policy.limits,
        identity=identity,
        cwd=inside,
        notes=_notes(
            dead,
            private_notes,
            idle,
            socket_notes,
            env_notes,
            link_notes,
            _about(rules, concealed),
            tools.notes,
            devices.notes if devices else (),
        ),
        unprotect=policy.unprotect,
        base=root or "",
        nested=policy.nested,
        world=policy.world,
        redact=policy.redact is not False,
        devices=_sorted(devices.devices.values()) if devices else (),
        secrets=policy.secrets,
        package_cache=policy.package_cache,
    )
    return plan.replace(cwd=_start(plan, context, host))


def compile_directory(
    policy: Policy, path: str, access: Literal["read", "write"], *, base: str | None = None
) -> Plan:
    """Compile a plan for one directory: one grant, with what `policy` denies and protects below it.

    For a directory that a session shows at another path. Other grants and private directories of the policy
    are ignored, so none of them can replace the directory or cover what is denied in it. If the policy denies
    the directory, the plan has no grant.
    """
    context, host = PathContext("/", base, None, None), HostPaths()
    place = host.find(context.at(path))
    if not covers("/dev/shm", place.path) or access == "write":
        # The directory is not shown in the sandbox's own /dev, so a readable one in /dev/shm is fine.
        must_be_grantable(access, path, place)
    grant = ResolvedRule(access, place, f"{access} {path!r}", asked=True)
    rules = [*denied(policy, context, host), *preset_denies(policy, context, host, [grant]), grant]
    refuse_planted_links(rules, {place.path} if access == "write" else set())
    denies = outermost(_denies(rules))
    grants, _ = without_dead(strongest(_grants(rules)), denies)
    _refuse_own_source(policy, grants)
    concealed = hidden(denies, Visibility(grants, ()), ())
    own = own_paths(grants, host)
    guards, _ = guard(grants, {}, {*concealed, *own}, policy.unprotect, host)
    guards |= guard_own(own, Visibility(grants, concealed))
    return Plan(
        grants=_sorted(grants.values()),
        hidden=_sorted(concealed.values()),
        guards=_sorted(guards.values()),
        links=(),
        texts=(),
        scratch=(),
        sockets=(),
        variables=(),
        network=policy.network,
        limits=policy.limits,
        identity=policy.identity,
        cwd="/",
        unprotect=policy.unprotect,
    )


def _own_programs(policy: Policy, home: str, private: bool, context: PathContext) -> list[str]:
    """Return directories of the home with programs: a coding agent's tools, and installed programs.

    Programs that cargo, go and others install are in the home inside if the host's PATH has that directory.
    """
    if policy.preset == "coding-agent":
        return [f"{home}/{path}" for path in presets.AGENT_PATH]
    if not private or not policy.system:
        return []
    searched = context.env.get("PATH", "").split(":") if policy.toolchains and policy.base is None else ()
    places = (path.removeprefix(f"{context.home}/") for path in searched)
    return [f"{home}/{path}" for path in (".local/bin", *dict.fromkeys(p for p in places if p in INSTALLED))]


def _read_only_environment(
    search: Iterable[str], sight: Visibility, workspace: str | None, frozen: bool
) -> str | None:
    """Return the first virtual environment on the PATH if it is read-only.

    An environment in the workspace of a session is writable, unless the workspace is `frozen`.
    """
    for directory in search:
        if workspace is not None and covers(WORKSPACE_PATH, directory):
            directory = workspace + directory[len(WORKSPACE_PATH) :]  # noqa: PLW2901 - its path on the host
            if toolchains.is_environment(directory):
                return os.path.dirname(directory) if frozen else None
        elif toolchains.is_environment(directory):
            grant = sight.through(directory)
            return os.path.dirname(directory) if grant is not None and grant.access == "read" else None
    return None


def _in_the_base(policy: Policy, context: PathContext, inside: HostPaths) -> list[ResolvedRule]:
    """Deny the same paths inside the base, following the base's own links."""
    return [
        ResolvedRule("deny", inside.find(context.at(path)), f"deny {path!r}", asked=True)
        for path in policy.deny
    ]


def _as_the_base_has_it(
    concealed: Mapping[str, Hidden], sight: Visibility, inside: HostPaths
) -> dict[str, Hidden]:
    """Resolve hidden paths in the base: its files count, not the host's."""
    found = {}
    for path, item in concealed.items():
        grant = sight.through(path)
        if grant is None or not grant.source:
            found[path] = item
            continue
        place = inside.find(path)
        if place.path != path:
            continue  # a link; its target is hidden
        kind: Literal["file", "directory", "missing"] = "missing" if place.kind == "missing" else "file"
        found[path] = item.replace(kind="directory" if place.kind == "directory" else kind)
    return found


def _with_accounts(ours: Iterable[Text], shown: BaseView) -> list[Text]:
    """Return our files, with the base's accounts added to the files about accounts."""
    from .base import accounts

    theirs = {"/etc/passwd": shown.passwd, "/etc/group": shown.group}
    return [
        text.replace(content=accounts(theirs[text.path], text.content)) if text.path in theirs else text
        for text in ours
    ]


def _grants(rules: Iterable[ResolvedRule]) -> Iterable[Grant]:
    for rule in rules:
        if rule.field in ("read", "write"):
            yield Grant(rule.place.path, rule.field, rule.place.kind == "directory", rule.origin)


def _denies(rules: Iterable[ResolvedRule]) -> dict[str, Hidden]:
    """Return each denied path once. The user's rules come before those of a preset."""
    found: dict[str, Hidden] = {}
    for rule in rules:
        if rule.field == "deny" and rule.place.path not in found:
            kind = rule.place.kind
            if kind in ("missing", "unreadable", "circle"):
                found[rule.place.path] = Hidden(rule.place.path, "missing", rule.origin)
            else:
                found[rule.place.path] = Hidden(
                    rule.place.path, "directory" if kind == "directory" else "file", rule.origin
                )
    return found


def _private(
    home: ResolvedRule, grants: Mapping[str, Grant], host: HostPaths
) -> tuple[list[Scratch], str, list[Note]]:
    """Return the private directories of the plan, the home inside, and notes.

    No mount point is ever created on the host: below a grant, the directory has to exist.
    """
    if home.place.kind not in ("directory", "missing"):
        raise PolicyError(
            f"the home {home.place.path!r} is not a directory",
            fix="name one that is",
            why="a file or a device is there",
        )
    inside = home.place.path
    if ":" in inside or "\n" in inside:
        raise PolicyError(
            f"the home is {inside!r}",
            why="/etc/passwd cannot contain ':' or a line end",
            fix="choose another",
        )
    wanted = {item.path: item for item in system.scratch(inside)}
    notes = []
    for path, item in list(wanted.items()):
        if path in grants:
            del wanted[path]
            notes.append(
                Note(f"{path!r} is the host's own inside, not a private directory", grants[path].origin)
            )
            continue
        boundary = next((up for up in above(path) if up in grants or up in wanted), "/")
        if boundary in grants and (host.find(path).path != path or host.find(path).kind != "directory"):
            del wanted[path]
            if path == inside:
                inside = OTHER_HOME
                wanted[inside] = item.replace(path=inside)
    return list(wanted.values()), inside, notes


def _refuse_own_source(policy: Policy, grants: Mapping[str, Grant]) -> None:
    """Refuse a policy that lets a sandbox rewrite the policy's own file, and so change the next run."""
    for path in policy._source:
        for up in upward(path):
            if up in grants and grants[up].access == "write":
                raise PolicyError(
                    f"the policy file {path!r} may be written by what it confines",
                    why=f"{grants[up].origin} covers it",
                    fix="keep it elsewhere, or grant less",
                )
    if policy.secrets or policy.network.is_inspected:
        from .egress import refuse_writable_packages  # rarely needed

        refuse_writable_packages(path for path, grant in grants.items() if grant.access == "write")


def _sockets(rules: Iterable[ResolvedRule]) -> tuple[list[Socket], list[Note]]:
    """Return the sockets in the policy. Only the user's denies remove them, not those of a preset."""
    denied = {rule.place.path: rule.origin for rule in rules if rule.field == "deny" and rule.asked}
    found: dict[str, Socket] = {}
    notes = []
    for rule in rules:
        if rule.field == "sockets":
            path = rule.place.path
            refuse_server(path, rule.origin)
            deny = next((denied[up] for up in upward(path) if up in denied), None)
            if deny is None:
                found.setdefault(path, Socket(path, rule.place.kind == "socket", rule.origin))
            else:
                notes.append(Note(f"socket {path!r} has no effect: {deny} wins", rule.origin))
    return list(found.values()), notes


def _links_inside(
    links: Iterable[Link],
    rules: Iterable[ResolvedRule],
    denies: Mapping[str, Hidden],
    sight: Visibility,
    scratch: Collection[str],
) -> tuple[list[Link], list[Note]]:
    """Return the links to create: not those that are visible, denied, or would cover a private directory."""
    gone = {rule.link for rule in rules if rule.field == "deny" and rule.link} | denies.keys()
    found: dict[str, Link] = {}
    notes = []
    for link in links:
        if link.path in found or sight.through(link.path) is not None:
            continue
        if any(up in gone for up in upward(link.path)):
            continue
        if any(covers(link.path, path) for path in scratch):
            notes.append(
                Note(f"the link {link.path!r} is not made: it is a private directory inside", link.origin)
            )
            continue
        found[link.path] = link
    return list(found.values()), notes


def _texts_inside(texts: Iterable[Text], denies: Mapping[str, Hidden], sight: Visibility) -> list[Text]:
    """Drop texts for which the policy has a rule: the host's file is shown if granted, nothing if denied."""
    denied = Ancestry(denies)
    return [
        text for text in texts if sight.through(text.path) is None and denied.at_or_above(text.path) is None
    ]


def _about(rules: Iterable[ResolvedRule], concealed: Mapping[str, Hidden]) -> Iterable[Note]:
    """Yield notes about the targets of links, and about denies that hide nothing."""
    hiding = Ancestry(concealed)
    for rule in rules:
        if not rule.asked:
            continue
        if rule.place.links:
            yield Note(f"it points to {rule.place.path!r}", rule.origin)
        if rule.field == "deny" and hiding.at_or_above(rule.place.path) is None:
            yield Note("there is nothing to hide: it lies below no grant", rule.origin)


def _notes(*several: Iterable[Note]) -> tuple[Note, ...]:
    unique = {(note.origin, note.text): note for notes in several for note in notes}
    return tuple(unique[key] for key in sorted(unique))


def _start(plan: Plan, context: PathContext, host: HostPaths) -> str:
    """Return the directory in which the command starts."""
    scratch = {item.path for item in plan.scratch}
    asked = context.cwd
    here = asked or current_directory()
    if here is None:
        return plan.identity.home
    place = host.find(here)
    sight = Visibility({grant.path: grant for grant in plan.grants}, scratch)
    concealed = Ancestry({item.path for item in plan.hidden}).at_or_above(place.path)
    # A parent of a grant exists inside, but contains only the path to the grant.
    leads_on = place.path != "/" and any(
        covers(place.path, grant.path) for grant in plan.grants if not grant.source
    )
    through = sight.through(place.path)
    seen = leads_on or (through is not None and not through.source)
    if seen and concealed is None and place.kind == "directory":
        return place.path
    if asked is None:
        return plan.identity.home
    if place.path == "/" or place.path in scratch:
        return place.path
    if plan.base and HostPaths(plan.base).find(asked).kind == "directory":
        return HostPaths(plan.base).find(asked).path
    if place.kind == "missing":
        raise PolicyError(f"cwd is {asked!r}", why="it does not exist", fix="create it, or start elsewhere")
    if place.kind != "directory":
        raise PolicyError(f"cwd is {asked!r}", why="it is not a directory", fix="name one")
    raise PolicyError(
        f"cwd is {asked!r}",
        why="the policy does not let it be seen inside",
        fix=f"add with_read({place.path!r}), or with_write to work there",
    )


def _sorted(items: Iterable[Located]) -> tuple[Located, ...]:
    return tuple(sorted(items, key=lambda item: item.path))


def asking(plan: Plan, seconds: int) -> Plan:
    """Return the plan with `seconds` for each decision of `on_connect`; 0 does not ask.

    Our resolver then answers for every name, because the decision comes later, when the port is known.
    """
    if not seconds:
        return plan
    if plan.network.mode == "open":
        raise PolicyError(
            "on_connect has nothing to decide",
            why="the network is open: everything can be reached",
            fix="use Network.deny() or Network.allow(...), which leave something open",
        )
    asked = {"/etc/resolv.conf": system.RESOLV_CONF, "/etc/nsswitch.conf": system.NSSWITCH % b" dns"}
    texts = tuple(
        text.replace(content=asked[text.path]) if text.path in asked else text for text in plan.texts
    )
    return plan.replace(texts=texts, asks=seconds)
