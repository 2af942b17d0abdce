"""Kernels of distributions, each started by qemu over a small Debian system with staddle in it.

As root and as an ordinary user, doctor, a strict run, a run on every backend and a session are tried.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.hosts import machines
from tests.hosts.machines import DEBIAN, UBUNTU

NAMESPACES, NOTHING = "namespaces", "-"


@dataclass(frozen=True)
class Kernel:
    """A distribution's kernel, and what is expected: the backend of `auto` as root and as a user.

    With `fixed`, the user tries again when root has run `staddle doctor --fix`: the backend then.
    """

    name: str
    archive: str
    suite: str
    root: str = NAMESPACES
    user: str = NAMESPACES
    #: Settings that the distribution makes when it boots.
    sysctls: tuple[str, ...] = ()
    #: Words of the reason why namespaces cannot be used.
    reason: str = ""
    fixed: str = ""
    processor: str = "x86_64"
    #: Whether systemd runs the machine, with a manager of the user, who has logged in.
    systemd: bool = False

    def expected(self) -> dict[str, str]:
        """The backend of `auto`, by who tries."""
        found = {"root": self.root, "user": self.user}
        return {**found, "fixed": self.fixed} if self.fixed else found


KERNELS = (
    Kernel("Debian 11", DEBIAN, "bullseye", NOTHING, NOTHING, reason="5.12"),
    Kernel("Debian 12", DEBIAN, "bookworm"),
    Kernel("Ubuntu 22.04", UBUNTU, "jammy"),
    Kernel("Ubuntu 24.04, user namespaces allowed", UBUNTU, "noble"),
    Kernel(
        "Ubuntu 24.04",
        UBUNTU,
        "noble",
        user=NOTHING,
        sysctls=("kernel.apparmor_restrict_unprivileged_userns=1",),
        reason="AppArmor",
        fixed=NAMESPACES,
    ),
    Kernel("Debian 13", DEBIAN, "trixie"),
    Kernel("Debian 13 with systemd", DEBIAN, "trixie", systemd=True),
    Kernel("Debian 13 on aarch64", DEBIAN, "trixie", processor="aarch64"),
    Kernel("Debian sid", DEBIAN, "sid"),
)

TRIED = """
import json, os, subprocess, sys, warnings
warnings.simplefilter("ignore")
from staddle import Policy, Sandbox, StaddleError
def staddle(*words):
    done = subprocess.run([sys.executable, "-m", "staddle", *words], capture_output=True, text=True, cwd="/")
    return done.returncode, done.stdout, done.stderr
found = {"kernel": os.uname().release}
said = json.loads(staddle("doctor", "--json")[1])
found["auto"] = said["auto"]
found["usable"] = [n for n, b in said["backends"].items() if b["usable"] and n != "native"]
found["why"] = {n: b.get("why", "") for n, b in said["backends"].items()}
found["strict"], _, found["told"] = staddle("run", "--", "true")
found["run"] = {n: staddle("run", "--best-effort", "--backend", n, "--", "true") for n in found["usable"]}
place = sys.argv[1]
os.makedirs(place, exist_ok=True)
try:
    with Sandbox(place) as sb:
        sb.run("x=1; echo one > a")
        before = sb.snapshot()
        sb.run("x=2; rm a")
        sb.restore(before)
        found["session"] = sb.enforced.backend
        found["works"] = sb.run("cat a; echo $x").stdout == "one\\n1\\n" and len(sb.diff()) == 1
        found["snapshot"] = before.method
        sb.commit()
    limits = {"memory": "500M", "processes": 90, "cpu": 1}
    with Sandbox(policy=Policy.agent().with_limits(**limits)) as sb:
        held = {limit.limit: limit.by for limit in sb.enforced.limits if limit.limit in limits}
        found["limits"] = {name: held[name].partition(" (")[0] for name in limits}
        hog = sb.run("python3 -c 'x = bytearray(700 << 20); print(1)'", timeout=300)
        found["held"] = str(hog.reason)
    found["works"] = found["works"] and open(place + "/a").read() == "one\\n"
except StaddleError as error:
    found["refused"] = str(error)
print("RESULT " + json.dumps(found))
"""
_VARIABLES = "PATH=/usr/sbin:/usr/bin:/sbin:/bin PYTHONPATH=/staddle LANG=C.UTF-8"
_INIT = f"""#!/bin/sh
export {_VARIABLES} HOME=/root
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm; mount -t devpts devpts /dev/pts; mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup; mount -t tmpfs run /run
echo +memory +cpu +pids > /sys/fs/cgroup/cgroup.subtree_control
mount -t securityfs securityfs /sys/kernel/security 2>/dev/null
ip link set lo up; hostname box
for setting in $(cat /sysctls); do sysctl -qw $setting; done
mkdir -p /home/box; chown 1000:1000 /home/box
cd /
echo AS root
python3 /tried.py /srv/project
echo AS user
HOME=/home/box setpriv --reuid=1000 --regid=1000 --clear-groups python3 /tried.py /home/box/project
if [ -s /fix ]; then
    python3 -m staddle doctor --fix --yes
    echo AS fixed
    HOME=/home/box setpriv --reuid=1000 --regid=1000 --clear-groups python3 /tried.py /home/box/other
fi
exec /busybox reboot -f
"""
# With systemd: one service after the other, the second in a session of the user, as at a login.
SERVICE = f"""[Unit]
After=basic.target systemd-user-sessions.service systemd-logind.service dbus.service
[Service]
Type=oneshot
Environment={_VARIABLES}
"""
_AS_ROOT = f"""{SERVICE}Environment=HOME=/root
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
ExecStart=/bin/sh -c 'mkdir -p /home/box; chown 1000:1000 /home/box'
ExecStart=/bin/sh -c 'echo AS root; python3 /tried.py /srv/project'
ExecStart=-/bin/systemctl start tried-user.service
ExecStart=-/bin/cat /home/box/said
ExecStart=-/bin/systemctl status --no-pager --full tried-user.service
ExecStart=/bin/systemctl reboot --force --force
[Install]
WantedBy=multi-user.target
"""
_AS_USER = f"""{SERVICE}User=box
StandardOutput=file:/home/box/said
StandardError=inherit
PAMName=login
WorkingDirectory=/home/box
ExecStart=/bin/sh -c 'sleep 5; echo AS user; python3 /tried.py /home/box/project'
"""
UNITS = "/etc/systemd/system"


def run(kernel: Kernel) -> dict[str, Any]:
    """What was found, by who tried."""
    files = {
        "/init": _INIT,
        "/tried.py": TRIED,
        "/sysctls": "\n".join(kernel.sysctls),
        "/fix": kernel.fixed,
    }
    if kernel.systemd:
        files[f"{UNITS}/tried.service"] = _AS_ROOT
        files[f"{UNITS}/multi-user.target.wants/tried.service"] = f"{machines.LINK}../tried.service"
        files[f"{UNITS}/tried-user.service"] = _AS_USER
        files[f"{UNITS}/serial-getty@ttyS0.service"] = ""  # it would wait for a device that nobody makes
    text = machines.run(
        kernel.archive, kernel.suite, files, processor=kernel.processor, systemd=kernel.systemd
    )
    results = re.findall(r"AS (\w+)\s+RESULT (\{.*\})\s*$", text, re.MULTILINE)
    assert len(results) == len(kernel.expected()), f"{kernel.name} printed:\n{text[-6000:]}"
    return {who: json.loads(found) for who, found in results}


def judged(kernel: Kernel, results: dict[str, Any]) -> Iterator[str]:
    """What does not agree, or is not as expected."""
    for who, expected in kernel.expected().items():
        found = results[who]
        if (found["auto"] or NOTHING) != expected:
            yield f"as {who} auto is {found['auto']}: {found['why']}"
        if (found["strict"] == 0) != (found["auto"] is not None):
            yield f"as {who} doctor says {found['auto']}, and a strict run exits with {found['strict']}"
        if found.get("session", NOTHING) != expected:
            yield f"as {who} the session is on {found.get('session')}: {found.get('refused', '')}"
        for name, (status, _, said) in found["run"].items():
            if status:
                yield f"as {who} {name} is usable, and a run on it exits with {status}: {said}"
        if "session" in found and found.get("held") != "memory":
            why = found.get("refused", "")
            yield f"as {who} a command that takes too much memory ends with {found.get('held')}: {why}"
            continue
        if kernel.systemd and "control group" not in found["limits"]["memory"]:
            yield f"as {who} memory is limited by {found['limits']['memory']}"
        if "session" in found and not found["works"]:
            yield f"as {who} snapshot, restore, diff or commit do not work"
        if expected != NAMESPACES and kernel.reason not in found["why"][NAMESPACES]:
            yield f"as {who} the reason does not say {kernel.reason}: {found['why'][NAMESPACES]}"


def rows(kernel: Kernel, results: dict[str, Any]) -> Iterator[str]:
    """Lines of the table."""
    for who, found in results.items():
        usable = ", ".join(f"`{name}`" for name in found["usable"]) or "none"
        session = f"`{found['session']}`, {found['snapshot']}" if "session" in found else "refused"
        limits = ", ".join(f"{name}: {how}" for name, how in found.get("limits", {}).items())
        release = found["kernel"].split("-")[0].split("+")[0]
        auto = found["auto"] or "refused"
        name = "user, after `doctor --fix`" if who == "fixed" else who
        yield f"| {kernel.name}, {release}, {name} | {usable} | `{auto}` | {session} | {limits} |"


def tried(kernel: Kernel) -> tuple[list[str], int]:
    """Try one, and print a line: its rows of the table, and 1 if it failed."""
    began = time.monotonic()
    found: list[str] = []
    try:
        results = run(kernel)
        wrong = list(judged(kernel, results))
        found = list(rows(kernel, results))
    except (AssertionError, subprocess.SubprocessError, OSError) as error:
        wrong = [str(error)[-2500:] or type(error).__name__]
    print(f"{'FAILED' if wrong else 'ok'}: {kernel.name} ({time.monotonic() - began:.0f} s)", flush=True)
    for words in wrong:
        print(f"    {words}", flush=True)
    return found, int(bool(wrong))


def merged(before: list[str], kernel: Kernel, new: list[str]) -> list[str]:
    """The rows of all kernels, those of one of them anew, in their order."""
    found = []
    for one in KERNELS:
        its = re.compile(rf"\| {re.escape(one.name)}, \d")
        found += new if one == kernel else [row for row in before if its.match(row)]
    return found
