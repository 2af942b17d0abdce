"""The private systemd that other tests run on comes and goes without a trace."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.private_systemd import PrivateSystemd
from tests.support.systemd_sandbox import wait_for
from tests.support.waiting import next_line

HERE = Path(__file__).parent

pytestmark = pytest.mark.needs_root


@pytest.mark.slow
def test_two_private_machines_at_once_and_nothing_is_left() -> None:
    with PrivateSystemd() as one, PrivateSystemd() as two:
        for machine in (one, two):
            command = ["systemd-run", "--user", "--pipe", "--wait", "--quiet", "hostname"]
            assert machine.run(command, user=True).stdout == b"staddle-test\n"
        groups = _groups(one) + _groups(two)
        assert len(groups) == 2
        inits = (one.init, two.init)
    assert not [group for group in groups if group.exists()]
    assert not [pid for pid in inits if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
def test_a_killed_test_run_leaves_no_machine_behind(tmp_path: Path) -> None:
    code = (
        "import sys,time; sys.path.insert(0, sys.argv[1])\n"
        "from tests.support.private_systemd import PrivateSystemd\n"
        "with PrivateSystemd() as m: print(m.init, flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(HERE.parents[1])], stdout=subprocess.PIPE)
    init = int(next_line(process))
    keeper = Path(f"/proc/{init}/stat").read_text().rpartition(")")[2].split()[1]
    groups = _groups(init)
    assert groups
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    wait_for("the machine ends", lambda: not Path(f"/proc/{init}").exists())
    wait_for("its keeper ends", lambda: not Path(f"/proc/{keeper}").exists())
    assert not [group for group in groups if group.exists()]


def _groups(machine: PrivateSystemd | int) -> list[Path]:
    """The control group on the host that holds a private machine."""
    init = machine if isinstance(machine, int) else machine.init
    keeper = Path(f"/proc/{init}/stat").read_text().rpartition(")")[2].split()[1]
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    mounts = [Path(target) for _, target, kind, *_ in lines if kind == "cgroup2"]
    return [path for mount in mounts[:1] for path in mount.glob(f"staddle-test-{keeper}")]
