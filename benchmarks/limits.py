"""What limits cost, how fast a bomb is gone, and what a neighbour notices of one."""

from __future__ import annotations

import os
import statistics
import threading
import time
from pathlib import Path

from measure import Claim, first_result, ms, timed
from staddle import Limits, Policy, Sandbox
from staddle.limits import host_cgroups
from staddle.sandbox.spawn import spawn

_GROUPS = bool(host_cgroups.support().version("memory"))
#: A share of the processors is held by control groups alone.
_ALL: dict[str, object] = {"memory": "512M", "processes": 200, "disk": "1G"}
_ALL |= {"file_size": "1G", "open_files": 512, "max_lifetime": 600}
_ALL |= {"cpu": 1.0} if _GROUPS else {}
_PLAIN, _LIMITED = Policy.agent(), Policy.agent().with_limits(**_ALL)
_HOW = "control groups" if _GROUPS else "resource limits and a supervisor"

#: Starts as many processes as it is told, which sleep, and says so.
_SLEEPERS = "for (2..$ARGV[0]) { my $p = fork; if (!$p) { sleep 100; exit } } syswrite STDOUT, '!'; sleep 100"


def start() -> list[Claim]:
    """To the first result, by turns, with time for a spare to be made."""
    took: dict[str, list[float]] = {"plain": [], "limited": []}
    for number in range(41):
        for name, policy in (("plain", _PLAIN), ("limited", _LIMITED)):
            seconds = first_result(0.15, policy=policy)
            if number:
                took[name].append(seconds)
    plain, limited = (statistics.median(took[name]) for name in ("plain", "limited"))
    detail = f"{ms(limited)} against {ms(plain)}, {_HOW}"
    return [Claim("all limits add to a session's start, ms", (limited - plain) * 1000, 1, detail)]


def builtin() -> list[Claim]:
    """A command that starts nothing, in blocks by turns."""
    took: dict[str, list[float]] = {"plain": [], "limited": []}
    with Sandbox(policy=_PLAIN) as plain, Sandbox(policy=_LIMITED) as limited:
        for _ in range(40):
            for name, sandbox in (("plain", plain), ("limited", limited)):
                took[name] += [timed(lambda sandbox=sandbox: sandbox.run("true")) for _ in range(40)]
    one, other = (statistics.median(took[name]) for name in ("limited", "plain"))
    return [
        Claim(
            "a builtin with all limits / without",
            one / other,
            1.1,
            f"{one * 1e6:.0f} µs against {other * 1e6:.0f} µs",
        )
    ]


def killing() -> list[Claim]:
    """From `close()`, or the end of a command's time, to the end of the last process."""
    claims = []
    for how, policy in (("the pid namespace", _PLAIN), (_HOW, _many(3000))):
        for count, most in ((64, 100), (2000, 1000)):
            seconds = statistics.median(_until_gone(policy, count) for _ in range(5))
            claims.append(Claim(f"{count} processes gone, ms", seconds * 1000, most, f"by {how}"))
    return claims


def _many(processes: int) -> Policy:
    return Policy.agent().with_limits(memory="2G", processes=processes)


def _until_gone(policy: Policy, count: int) -> float:
    sandbox = Sandbox(policy=policy)
    try:
        # All of them have the pipe: it ends with the last.
        read, write = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        spawned = spawn(sandbox._now(), ["perl", "-e", _SLEEPERS, str(count)], (null, write, null))
        os.close(write)
        os.close(null)
        if os.read(read, 1) != b"!":
            raise RuntimeError("they were not started")
        began = time.perf_counter()
        sandbox.close()
        while os.read(read, 1):
            pass
        seconds = time.perf_counter() - began
        os.close(read)
        spawned.close()
        return seconds
    finally:
        sandbox.close()


def cycles() -> list[Claim]:
    """500 sandboxes with all limits: nothing is left of them."""
    for _ in range(3):
        _cycle()
    before = _left()
    seconds = timed(lambda: [_cycle() for _ in range(500)])
    host_cgroups.close()
    end = time.monotonic() + 10
    while (after := _left()) > before and time.monotonic() < end:
        time.sleep(0.05)
    more = [f"{now - then} {name}" for name, then, now in zip(_COUNTED, before, after, strict=True)]
    detail = f"{', '.join(more)} more than before; {ms(seconds / 500)} each"
    return [Claim("left of 500 sandboxes with all limits", sum(map(_more, before, after)), 0, detail)]


_COUNTED = ("control groups", "mounts", "descriptors")


def _cycle() -> None:
    with Sandbox(policy=_LIMITED) as sandbox:
        sandbox.run("sleep 100 & head -c 1M /dev/zero > /workspace/file")


def _left() -> tuple[int, int, int]:
    names = [name for _, below, _ in os.walk("/sys/fs/cgroup") for name in below]
    own = [name for name in names if name.startswith("staddle-") and str(os.getpid()) in name.split("-")]
    mounts = Path("/proc/self/mountinfo").read_text().count("\n")
    return len(own), mounts, len(os.listdir("/proc/self/fd"))


def _more(before: int, after: int) -> int:
    return max(0, after - before)


#: What one sandbox does while another runs its commands.
_ATTACKS = {
    "a fork bomb": "bomb() { bomb | bomb & }; bomb; sleep 60",
    "allocation": "while :; do python3 -c 'a = bytearray(2 << 30)'; done",
    "busy loops": "for i in $(seq 16); do while :; do :; done & done; wait",
    "files": "while :; do head -c 100M /dev/zero > /tmp/file; rm /tmp/file; done",
}


def neighbour() -> list[Claim]:
    """The latency of a command beside each attack, and without any."""
    limits = Limits(memory="256M", processes=100, timeout=None, **({"cpu": 1.0} if _GROUPS else {}))
    policy = _PLAIN.replace(limits=limits)
    claims = []
    with Sandbox(policy=_PLAIN) as other:
        alone = _latency(other)
        for name, attack in _ATTACKS.items():
            with Sandbox(policy=policy) as attacker:
                thread = threading.Thread(target=lambda box=attacker, text=attack: box.run(text, timeout=8))
                thread.start()
                time.sleep(1)
                beside = _latency(other)
                attacker.interrupt()
                thread.join()
            detail = f"{ms(beside)} against {ms(alone)}, {_HOW}"
            claims.append(Claim(f"a command beside {name} / alone", beside / alone, 3, detail))
    return claims


def _latency(sandbox: Sandbox) -> float:
    return statistics.median(timed(lambda: sandbox.run("/bin/true")) for _ in range(100))


CLAIMS = (start, builtin, killing, cycles, neighbour)
