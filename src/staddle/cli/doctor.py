"""`staddle doctor`: show what this host can enforce, the reasons for gaps, and commands that fix them."""

from __future__ import annotations

from ..display import counted
from ..enforcement import PROTECTIONS
from ..errors import UsageError
from .options import HELP, Option, help_rows, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..diagnosis import BackendReport

_OPTIONS = (
    Option("json", "", "the same as JSON"),
    Option("container", "", "what this container is, and the options it should be started with"),
    Option("profile", "", "with --container: print the system call filter for such a container"),
    Option(
        "fix", "", "as root: change the settings of this host that refuse user namespaces, after showing it"
    ),
    Option("yes", "", "with --fix: do not ask"),
    Option("verbose", "", "list every protection of every backend", short="v"),
    HELP,
)

_HELP = """\
Show what this host can enforce, backend by backend, by trying each in a child process.

usage: staddle doctor [options]

{options}

The exit status is 0 when at least one backend can confine a command, 1 when none can.
"""


def main(words: Sequence[str]) -> int:
    """Diagnose the host and print the result. Returns 1 if no backend can confine."""
    parsed = parse(words, _OPTIONS, "doctor")
    if parsed.on("help"):
        print(_HELP.format(options=help_rows(_OPTIONS)), end="")
        return 0
    if parsed.words:
        raise UsageError(f"staddle doctor takes no argument {parsed.words[0]!r}", fix="leave it out")
    if parsed.on("profile"):
        from ..containers.advice import profile

        print(profile(), end="")
        return 0
    if parsed.on("fix"):
        return _fix(parsed.on("yes"))
    if parsed.on("container"):
        return _container(parsed.on("json"))
    from ..diagnosis import doctor

    found = doctor()
    if parsed.on("json"):
        import json

        print(json.dumps(found.as_dict(), indent=2))
        return 0 if found.can_confine else 1
    print(f"{found.host['system']}, Python {found.host['python']}, {found.host['user']}\n")
    for finding in found.findings:
        _print_finding(finding, parsed.on("verbose"))
    print(f"network: {found.network}")
    for name, nodes in found.gpus.items():
        print(f"GPU {name}: only with --gpu {name}, which lets the command call its driver, at")
        print(f"       {', '.join(nodes)}")
    if found.auto:
        print(f"`staddle run` uses {found.auto}: {found.why}")
    else:
        print(f"`staddle run` would refuse: {found.why}")
    return 0 if found.can_confine else 1


#: Sentences about what a container lacks.
_LACKS = {
    "filter": "the system call filter refuses namespaces, mounts or a host name",
    "processes": "parts of /proc are covered, so that a sandbox cannot have its own",
    "memory": "/dev/shm is smaller than 1 GB, and no disk can store layers",
    "user": "it was started as root, without the capability to give a sandbox its files",
}


def _container(as_json: bool) -> int:
    from ..containers.advice import NAMES
    from ..diagnosis import container

    found = container()
    if as_json:
        import json

        print(json.dumps(found.as_dict(), indent=2))
        return 0
    if not found.evidence:
        print("no sign of a container was found")
    for item in found.evidence:
        print(f"this is {NAMES[item.kind]}: {item.by}")
    lacks = [words for name, words in _LACKS.items() if getattr(found.needs, name)]
    print("\nsandboxes lack nothing here" if not lacks else "\nsandboxes lack here:")
    for words in lacks:
        print(f"  {words}")
    if found.options:
        print("\nwith these options, besides those that it has, they have everything:\n")
        for line in found.options:
            print(f"  {line}")
        print("\nwithout any, what is left is accepted by: export STADDLE_NESTED=1")
    return 0


def _fix(is_sure: bool) -> int:
    import os
    import sys

    from ..containers import advice

    found = advice.here()
    if not found:
        print("no setting of this host refuses user namespaces")
        return 0
    for fix in found:
        print(f"{fix.why}. This file allows user namespaces for {fix.whom}:\n\n{fix.path}:")
        print("".join(f"  {line}\n" for line in fix.content.splitlines()), end="")
        print(f"\nand then: {' '.join(fix.command)}\n")
    if os.geteuid() != 0:
        print("staddle: only root can do that: sudo staddle doctor --fix", file=sys.stderr)
        return 1
    if not is_sure:
        if not sys.stdin.isatty():
            print("staddle: nothing was changed; --yes does it without asking", file=sys.stderr)
            return 1
        if input("Do it? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing was changed")
            return 1
    for fix in found:
        problem = advice.apply(fix)
        if problem:
            print(f"staddle: {fix.path}: {problem}", file=sys.stderr)
            return 1
        print(f"done: {fix.path}")
    return 0


def _print_finding(finding: BackendReport, verbose: bool) -> None:
    probe = finding.probe
    if not probe.usable:
        print(f"no   {probe.backend}: {probe.why}")
        if probe.fix:
            print(f"       fix: {probe.fix}")
    elif probe.backend == "native":
        print("--   native: no confinement at all; only ever used when you name it")
    else:
        version = f" {probe.version}" if probe.version else ""
        limits = sum(gap.protection not in PROTECTIONS for gap in finding.gaps)
        less = f", but not {counted(limits, 'default limit')}" if limits else ""
        count = f"{len(finding.held)} of {len(PROTECTIONS)} protections"
        print(f"yes  {probe.backend}{version}: enforces {count}{less}")
        for gap in finding.gaps:
            print(f"       not {gap.protection}: {gap.why}" + (f"; {gap.fix}" if gap.fix else ""))
    if verbose and probe.usable and probe.backend != "native":
        for name in finding.held:
            print(f"       {name}: {PROTECTIONS[name]}")
    print()
