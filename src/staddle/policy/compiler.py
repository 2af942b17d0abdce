"""Policy -> Plan: what the policy means on this host, now.

Runs with the rights of whoever starts the sandbox, before anything else. It reads the disk
and changes nothing. Backends open what the plan names by descriptor, without following
links: what changes between the plan and the start is refused there.
"""

from __future__ import annotations

from ..errors import PolicyError
from . import environment, presets, system
from .declaring import Bearings, Rule, current_directory, refuse_planted_links, resolve
from .guarding import guard
from .merging import Sight, hidden, outermost, strongest, without_covered, without_dead
from .paths import Ancestry, above, covers, upward
from .plan import Grant, Guard, Hidden, Identity, Link, Note, Plan, Scratch, Socket, Text
from .resolution import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import TypeVar

    from .policy import Policy

    Located = TypeVar("Located", Grant, Guard, Hidden, Link, Scratch, Socket, Text)

#: Where the home goes when /home/user would have to be made on the host.
OTHER_HOME = "/tmp/home"


def compile(
    policy: Policy,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    base: str | None = None,
    home: str | None = None,
    host_env: Mapping[str, str] | None = None,
) -> Plan:
    """`policy` resolved for this host. PolicyError for what cannot be meant, PathEscape for a planted link.

    `cwd` is where the command starts: the current directory if it, or something below it, can be
    seen inside, else its home. Relative paths are relative to `base` (default: `cwd`, else the current
    directory), `~` is `home` (default: $HOME), `env` is added for this command.
    """
    bearings = Bearings(cwd, base, home, host_env)
    host = Host()
    rules = resolve(policy, bearings, host)
    home_rule = Rule("home", host.find(bearings.at(policy.home or system.HOME)), "home")
    refuse_planted_links([*rules, home_rule], {rule.place.path for rule in rules if rule.field == "write"})

    links = [
        Link(where, to, rule.origin)
        for rule in (*rules, home_rule)
        if rule.field != "deny"
        for where, to in rule.place.links
    ]
    texts: list[Text] = []
    if policy.system:
        granted, more, texts = system.etc(host)
        rules += [Rule("read", host.find(path), "system") for path in granted]
        links += [*more, Link("/var/run", "/run", "system")]

    denies = outermost(_denies(rules))
    live, dead = without_dead(strongest(_grants(rules)), denies)
    _refuse_own_source(policy, live)
    scratch, inside, private_notes = _private(home_rule, live, host)
    places = {item.path for item in scratch}
    kept, covered, idle = without_covered(live, places)
    sight = Sight(kept, places)
    concealed = hidden(denies, sight, places)
    guards, reopened = guard(kept, covered, {*concealed, *places}, policy.unprotect, host)
    kept.update(reopened)
    sockets, socket_notes = _sockets(rules)

    identity = Identity(home=inside)
    shell = system.shell()
    if policy.system:
        texts += system.made_up(identity, shell, policy.network.mode)
    variables, env_notes = environment.build(
        identity,
        shell,
        [f"{inside}/{path}" for path in presets.AGENT_PATH] if policy.preset == "coding-agent" else [],
        bearings.env,
        policy.pass_env,
        ("env", policy.env),
        ("call", environment.checked(env or {})),
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
            dead, private_notes, idle, socket_notes, env_notes, link_notes, _about(rules, concealed)
        ),
        unprotect=policy.unprotect,
    )
    return plan.replace(cwd=_start(plan, bearings, host))


def _grants(rules: Iterable[Rule]) -> Iterable[Grant]:
    for rule in rules:
        if rule.field in ("read", "write"):
            yield Grant(rule.place.path, rule.field, rule.place.kind == "directory", rule.origin)


def _denies(rules: Iterable[Rule]) -> dict[str, Hidden]:
    """Each denied path once; what the user wrote before what a preset adds."""
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


def _private(home: Rule, grants: Mapping[str, Grant], host: Host) -> tuple[list[Scratch], str, list[Note]]:
    """(the private directories that the plan can have, the home inside, notes).

    Nothing is ever made on the host to hang one on: below a grant, it needs a directory
    that is there.
    """
    if home.place.kind not in ("directory", "missing"):
        raise PolicyError(f"the home {home.place.path!r} is not a directory", fix="name one that is")
    inside = home.place.path
    if ":" in inside or "\n" in inside:
        raise PolicyError(
            f"the home is {inside!r}", why="/etc/passwd cannot hold ':' or a line end", fix="choose another"
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
    """A policy that lets a sandbox rewrite the file it came from says nothing about the next run."""
    for path in policy._source:
        for up in upward(path):
            if up in grants and grants[up].access == "write":
                raise PolicyError(
                    f"the policy file {path!r} may be written by what it confines",
                    why=f"{grants[up].origin} covers it",
                    fix="keep it elsewhere, or grant less",
                )


def _sockets(rules: Iterable[Rule]) -> tuple[list[Socket], list[Note]]:
    """The sockets, named one by one: a preset does not take them away, a deny of the user does."""
    denied = {rule.place.path: rule.origin for rule in rules if rule.field == "deny" and rule.asked}
    found: dict[str, Socket] = {}
    notes = []
    for rule in rules:
        if rule.field == "sockets":
            path = rule.place.path
            deny = next((denied[up] for up in upward(path) if up in denied), None)
            if deny is None:
                found.setdefault(path, Socket(path, rule.place.kind == "socket", rule.origin))
            else:
                notes.append(Note(f"socket {path!r} has no effect: {deny} wins", rule.origin))
    return list(found.values()), notes


def _links_inside(
    links: Iterable[Link],
    rules: Iterable[Rule],
    denies: Mapping[str, Hidden],
    sight: Sight,
    scratch: Collection[str],
) -> tuple[list[Link], list[Note]]:
    """The links to make: not those that can be seen anyway, were denied, or stand in the way."""
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


def _texts_inside(texts: Iterable[Text], denies: Mapping[str, Hidden], sight: Sight) -> list[Text]:
    """Where the host's own file is granted, it is shown; where it is denied, nothing is."""
    denied = Ancestry(denies)
    return [
        text for text in texts if sight.through(text.path) is None and denied.at_or_above(text.path) is None
    ]


def _about(rules: Iterable[Rule], concealed: Mapping[str, Hidden]) -> Iterable[Note]:
    """What a reader would wonder about: where links lead, and denies that hide nothing."""
    hiding = Ancestry(concealed)
    for rule in rules:
        if not rule.asked:
            continue
        if rule.place.links:
            yield Note(f"it leads to {rule.place.path!r}", rule.origin)
        if rule.field == "deny" and hiding.at_or_above(rule.place.path) is None:
            yield Note("there is nothing to hide: it lies below no grant", rule.origin)


def _notes(*several: Iterable[Note]) -> tuple[Note, ...]:
    unique = {(note.origin, note.text): note for notes in several for note in notes}
    return tuple(unique[key] for key in sorted(unique))


def _start(plan: Plan, bearings: Bearings, host: Host) -> str:
    """Where the command starts."""
    scratch = {item.path for item in plan.scratch}
    asked = bearings.cwd
    here = asked or current_directory()
    if here is None:
        return plan.identity.home
    place = host.find(here)
    sight = Sight({grant.path: grant for grant in plan.grants}, scratch)
    concealed = Ancestry({item.path for item in plan.hidden}).at_or_above(place.path)
    # Above a grant: there, with nothing in it but the way to what is granted.
    leads_on = place.path != "/" and any(covers(place.path, grant.path) for grant in plan.grants)
    seen = leads_on or sight.through(place.path) is not None
    if seen and concealed is None and place.kind == "directory":
        return place.path
    if asked is None:
        return plan.identity.home
    if place.path == "/" or place.path in scratch:
        return place.path
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
