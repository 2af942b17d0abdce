"""`staddle doctor`: what this host can enforce, why not when not, and the command that fixes it."""

from __future__ import annotations

from ..enforcement import PROTECTIONS
from ..errors import UsageError
from .options import HELP, Option, help_rows, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..diagnosis import BackendReport

_OPTIONS = (
    Option("json", "", "the same as JSON"),
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
    """Diagnose, print, and fail when nothing can confine."""
    parsed = parse(words, _OPTIONS, "doctor")
    if parsed.on("help"):
        print(_HELP.format(options=help_rows(_OPTIONS)), end="")
        return 0
    if parsed.words:
        raise UsageError(f"staddle doctor takes no argument {parsed.words[0]!r}")
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
    if found.auto:
        print(f"`staddle run` uses {found.auto}: {found.why}")
    else:
        print(f"`staddle run` would refuse: {found.why}")
    return 0 if found.can_confine else 1


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
        print(f"yes  {probe.backend}{version}: holds {len(finding.held)} of {len(PROTECTIONS)} protections")
        for gap in finding.gaps:
            print(f"       not {gap.protection}: {gap.why}" + (f"; {gap.fix}" if gap.fix else ""))
    if verbose and probe.usable and probe.backend != "native":
        for name in finding.held:
            print(f"       {name}: {PROTECTIONS[name]}")
    print()
