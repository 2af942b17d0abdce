"""A pytest plugin: the processor time that each test takes, in its worker and in everything it starts.

    python -m pytest -p tests.support.cpu_time --cpu-time TABLE --workers 3
    python -m tests.support.cpu_time TABLE          # the costliest files and tests

Wall time says little where workers share processors. A test's processes are counted when somebody has waited
for them. Where cgroup v1 has the controller cpuacct and we may make a group, each worker runs in one of its
own: then those count, too, that outlive their parent, at the moment they compute.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

_CPUACCT = Path("/sys/fs/cgroup/cpuacct")
#: So many files and tests are shown.
_SHOWN = 30


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-time", metavar="TABLE", help="append each test's processor seconds to this file")


def pytest_configure(config: pytest.Config) -> None:
    if table := config.getoption("cpu_time"):
        config.pluginmanager.register(_Meter(Path(table)))


class _Meter:
    """Appends a line for each test: seconds of processor, seconds of wall time, name."""

    def __init__(self, table: Path) -> None:
        self._table = os.open(table, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._process = 0
        self._around = _CPUACCT / _own_group().lstrip("/")
        self._group: Path | None = None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write(time.process_time(), 0, "(collection)")

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if self._process != os.getpid():
            self._begin()
        cpu, wall = self._cpu(), time.monotonic()
        yield
        self._write(self._cpu() - cpu, time.monotonic() - wall, item.nodeid)

    def pytest_unconfigure(self) -> None:
        if self._group is not None:
            with contextlib.suppress(OSError):
                (self._around / "cgroup.procs").write_text(str(os.getpid()))
                self._group.rmdir()

    def _begin(self) -> None:
        """In a worker: have a group of our own."""
        self._process = os.getpid()
        self._group = self._around / f"tests-{self._process}"
        try:
            self._group.mkdir()
            (self._group / "cgroup.procs").write_text(str(self._process))
        except OSError:
            self._group = None

    def _cpu(self) -> float:
        if self._group is not None:
            return int((self._group / "cpuacct.usage").read_text()) / 1e9
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in used)

    def _write(self, cpu: float, wall: float, name: str) -> None:
        os.write(self._table, f"{cpu:.4f}\t{wall:.4f}\t{name}\n".encode())


def _own_group() -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "cpuacct":
            return path
    return ""


def main(table: str) -> None:
    files: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    walls: Counter[str] = Counter()
    for line in Path(table).read_text().splitlines():
        cpu, wall, test = line.split("\t", 2)
        file = test.partition("::")[0]
        files[file] += float(cpu)
        walls[file] += float(wall)
        counts[file] += 1
        tests[test] += float(cpu)
    print(f"{sum(files.values()):8.1f} s of processor time in all")
    for file, cpu in files.most_common(_SHOWN):
        print(f"{cpu:8.1f} s  {walls[file]:7.1f} s wall {counts[file]:6} tests  {file}")
    for test, cpu in tests.most_common(_SHOWN):
        print(f"{cpu:8.2f} s  {test}")


if __name__ == "__main__":
    main(sys.argv[1])
