"""The tests of limits in a machine that has cgroups of version 2 only, as most distributions have today.

systemd runs the machine. Root and an ordinary user run the tests in a unit with a delegated cgroup. Root also
runs some in a plain unit, whose cgroup has processes. Debian's pytest runs them, with Debian's Python.
"""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.hosts import machines
from tests.hosts.kernels import SERVICE, UNITS
from tests.hosts.machines import DEBIAN, TESTED
from tests.support.containers import TREE

PAGE = TREE / "docs/internals/tests.md"
_BEGIN, _END = "<!-- limits: begin -->", "<!-- limits: end -->"
_SUITE, _SYSTEM = "trixie", "Debian 13 with systemd"
#: The machine is emulated, and ends after so many seconds.
_SECONDS = 3000
TESTS = (
    "tests/unit/limits",
    *(f"tests/kernel/test_limits_{name}.py" for name in ("groups", "alone", "siblings")),
    "tests/kernel/test_default_limits.py",
    "tests/kernel/test_wrap_limits.py",
)


@dataclass(frozen=True)
class Runner:
    """Who runs tests: the settings of the unit, and the files of tests."""

    name: str
    unit: str
    tests: tuple[str, ...]


_DELEGATED = "Delegate=yes\nDelegateSubgroup=program\n"
_ROOT, _USER = "Environment=HOME=/root\n", "User=box\nPAMName=login\nEnvironment=HOME=/home/box\n"
RUNNERS = {
    "plain": Runner("root, not delegated", _ROOT, TESTS[-1:]),
    "root": Runner("root, delegated", f"{_DELEGATED}{_ROOT}", TESTS),
    "user": Runner("user, delegated", f"{_DELEGATED}{_USER}", TESTS),
}
#: Tests of times that an emulated processor does not keep.
TIMED = (
    "tests/unit/limits/test_supervisor.py::test_open_files_that_take_long_to_look_at_are_looked_at_again_soon",
    "tests/kernel/test_limits_groups.py::test_time_of_the_processors_is_counted_to_the_microsecond",
)
_PYTEST = (
    "timeout 1200 python3 -m pytest -v --color=no -p no:cacheprovider -rfE --tb=short --durations=5 -W ignore"
)
_LEFT_OUT = " ".join(f"--deselect {name}" for name in TIMED)

_FIRST = f"""{SERVICE}StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
ExecStart=/bin/sh -c 'mkdir -p /home/box; chown 1000:1000 /home/box; echo KERNEL $(uname -r)'
ExecStart=-/bin/python3 -m compileall -q {TESTED}/src
%s
ExecStart=/bin/systemctl reboot --force --force
[Install]
WantedBy=multi-user.target
"""
_EACH = f"""{SERVICE}TimeoutStartSec=infinity
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
WorkingDirectory={TESTED}
ExecStart=/bin/sh -c 'echo AS %s; {_PYTEST} {_LEFT_OUT} %s; echo DONE'
"""


@dataclass(frozen=True)
class Outcome:
    """Counts of one run of the tests, its last line, and the tests that failed."""

    who: str
    counts: dict[str, int]
    seconds: int
    failed: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        return bool(self.counts.get("passed")) and not self.failed


def run() -> str:
    """Boot the machine, and run the tests as everybody; what was printed on its console."""
    starts = "\n".join(f"ExecStart=-/bin/systemctl start tests-{who}.service" for who in RUNNERS)
    files = {
        f"{UNITS}/tests.service": _FIRST % starts,
        f"{UNITS}/multi-user.target.wants/tests.service": f"{machines.LINK}../tests.service",
        f"{UNITS}/serial-getty@ttyS0.service": "",
        **{
            f"{UNITS}/tests-{who}.service": _EACH % (who, " ".join(runner.tests)) + runner.unit
            for who, runner in RUNNERS.items()
        },
    }
    return machines.run(DEBIAN, _SUITE, files, systemd=True, tests=True, seconds=_SECONDS)


def outcomes(text: str) -> Iterator[Outcome]:
    """What the text of the console says of each run."""
    for who, said in re.findall(r"^AS (\w+)\s*\n(.*?)^DONE", text, re.MULTILINE | re.DOTALL):
        (*_, last) = ("", *re.findall(r"^=+ (.* in \d+\.\d+s).*$", said, re.MULTILINE))
        found = re.findall(r"(\d+) (passed|failed|skipped|error)s?\b", last)
        counts = {kind: int(count) for count, kind in found}
        seconds = re.findall(r" in (\d+)\.", last)
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+::[^\s]+)", said, re.MULTILINE)
        yield Outcome(who, counts, int(*seconds), tuple(failed))


def tried() -> int:
    """Run all, print a line for each user, and write the page; how many runs failed."""
    text = run().replace("\r", "")
    (machines.PLACE / "limits.log").write_text(text)
    kernel = re.search(r"KERNEL (\S+)", text)  # after what the firmware prints
    found = list(outcomes(text))
    if kernel is None or [one.who for one in found] != list(RUNNERS):
        print(f"FAILED: limits, on {_SYSTEM}\n{text[-6000:]}", flush=True)
        return len(RUNNERS)
    for one in found:
        print(
            f"{'ok' if one.is_good else 'FAILED'}: limits, {RUNNERS[one.who].name}: {_said(one)}", flush=True
        )
        for name in one.failed:
            print(f"    {name}")
    release = kernel[1].split("+")[0]
    PAGE.write_text(merged(PAGE.read_text(), paragraph(release, found)))
    return sum(not one.is_good for one in found)


def paragraph(release: str, found: list[Outcome]) -> str:
    """What the page says of a run."""
    date = time.strftime("%Y-%m-%d")
    lines = [
        f"`python -m tests.hosts limits` ran tests of limits on {date}, on {_SYSTEM} (Linux {release}).",
        "qemu emulates the processor. Each run is in a unit of systemd, with a delegated cgroup or without.",
        "",
        "| who | passed | failed | skipped | seconds | failed tests |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in found:
        counts = [str(one.counts.get(kind, 0)) for kind in ("passed", "failed", "skipped")]
        names = ", ".join(f"`{name.rpartition('/')[2]}`" for name in one.failed)
        lines.append(f"| {' | '.join([RUNNERS[one.who].name, *counts, str(one.seconds), names])} |")
    files = ", ".join(f"`{name.removeprefix('tests/')}`" for name in TESTS)
    last = RUNNERS["plain"].tests[0].removeprefix("tests/")
    return "\n".join(
        [
            *lines,
            "",
            textwrap.fill(f"The tests are {files}.", 118, break_on_hyphens=False),
            f"Without a delegated cgroup only `{last}` runs. {len(TIMED)} tests are left out,",
            "because an emulated processor does not keep their times.",
        ]
    )


def merged(text: str, said: str) -> str:
    """The page, with `said` between its two marks."""
    head, _, rest = text.partition(_BEGIN)
    return f"{head}{_BEGIN}\n{said}\n{_END}{rest.partition(_END)[2]}"


def _said(one: Outcome) -> str:
    counts = ", ".join(f"{count} {kind}" for kind, count in one.counts.items())
    return f"{counts} in {one.seconds} s"
