"""The verdict about each probe, and the tables of docs/scorecard.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchmarks.field.page import _plain
from benchmarks.field.peers import PEERS, ROOT
from tests.containment.probes import ATTACKS, TWINS

PAGE = ROOT / "docs/scorecard.md"
BEGIN, END = "<!-- scorecard: begin, written by `make scorecard` -->", "<!-- scorecard: end -->"
#: What each protection is about, in the order of the table.
PROTECTIONS = {
    "read": "read files that were not granted",
    "write": "change files outside the workspace",
    "metadata": "change modes, owners and times outside",
    "deny": "read or replace a denied path",
    "guard": "plant git hooks and agent settings in the workspace",
    "tmp": "leave or read files in the host's /tmp and /dev/shm",
    "environment": "read the host's variables",
    "network": "reach the network",
    "sockets": "connect to UNIX sockets of the host",
    "processes": "see and trace processes of the host",
    "signals": "signal and change processes of the host",
    "ipc": "use the host's shared memory and queues",
    "keyring": "read the user's keys",
    "capabilities": "gain rights, or namespaces to use them in",
    "filter": "call what most kernel bugs were in",
    "devices": "use devices",
    "descriptors": "use a descriptor that was left open",
}
CONFINED, COPY, THROUGH, UNKNOWN = "confined", "changed only a copy", "got through", "could not run"


#: What these change is seen from outside: a change that nobody sees was made to a copy.
SEEN_OUTSIDE = ("write", "metadata", "deny", "guard", "tmp")


def verdict(name: str, answer: dict[str, str] | None, damage: dict[str, Any], leaks: list[str]) -> str:
    """What a probe found. Refused and killed are confined, whatever the error is: that is the peer's own."""
    attack = ATTACKS[name]
    if answer is None or answer["outcome"] == "broken":
        return UNKNOWN
    if attack.silent:
        return THROUGH if attack.protection in damage else CONFINED
    if answer["outcome"] != "through":
        return CONFINED
    if attack.protection in SEEN_OUTSIDE and attack.protection not in damage and _changes(name):
        return COPY if name not in leaks else THROUGH
    return THROUGH


def _changes(name: str) -> bool:
    """Whether the probe is about changing something, and not about reading it."""
    return not name.startswith(("read-", "stat-", "list-", "watch-", "enter-", "see-", "find-"))


def shown_by(control: dict[str, Any]) -> list[str]:
    """The probes whose control got through here: only these can show anything."""
    return [
        name
        for name in ATTACKS
        if (answer := control["answers"].get(name))
        and (
            answer["outcome"] == "through"
            or (ATTACKS[name].silent and ATTACKS[name].protection in control["damage"])
        )
    ]


def steady(cases: list[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """The shell cases to which bash gave the same answer twice, unconfined."""
    first, second = cases
    return {
        name: said for name, said in first.items() if said[0] != -1 and second.get(name, [])[:2] == said[:2]
    }


#: The temporary place of a run.
_PLACE = re.compile(
    r"/var/tmp/staddle-scorecard-[^/']+(?:/scorecard-[^/']+)?(?:/staddle-world-[^/']+)?(?:/work)?"
)


def judged(control: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """The evidence about one subject, bounded."""
    if "cannot" in made:
        return {"cannot": made["cannot"]}
    probes = {}
    for name in shown_by(control):
        answer = made["answers"].get(name)
        found: dict[str, str] = {"verdict": verdict(name, answer, made["damage"], made["leaks"])}
        if answer:
            found["why"] = answer["why"][:40]
            found |= (
                {}
                if found["verdict"] == CONFINED
                else {"detail": _PLACE.sub("{place}", answer["detail"])[:160]}
            )
        probes[name] = found
    twins = {
        name: made["answers"].get(name, {}).get("outcome") == "through"
        for name in TWINS
        if control["answers"].get(name, {}).get("outcome") == "through"
    }
    known = steady(control["cases"])
    cases = {name: made["cases"].get(name, [])[:2] == said[:2] for name, said in known.items()}
    return {
        "probes": probes,
        "twins": twins,
        "cases": cases,
        "damage": {protection: len(what) for protection, what in sorted(made["damage"].items())},
    }


def _count(subject: str, probes: dict[str, dict[str, str]], protection: str) -> str:
    own = [found["verdict"] for name, found in probes.items() if ATTACKS[name].protection == protection]
    text = f"{own.count(CONFINED) + own.count(COPY)}/{len(own)}"
    if protection in (PEERS[subject].lacks if subject in PEERS else ("deny", "guard")):
        text += " †"
    return text + (f" ({own.count(UNKNOWN)} not run)" if UNKNOWN in own else "")


def tables(made: dict[str, Any]) -> str:
    """All of the results as Markdown."""
    ran = {name: found for name, found in made["subjects"].items() if "probes" in found}
    parts = [
        f"Tried on {made['date']} by `make scorecard`: {made['machine']}; each peer as an ordinary user."
    ]
    if ran:
        some = next(iter(ran.values()))
        heads = "| | " + " | ".join(map(_name, ran)) + " |\n| --- |" + " ---: |" * len(ran)
        rows = [
            f"| {text} | "
            + " | ".join(_count(name, found["probes"], protection) for name, found in ran.items())
            + " |"
            for protection, text in PROTECTIONS.items()
            if any(ATTACKS[name].protection == protection for name in some["probes"])
        ]
        for title, key in (
            ("**benign programs that work**", "twins"),
            ("**shell cases answered as by bash**", "cases"),
        ):
            rows.append(
                f"| {title} | "
                + " | ".join(f"{sum(found[key].values())}/{len(found[key])}" for found in ran.values())
                + " |"
            )
        parts.append("\n".join([heads, *rows]))
        parts.append(
            "Each figure is the number of attempts that were confined. Counted are those that get through "
            f"unconfined, as the same user: {len(some['probes'])} of {len(ATTACKS)}. "
            "† its command line has no such rule."
        )
    parts.append("## What was tried")
    parts.append(
        "\n".join(
            [
                "| peer | version | purpose, by its makers or as it is used here |",
                "| --- | --- | --- |",
                *_about(made),
            ]
        )
    )
    if ran:
        parts.append("## What got through")
        parts += [_through(name, found) for name, found in ran.items()]
    if "forks" in made:
        parts += ["## What a fork, a restore and a twin of an interpreter do", _forks(made["forks"])]
    return "\n\n".join(parts)


def _about(made: dict[str, Any]) -> list[str]:
    rows = []
    for name, found in made["subjects"].items():
        said = made["versions"].get(name, "the given line")
        if "cannot" in found:
            said += "; cannot run here: " + _plain(found["cannot"])
        rows.append(f"| {_name(name)} | {said} | {PEERS[name].purpose if name in PEERS else ''} |")
    return rows + [
        f"| {name} | cannot run here: {_plain(why)} | {PEERS[name].purpose} |"
        for name, why in made["missing"].items()
    ]


def _name(name: str) -> str:
    return name if name in PEERS else _plain(name)


def _through(name: str, found: dict[str, Any]) -> str:
    by: dict[str, list[str]] = {}
    for probe, said in found["probes"].items():
        if said["verdict"] == THROUGH:
            by.setdefault(ATTACKS[probe].protection, []).append(probe)
    lines = [
        f"  * {protection}: {', '.join(f'`{probe}`' for probe in probes)}"
        for protection, probes in by.items()
    ]
    failed = [f"`{twin}`" for twin, works in found["twins"].items() if not works]
    if failed:
        lines.append(f"  * does not work inside: {', '.join(failed)}")
    other = [f"`{case}`" for case, same in found["cases"].items() if not same]
    if other:
        lines.append(
            f"  * bash answers otherwise: {', '.join(other[:12])}"
            + (f" and {len(other) - 12} more" if len(other) > 12 else "")
        )
    return f"* **{_name(name)}**" + ("\n" + "\n".join(lines) if lines else ": nothing")


def _forks(found: list[dict[str, str]]) -> str:
    lines = [
        "| hazard | with | what is promised | what happened | tested in |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in found:
        lines.append(
            f"| {row['hazard']} | {row['way']} | {row['policy']} | {row['seen']}: **{row['status']}** "
            f"| `{row['test']}` |"
        )
    return "\n".join(lines)


def write(made: dict[str, Any], file: Path = PAGE) -> None:
    """Replace what is between the markers."""
    before, rest = file.read_text().split(BEGIN)
    file.write_text(f"{before}{BEGIN}\n{tables(made)}\n{END}{rest.split(END)[1]}")
