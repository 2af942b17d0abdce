"""`staddle explain`: print the plan of a run, line by line, with the reason for each line. Runs nothing."""

from __future__ import annotations

from .. import backends
from ..display import shown
from ..errors import StaddleError
from .options import (
    RUNNING,
    Option,
    command_from,
    help_rows,
    parse,
    policy_from,
    reworded,
    sandbox_from,
    working_directory,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..backends.base import Backend
    from ..enforcement import Gap
    from ..policy.plan import Plan
    from .options import Parsed

_OPTIONS = (
    Option("command", "SCRIPT", "explain this line of shell", short="c"),
    Option("verbose", "", "also list what every sandbox has, the steps and the filter", short="v"),
    *reworded(
        RUNNING,
        json="print JSON",
        mode="the workspace: readonly (default), bind (written directly), overlay (in a layer)",
    ),
)

_HELP = """\
Print everything a run would be allowed, where each line comes from, and what this host
cannot enforce. Takes the options of `staddle run`; only the probes of the backends are started.

usage: staddle explain [options] [-- COMMAND [ARGUMENTS]]

{options}
"""


def main(words: Sequence[str]) -> int:
    """Compile the plan, choose a backend as a run would, and print both."""

    from ..policy.compiler import compile
    from ..policy.host_sockets import mask_host_sockets

    parsed = parse(words, _OPTIONS, "explain")
    if parsed.on("help"):
        print(_HELP.format(options=help_rows(_OPTIONS)), end="")
        return 0
    overlay = parsed.one("mode") == "overlay"
    if overlay:
        policy, place, _ = sandbox_from(parsed)
        workspace = None
    else:
        policy, workspace = policy_from(parsed)
    command: list[str] = []
    if parsed.words or parsed.on("command"):
        command, script = command_from(parsed, "explain")
        policy = policy.with_read(script) if script else policy
    if overlay:
        from ..policy.workspace import compile_session

        moved = parsed.one("backend") not in ("landlock", "native", "seatbelt")
        plan = mask_host_sockets(compile_session(policy, place, access="read", moved=moved)[0])
    else:
        plan = mask_host_sockets(compile(policy, cwd=workspace, base=working_directory()))
    name = parsed.one("backend") or "auto"
    backend: Backend | None = None
    gaps: tuple[Gap, ...] = ()
    try:
        backend, enforced = backends.choose(plan, name, best_effort=parsed.on("best-effort"))
        gaps, verdict = enforced.gaps, f"{enforced.backend}: {enforced.why}"
    except StaddleError as error:
        verdict = f"this run would be refused: {error}"
        if name != "auto":
            backend = backends.get(name)
            gaps = backend.gaps(plan)
    if parsed.on("json"):
        return _print_json(plan, backend, gaps, verdict, command)
    sections = _sections(plan, backend, gaps) if parsed.on("verbose") else _short(plan, gaps, parsed)
    _print_text(sections, verdict, command)
    return 0


def _print_text(
    sections: Iterable[tuple[str, list[tuple[str, str]]]], verdict: str, command: list[str]
) -> None:
    for heading, rows in sections:
        if rows:
            print(f"{heading}:")
            width = min(56, max(len(left) for left, _ in rows))
            for left, origin in rows:
                print(f"  {left:<{width}}  {origin}".rstrip())
            print()
    if command:
        print(f"command: {' '.join(shown(word) for word in command)}")
    print(f"backend: {shown(verdict)}")


#: Sections that are the same in every sandbox.
_USUAL = ("made for the inside", "private, with nothing of the host")


def _short(plan: Plan, gaps: Iterable[Gap], parsed: Parsed) -> Iterable[tuple[str, list[tuple[str, str]]]]:
    """Yield the sections for one screen: rows of every sandbox are counted, the others are listed."""
    usual = []
    for heading, rows in plan.explain():
        mine = [row for row in rows if row[1] not in ("system", "default")]
        if heading in _USUAL:
            usual.append(f"{heading}: {len(rows)}")
        elif heading == "limits":
            yield heading, _limits(plan)
        else:
            if len(mine) < len(rows):
                usual.append(f"{heading}, as in every sandbox: {len(rows) - len(mine)}")
            yield heading, mine
    about = (("audit", "audit log"), ("workdir", "starts in"))
    given = [(name, what, value) for name, what in about if (value := parsed.one(name))]
    yield "this run", [(f"{what}: {shown(value)}", f"--{name}") for name, what, value in given]
    yield "cannot be enforced here", [(f"{gap.protection}: {gap.why}", gap.fix) for gap in gaps]
    heading = "not listed (--verbose lists all, with the steps and the system call filter)"
    yield heading, [(row, "") for row in usual]


def _limits(plan: Plan) -> list[tuple[str, str]]:
    """Return each limit with its value; for limits that the policy leaves to this host, the current value."""
    from ..limits.enforced import fill_in
    from .kept import human_size

    sizes = ("memory", "disk", "file_size", "output")
    rows = []
    for name, value in fill_in(plan.limits).as_dict().items():
        if name == "defaults" or value is None:
            continue
        said = human_size(value) if name in sizes else f"{value:g}" if isinstance(value, float) else value
        rows.append((f"{name} {said}", "by default, of this host" if name in plan.limits.defaults else ""))
    return rows


def _sections(
    plan: Plan, backend: Backend | None, gaps: Iterable[Gap]
) -> Iterable[tuple[str, list[tuple[str, str]]]]:
    yield from plan.explain()
    if backend is not None:
        yield f"what {backend.name} does", [(shown(step.action), step.origin) for step in backend.steps(plan)]
    yield "cannot be enforced here", [(f"{gap.protection}: {gap.why}", gap.fix) for gap in gaps]


def _print_json(
    plan: Plan, backend: Backend | None, gaps: Iterable[Gap], verdict: str, command: list[str]
) -> int:
    import json

    data = plan.as_dict()
    for variable in data["variables"]:
        if variable["secret"]:
            variable["value"] = None
    for text in data["texts"]:
        text["content"] = text["content"].decode("utf-8", "replace")
    steps = [step.as_dict() for step in backend.steps(plan)] if backend is not None else []
    report = {
        "command": command,
        "plan": data,
        "backend": backend.name if backend else None,
        "verdict": verdict,
        "steps": steps,
        "gaps": [gap.as_dict() for gap in gaps],
    }
    print(json.dumps(report, indent=2))
    return 0
