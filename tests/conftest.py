"""What every test may rely on, and in which order they are given to the workers."""

from __future__ import annotations

import gc
import os
import re
import signal
from datetime import date
from pathlib import Path

import pytest

from staddle.hostinfo.layouts import SYSTEM
from staddle.policy.environment import PATH

#: What asks for the fixture `machine` of tests/kernel.
ON_A_MACHINE = {f"kernel/test_{name}.py" for name in ("systemd", "jail_systemd", "limits_scope")}
#: Groups that take long, the longest first: whoever begins with one of them at the end is waited for.
LONG = (
    "kernel: machine",
    "containment: machine",
    "kernel/test_forkserver_faults.py",
    "cli/test_endings.py",
    "containment/test_host_side.py",
    "kernel/test_jail_endings.py",
    "cli/test_layers.py",
    "containment/test_mutations.py: session",
    "containment/test_mutations.py: bwrap",
    "containment/test_mutations.py: namespaces",
    "kernel/test_git_safety.py",
    "kernel/test_packages.py",
    "kernel/test_network_matrix.py",
    "kernel/test_sandbox_unanswered.py",
    "kernel/test_namespaces_faults.py",
    "kernel/test_layers_crash.py",
    "containment/test_root_inside.py",
    "kernel/test_fresh_root_scale.py",
    "docs/test_examples.py",
    "kernel/test_forkserver.py",
    "kernel/test_shell_cases.py",
    "cli/test_layers_review.py",
    "kernel/test_programs.py",
    "kernel/test_sandbox.py",
    "kernel/test_seccomp.py",
    "kernel/test_network_relay.py",
    "kernel/test_jail.py",
    "kernel/test_helper.py",
    "kernel/test_environment.py",
    "kernel/test_sandbox_files.py",
    "containment/test_mutations.py: landlock",
    "cli/test_shell.py",
    "cli/test_jail.py",
    "containment/test_session.py",
    "property/test_writable_paths.py",
    "containment/test_namespaces.py",
    "containment/test_bwrap.py",
    "property/test_sandbox_model.py",
)


#: Where a test's result may depend on who runs it; unless it is marked `same_for_everyone`.
OF_BOTH_USERS = ("kernel/", "containment/", "cli/", "unit/layers/")


#: Tests that fail at times for a reason that nobody knows yet: the date since when, and what was seen. They
#: are run, and reported as xfailed or xpassed.
QUARANTINE: dict[str, tuple[date, str]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, metavar="N", help="run the tests in N forks")
    parser.addoption("--share", choices=("root", "user", "alone"), help="the part that `make test` runs")
    parser.addoption("--collected", metavar="FILE", help="make this file when the tests are collected")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are collected: nothing of that is garbage
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import HealthCheck, settings

        # A slow machine is no fault of what is tested.
        settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("steady")
    # A toolchain in the home of whoever runs the tests is seen inside. Tests say themselves which there are.
    usual = [place for place in os.environ.get("PATH", "").split(":") if place in SYSTEM]
    os.environ["PATH"] = ":".join(usual) or PATH
    # Who starts us in the background has them ignored, and so would be everything that we start.
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    # Ten thousand tests are in memory: nobody who looks for garbage, or forks, need look at them.
    gc.collect()
    gc.freeze()
    gc.enable()
    if file := session.config.getoption("collected"):
        Path(file).touch()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_out(config, items)
    for item in items:
        if item.nodeid in QUARANTINE:
            item.add_marker(pytest.mark.xfail(reason=QUARANTINE[item.nodeid][1], strict=False))
    ranks = {group: rank for rank, group in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(group_of(item.nodeid), len(LONG)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> object:
    """With `--workers`, one group after the other goes to the next worker that is free."""
    count = session.config.getoption("workers")
    if not count or session.testsfailed or session.config.option.collectonly:
        return None
    from tests.support.workers import Workers

    Workers(session, count, group_of).run()
    return True


def group_of(test: str) -> str:
    """Whose tests one worker runs, one after the other: those of a file, and those on one machine.

    Not fewer: tests of a file look for the same processes. What one backend does with a protection
    switched off nobody else looks for.
    """
    path, _, name = test.removeprefix("tests/").partition("::")
    if path in ON_A_MACHINE:
        return "kernel: machine"
    if path == "containment/test_systemd.py" or "_in_systemd[" in name:
        return "containment: machine"
    if path == "containment/test_mutations.py":
        return f"{path}: {re.split('[]:]', name.partition('[')[2])[0]}"
    return path


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs another user than this one, and what is not of the share that was asked for."""
    is_root, share = os.geteuid() == 0, config.getoption("share")
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        can_run = is_root or "needs_root" not in marks
        is_ours = can_run and (share is None or is_of(share, item.nodeid, marks))
        (kept if is_ours else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def is_of(share: str, test: str, marks: set[str]) -> bool:
    """Whether `make test` runs a test as root, as an ordinary user, or, where only that can be, alone as one.

    A slow one not at all. Any other once: as an ordinary user if the result may depend on who runs it,
    because most of those who use staddle are. The containment checks, the unit tests of layers, and what
    is marked `both_users`, run as both.
    """
    if "slow" in marks or share == "alone":
        return "slow" not in marks
    path = test.removeprefix("tests/")
    if marks & {"same_for_everyone", "needs_root"} or not path.startswith(OF_BOTH_USERS):
        return share == "root"
    return share == "user" or "both_users" in marks or path.startswith(("containment/", "unit/layers/"))
