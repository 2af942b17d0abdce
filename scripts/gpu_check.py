#!/usr/bin/env python3
"""Check GPU grants on a machine with an NVIDIA card: `PYTHONPATH=src python3 scripts/gpu_check.py [--write]`.

Run it as root. It checks as root and as an ordinary user, on each usable backend. It needs the driver's
`nvidia-smi`, and torch for the checks that compute. Each step has a timeout, and all of it ends after eight
minutes. It prints each result, writes gpu_check.json into the directory of `--out`, and with `--write` fills
the table in docs/internals/gpu.md. The exit status is 0 if nothing failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import pwd
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
SRC = str(HERE / "src")
#: Seconds for everything.
MOST = 470
#: Where the catalogue denies paths, if not below a writable one.
DENIED = {"landlock": "readable"}
BACKENDS = ("namespaces", "landlock", "bwrap", "systemd")
#: One product: warm up, then the median of several timings on the device's own clock.
MATMUL = """
import json, sys, time
import torch
n, rounds = int(sys.argv[1]), int(sys.argv[2])
a = torch.randn(n, n, device="cuda", dtype=torch.float16)
b = torch.randn(n, n, device="cuda", dtype=torch.float16)
for _ in range(5):
    a @ b
torch.cuda.synchronize()
times = []
for _ in range(rounds):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        a @ b
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end) / 10)
times.sort()
print("RESULT", json.dumps({"ms": times[len(times) // 2], "devices": torch.cuda.device_count(),
    "name": torch.cuda.get_device_name(0), "ok": bool(torch.isfinite(a @ b).all())}))
"""
#: Open every node of /dev and of a list; print those that open.
OPEN = """
import os, sys
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        print("OPENED", path)
    except OSError as error:
        print("REFUSED", path, error.strerror)
"""
#: What must fail inside, each with the words that tell that it got through.
HOSTILE = r"""
import ctypes, fcntl, os, socket, stat, sys
def attempt(name, work):
    try:
        work()
    except (OSError, ValueError) as error:
        print("HELD", name, error)
    else:
        print("THROUGH", name)
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
nodes = sys.argv[1].split(",")
disks = sys.argv[2].split(",")
attempt("make a node", lambda: os.mknod("/tmp/n", 0o666 | stat.S_IFCHR, os.stat(nodes[0]).st_rdev))
attempt("make a memory node", lambda: os.mknod("/tmp/m", 0o666 | stat.S_IFCHR, os.makedev(1, 1)))
attempt("change the mode of a granted node", lambda: os.chmod(nodes[0], 0o600))
attempt("replace a granted node", lambda: os.rename(nodes[0], nodes[0] + "x"))
attempt("make a file in /dev", lambda: os.open("/dev/made", os.O_CREAT | os.O_WRONLY))
attempt("mount a device file system", lambda: checked(libc.mount(b"d", b"/tmp", b"devtmpfs", 0, None)))
attempt("make a user namespace", lambda: checked(libc.unshare(0x10000000)))
attempt("read kernel messages", lambda: os.open("/dev/kmsg", os.O_RDONLY))
attempt("read memory", lambda: os.open("/dev/mem", os.O_RDONLY))
attempt("read a secret of the host", lambda: os.open("/etc/shadow", os.O_RDONLY))
attempt("reach the network", lambda: socket.create_connection(("1.1.1.1", 53), 2))
attempt("signal a process of the host", lambda: os.kill(int(sys.argv[3]), 0))
for disk in filter(None, disks):
    attempt("read the disk " + disk, lambda: os.open(disk, os.O_RDONLY))
"""

results: list[dict[str, object]] = []
began = time.monotonic()


def left(most: float) -> float:
    """Return the seconds for a step: `most`, and no more than are left for everything."""
    return max(1.0, min(most, MOST - (time.monotonic() - began)))


def report(check: str, where: str, outcome: str, detail: str = "", **facts: object) -> None:
    """Record one result: "ok", "failed", "not run"."""
    if outcome == "failed" and left(1e9) < 5:
        outcome, detail = "not run", f"the time was over: {detail}"
    results.append({"check": check, "where": where, "outcome": outcome, "detail": detail, **facts})
    print(f"{time.monotonic() - began:6.1f}s  {outcome:8}  {where:22}  {check}: {detail}", flush=True)


def run(argv: list[str], user: str, seconds: float = 60) -> tuple[int, str]:
    """Run a command as root or as the unused id, in a process group that is killed after a time."""
    ids: dict[str, object] = {} if user == "root" else {"user": UID, "group": UID, "extra_groups": []}
    home = "/root" if user == "root" else HOME
    env = {**{k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "VIRTUAL_ENV")}, "HOME": home}
    env |= {"PYTHONPATH": f"{SRC_OF[user]}/src:{SRC_OF[user]}", "TMPDIR": "/tmp"}
    if shutil.which(argv[0]) is None:
        return 127, f"there is no program {argv[0]}"
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            cwd=HOME,
            start_new_session=True,
            **ids,  # type: ignore[call-overload]
        )
        try:
            code = process.wait(left(seconds))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = 124
        output.seek(0)
        return code, output.read(1 << 20).decode("utf-8", "replace").strip()


def staddle(
    user: str, backend: str, options: list[str], command: list[str], seconds: float = 60
) -> tuple[int, str]:
    """Run a command in a sandbox."""
    shown = [word for path in PYTHON_PATHS for word in ("--read", path)]
    words = [PYTHON, "-m", "staddle", "run", "--backend", backend, "--memory", "none", "--timeout", "none"]
    return run([*words, *shown, *options, "--", *command], user, seconds)


def answer(text: str) -> dict[str, object] | None:
    """Return the result that a program printed as JSON."""
    for line in text.splitlines():
        if line.startswith("RESULT "):
            found: dict[str, object] = json.loads(line[7:])
            return found
    return None


def tail(text: str) -> str:
    """Return the last lines of some output, on one line."""
    return " | ".join(text.splitlines()[-4:])[-400:]


def check_backend(user: str, backend: str) -> None:
    """Run the checks of one user on one backend."""
    where = f"{backend}, {user}"
    code, text = staddle(user, backend, [], ["true"], 30)
    if code:
        report("a sandbox starts", where, "not run", tail(text))
        return
    gpu = GPU_OPTIONS
    code, text = staddle(user, backend, gpu, ["nvidia-smi", "-L"], 60)
    report("nvidia-smi -L", where, "ok" if code == 0 and "GPU 0" in text else "failed", tail(text))

    # Without a grant, no node opens; the control shows that the probe opens them outside.
    code, outside = run([PYTHON, "-c", OPEN, *NODES], user, 30)
    opened = outside.count("OPENED")
    report("control: nodes open outside", where, "ok" if opened else "failed", f"{opened} of {len(NODES)}")
    code, text = staddle(user, backend, [], [PYTHON, "-c", OPEN, *NODES], 30)
    held = code == 0 and "OPENED" not in text and text.count("REFUSED") == len(NODES)
    report("without a grant, no node opens", where, "ok" if held else "failed", tail(text))
    granted = json.loads(GRANTED)
    code, text = staddle(user, backend, gpu, [PYTHON, "-c", OPEN, *NODES], 30)
    opened = {line.split()[1] for line in text.splitlines() if line.startswith("OPENED")}
    others = set(NODES) - set(granted)
    held = code == 0 and not opened & others and set(granted) <= opened
    detail = f"{len(opened)} granted nodes open; of {len(others)} others {len(opened & others)} open"
    report(
        "with a grant, only its nodes open", where, "ok" if held else "failed", detail, others=sorted(others)
    )
    code, text = staddle(user, backend, [*gpu, "--deny", granted[0]], [PYTHON, "-c", OPEN, *NODES], 30)
    report(
        "a deny wins over the grant",
        where,
        "ok" if code == 0 and "OPENED" not in text else "failed",
        tail(text),
    )

    argv = [PYTHON, "-c", HOSTILE, ",".join(granted), ",".join(DISKS), str(os.getpid())]
    code, text = staddle(user, backend, gpu, argv, 60)
    through = [line[8:] for line in text.splitlines() if line.startswith("THROUGH")]
    held = code == 0 and not through and text.count("HELD") > 8
    report(
        "with a grant, nothing new gets through",
        where,
        "ok" if held else "failed",
        f"{through} {tail(text) if not held else ''}",
    )
    check_catalogue(user, backend)
    check_matmul(user, backend, where)


def check_matmul(user: str, backend: str, where: str) -> None:
    """Compare a large product inside and outside, in turns."""
    if not HAS_TORCH:
        report("torch, inside to outside", where, "not run", "there is no torch")
        return
    inside, outside = [], []
    for _ in range(3):
        code, text = run([PYTHON, "-c", MATMUL, "8192", "60"], user, 60)
        found = answer(text)
        if found is None:
            report("torch, inside to outside", where, "failed", f"outside: {code} {tail(text)}")
            return
        outside.append(float(str(found["ms"])))
        code, text = staddle(user, backend, GPU_OPTIONS, [PYTHON, "-c", MATMUL, "8192", "60"], 60)
        found = answer(text)
        if found is None:
            report("torch, inside to outside", where, "failed", f"inside: {code} {tail(text)}")
            return
        inside.append(float(str(found["ms"])))
    ratio = statistics.median(outside) / statistics.median(inside)
    detail = f"speed ratio {ratio:.4f} ({statistics.median(inside):.3f} ms inside, {found['devices']} GPU)"
    report("torch, inside to outside", where, "ok" if ratio >= 0.99 else "failed", detail, ratio=ratio)


def check_catalogue(user: str, backend: str) -> None:
    """Run the containment catalogue with and without the grant: nothing more may get through."""
    where = f"{backend}, {user}"
    through = []
    for grants in ({}, {"gpu": [GPU]} if GPU_OPTIONS[0] == "--gpu" else {"devices": GPU_OPTIONS[1:]}):
        asked = json.dumps({"backend": backend, "grants": grants, "deny_below": DENIED.get(backend, "work")})
        code, text = run([PYTHON, "-m", "tests.containment.session", asked], user, 60)
        try:
            found = json.loads(text[text.index("{") :])
        except ValueError:
            report("containment catalogue", where, "not run", f"{code}: {tail(text)}")
            return
        answers = {name: each.get("outcome") for name, each in found["answers"].items()}
        through.append({name for name, outcome in answers.items() if outcome == "through"})
        through[-1] |= {f"damage to {name}" for name in found["damage"]}
        through[-1] |= {f"leak by {name}" for name in found["leaks"]}
    new = sorted(through[1] - through[0])
    detail = f"{len(answers)} attacks and twins, {len(new)} new through {new or ''}"
    report("containment catalogue", where, "failed" if new or len(answers) < 50 else "ok", detail)


SHARING = """
import json, sys, threading, time
from staddle import Policy, Sandbox
paths, gpu, python, code, count = json.loads(sys.argv[1])
policy = Policy.agent().with_read(*paths).with_gpu(gpu).with_limits(memory=None, timeout=100)
done = []
def work():
    try:
        with Sandbox(policy=policy) as sandbox:
            result = sandbox.exec([python, "-c", code, "2048", "3"])
            done.append("RESULT" in result.stdout or result.stdout + result.stderr)
    except Exception as error:
        done.append(repr(error))
threads = [threading.Thread(target=work) for _ in range(count)]
begun = time.monotonic()
[thread.start() for thread in threads]
[thread.join() for thread in threads]
bad = [each for each in done if each is not True]
seconds = time.monotonic() - begun
print("RESULT", json.dumps({"good": len(done) - len(bad), "bad": str(bad[:1])[-300:], "s": seconds}))
"""

SNAPSHOTS = """
import json, sys, time
from staddle import Policy, Sandbox
paths, gpu, python, code, count = json.loads(sys.argv[1])
hold = '''
import torch, time
x = torch.ones(1 << 20, device="cuda"); torch.cuda.synchronize()
print("HOLDING", flush=True)
time.sleep(300)
'''
policy = Policy.agent().with_read(*paths).with_gpu(gpu).with_limits(memory=None, timeout=100)
facts = {}
with Sandbox(policy=policy) as sandbox:
    sandbox.files.write("hold.py", hold)
    first = sandbox.snapshot("before")
    process = sandbox.start(f"{python} hold.py")
    until = time.monotonic() + 60
    while "HOLDING" not in process.output().stdout and time.monotonic() < until and process.poll() is None:
        time.sleep(0.2)
    facts["held"] = "HOLDING" in process.output().stdout
    facts["output"] = process.output().stderr[-300:]
    begun = time.monotonic()
    second = sandbox.snapshot("with a process that holds the GPU")
    facts["snapshot_s"] = time.monotonic() - begun
    facts["goes_on"] = process.poll() is None
    (fork,) = sandbox.fork(1)
    with fork:
        facts["fork"] = "RESULT" in fork.exec([python, "-c", code, "1024", "3"]).stdout
    sandbox.restore(first)
    until = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    facts["ended_by_restore"] = process.poll() is not None
    facts["after"] = "RESULT" in sandbox.exec([python, "-c", code, "1024", "3"]).stdout
print("RESULT", json.dumps(facts))
"""


def check_sessions(user: str) -> None:
    """Check that sandboxes share the card, and what a restore ends. Both with sessions on namespaces."""
    if not HAS_TORCH:
        report("sessions", user, "not run", "there is no torch")
        return
    said = json.dumps([PYTHON_PATHS, GPU, PYTHON, MATMUL, 16])
    _, text = run([PYTHON, "-c", SHARING, said], user, 110)
    found = answer(text)
    good = found is not None and found["good"] == 16
    report(
        "16 sandboxes share the GPU",
        f"namespaces, {user}",
        "ok" if good else "failed",
        str(found or tail(text)),
    )
    _, text = run([PYTHON, "-c", SNAPSHOTS, said], user, 110)
    found = answer(text)
    wanted = ("held", "goes_on", "fork", "ended_by_restore", "after")
    good = found is not None and all(found[name] for name in wanted)
    report(
        "a restore ends what holds the GPU",
        f"namespaces, {user}",
        "ok" if good else "failed",
        str(found or tail(text)),
    )


def nodes() -> list[str]:
    """Return the nodes of NVIDIA's driver on this host."""
    found = [path for path in Path("/dev").glob("nvidia*") if path.is_char_device()]
    found += [path for path in Path("/dev/nvidia-caps").glob("*") if path.is_char_device()]
    return sorted(
        str(path) for path in found if os.access(path, os.R_OK | os.W_OK) and path.stat().st_mode & 0o006 == 6
    )


def python_paths() -> list[str]:
    """Return the directories of this Python and its packages that are outside of the system's."""
    ask = "import json, sys; print('RESULT', json.dumps({'paths': [sys.prefix, sys.base_prefix, *sys.path]}))"
    found = answer(run([PYTHON, "-P", "-c", ask], "root", 30)[1]) or {"paths": []}
    paths = {os.path.realpath(path) for path in found["paths"] if path and path != SRC}  # type: ignore[attr-defined]
    usual = ("/usr", "/lib", "/lib64", "/bin", "/etc", str(HERE), HOME)
    kept = [
        path
        for path in paths
        if os.path.isdir(path)
        and path not in ("/", "/root", "/home", "/opt", "/tmp", "/var", "/var/tmp")
        and not any(path == top or path.startswith(f"{top}/") for top in usual)
    ]
    return sorted(path for path in kept if not any(path.startswith(f"{other}/") for other in kept))


def unused_uid() -> int:
    """Return a user id without an account."""
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    return next(uid for uid in range(61001, 62000) if uid not in taken)


def table() -> str:
    """Return the results as a table, for the documentation."""
    order: dict[str, list[dict[str, object]]] = {}
    for row in results:
        if row["outcome"] != "not run":
            order.setdefault(str(row["check"]), []).append(row)
    lines = ["| check | as | result |", "| --- | --- | --- |"]
    for check, rows in order.items():
        for outcome in ("ok", "failed"):
            mine = [row for row in rows if row["outcome"] == outcome]
            ratios = [float(str(row["ratio"])) for row in mine if "ratio" in row]
            more = f", {min(ratios):.3f} to {max(ratios):.3f}" if ratios else ""
            if mine:
                lines.append(
                    f"| {check} | {'; '.join(str(row['where']) for row in mine)} | {outcome}{more} |"
                )
    when = time.strftime("%Y-%m-%d", time.gmtime())
    return f"{when}, {CARD}, Linux {platform.release()}, Python {platform.python_version()}:\n\n" + "\n".join(
        lines
    )


def write_page() -> None:
    """Put the table between the marks of docs/internals/gpu.md."""
    page = HERE / "docs" / "internals" / "gpu.md"
    text = page.read_text()
    before, start, rest = text.partition("<!-- gpu_check: start -->\n")
    _, end, after = rest.partition("<!-- gpu_check: end -->")
    if not start or not end:
        sys.exit("docs/internals/gpu.md has no marks for the table")
    page.write_text(f"{before}{start}{table()}\n{end}{after}")


def first_gpu() -> tuple[str, int, list[str]]:
    """Return the name, number and nodes of the first NVIDIA GPU, as staddle finds it."""
    sys.path.insert(0, SRC)
    from staddle.hostinfo import devices

    found = [gpu for gpu in devices.gpus() if gpu.vendor == "nvidia"]
    if not found:
        sys.exit("staddle finds no NVIDIA GPU in /proc/driver/nvidia/gpus; `ls /dev/nvidia*` shows the nodes")
    print("GPUs:", *found, sep="\n  ", flush=True)
    return found[0].name, found[0].number, list(devices.granted([found[0].name])[0].nodes)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--write", action="store_true", help="fill the table in docs/internals/gpu.md")
    options.add_argument("--out", default=os.environ.get("OUT", "."), help="directory of gpu_check.json")
    options.add_argument("--python", default=sys.executable, help="the interpreter that has torch")
    given = options.parse_args()
    if os.geteuid() != 0:
        sys.exit("run it as root: it checks as root and as an ordinary user")
    PYTHON = given.python
    GPU, NUMBER, granted_nodes = first_gpu()
    GPU_OPTIONS = ["--gpu", GPU]
    GRANTED = json.dumps(granted_nodes)
    NODES = sorted({*nodes(), *granted_nodes})
    DISKS = [str(path) for path in Path("/dev").iterdir() if path.is_block_device()][:3]
    UID, HOME = unused_uid(), tempfile.mkdtemp(prefix="gpu-check-", dir="/var/tmp")
    os.chown(HOME, UID, UID)
    # The user may not be able to read the checkout.
    for part in ("src", "tests/containment"):
        shutil.copytree(HERE / part, f"{HOME}/tree/{part}", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["chmod", "-R", "a+rX", f"{HOME}/tree"], check=True)
    SRC_OF = {"root": str(HERE), "user": f"{HOME}/tree"}
    PYTHON_PATHS = python_paths()
    try:
        code, CARD = run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], "root", 30
        )
        CARD = CARD.splitlines()[0] if code == 0 and CARD else "an NVIDIA GPU"
        code, text = run(
            [PYTHON, "-c", "import torch; print('RESULT', int(torch.cuda.is_available()))"], "root", 90
        )
        HAS_TORCH = code == 0 and "RESULT 1" in text
        print(
            f"card: {CARD}; torch: {HAS_TORCH} {tail(text) if not HAS_TORCH else ''}; nodes: {NODES}",
            flush=True,
        )
        print(f"granted by {GPU}: {granted_nodes}; python: {PYTHON}, shown: {PYTHON_PATHS}", flush=True)
        for who in ("root", "user"):
            _, text = run([PYTHON, "-m", "staddle", "explain", *GPU_OPTIONS, "--", "true"], who, 30)
            report(
                "explain names the devices",
                who,
                "ok" if f"/dev/nvidia{NUMBER} " in text else "failed",
                tail(text),
            )
        for name in BACKENDS[:2]:
            for who in ("root", "user"):
                check_backend(who, name)
        for who in ("root", "user"):
            check_sessions(who)
        for name in BACKENDS[2:]:
            for who in ("root", "user"):
                check_backend(who, name)
    finally:
        shutil.rmtree(HOME, ignore_errors=True)
        facts = {
            "card": globals().get("CARD", ""),
            "kernel": platform.release(),
            "nodes": NODES,
            "results": results,
        }
        os.makedirs(given.out, exist_ok=True)
        Path(given.out, "gpu_check.json").write_text(json.dumps(facts, indent=2))
        print(f"\n{table() if 'CARD' in globals() else ''}", flush=True)
    if given.write:
        write_page()
    sys.exit(any(row["outcome"] == "failed" for row in results))
