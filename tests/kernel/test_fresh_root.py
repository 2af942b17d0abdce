"""Our own namespaces and bwrap, really run: the sandbox is what the plan says, and nothing more."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from staddle.errors import LaunchFailed
from staddle.mounts.from_plan import lay_out
from staddle.mounts.host import Host
from staddle.policy import Policy
from staddle.policy.compiler import compile
from staddle.policy.limits import Limits
from staddle.policy.network import Network
from staddle.policy.plan import Link, Plan, Text, Variable
from tests.support.fresh_roots import (
    PYTHON,
    ROOT,
    SANDBOX,
    WHY,
    Ran,
    python,
    refused,
    run,
    shell,
    started,
    system,
    tree,
)
from tests.support.in_a_child import captured
from tests.support.waiting import next_line
from tests.unit.mounts.plans import guard, hidden, read, scratch, write

pytestmark = pytest.mark.usefixtures("fresh_root")

ODD = [
    "with space",
    "new\nline",
    "quo'te\"s",
    "colon:comma,",
    "back\\slash\\012",
    "-dash",
    "\udcff\udcfe raw",
    "ü",
]


def test_the_command_runs_and_its_status_is_its_own() -> None:
    ran = shell(system(), "echo out; echo err >&2; exit 7")
    assert (ran.out, ran.err, ran.code, ran.failure) == ("out\n", "err\n", 7, None)


def test_a_command_that_cannot_be_executed_did_not_start() -> None:
    ran = run(system(), "/usr/bin/no-such-program")
    assert ran.code != 0
    assert ran.failure
    assert "no-such-program" in ran.err + ran.failure


def test_a_working_directory_that_is_not_there_is_a_failure_before_the_command() -> None:
    ran = run(system(cwd="/nowhere"), "/bin/echo", "it ran")
    assert ran.failure
    assert ran.out == ""


def test_only_what_the_plan_names_is_there() -> None:
    found = set(run(system(texts=(Text("/etc/hosts", b"x\n", WHY),)), "/bin/ls", "-A", "/").out.split())
    links = {
        name for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32") if os.path.exists(f"/{name}")
    }
    assert found == {"usr", "tmp", "dev", "proc", "etc", "srv", "mnt", "media", *links}


def test_directories_texts_links_have_ordinary_modes() -> None:
    ran = shell(
        system(texts=(Text("/etc/a/hosts", b"x\n", WHY),), links=(Link("/opt/l", "/etc/a", WHY),)),
        "stat -c %a / /etc /etc/a /etc/a/hosts /tmp /dev/shm; cat /opt/l/hosts",
    )
    assert ran.out.split() == ["755", "755", "755", "444", "1777", "1777", "x"]


def test_the_fresh_root_cannot_be_written_and_private_directories_can() -> None:
    ran = shell(
        system(),
        "for d in / /dev /etc /usr /proc; do touch $d/x 2>/dev/null && echo $d; done;"
        "f=$(mktemp) && echo ok > $f && cat $f; echo shm > /dev/shm/x && cat /dev/shm/x; echo > /dev/null",
    )
    assert ran.out == "ok\nshm\n"
    assert ran.code == 0


def test_a_grant_of_one_file(tmp_path: Path) -> None:
    for name in ("r", "w", "n"):
        (tmp_path / name).write_text(name)
    wanted = system(grants=(read(f"{tmp_path}/r", False), write(f"{tmp_path}/w", False)))
    ran = shell(wanted, f"cd {tmp_path}; cat r w; echo; echo more >> w; echo x > r; mv w v; ls; touch new")
    assert ran.out.split() == ["rw", "r", "w"]
    assert tree(tmp_path) == {"r": b"r", "w": b"wmore\n", "n": b"n"}


def test_a_grant_in_a_grant_and_a_deny_in_both(tmp_path: Path) -> None:
    deep = tmp_path / "r/w/hidden/secret"
    deep.mkdir(parents=True)
    (tmp_path / "r/w/hidden/secret/key").write_text("key")
    (tmp_path / "r/w/f").write_text("f")
    wanted = system(
        grants=(read(f"{tmp_path}/r"), write(f"{tmp_path}/r/w")),
        hidden=(hidden(f"{tmp_path}/r/w/hidden/secret"), hidden(f"{tmp_path}/r/w/f", "file")),
    )
    ran = shell(
        wanted,
        f"cd {tmp_path}/r; touch x 2>/dev/null || echo read-only; touch w/x && echo writable;"
        "cat w/hidden/secret/key w/f; ls w/hidden/secret; echo x > w/f; rm w/f; mv w/hidden w/moved;"
        "mv w/hidden/secret w/s; ls w",
    )
    assert ran.out.split()[:4] == ["read-only", "writable", "f", "hidden"]
    assert (tmp_path / "r/w/hidden/secret/key").read_text() == "key"
    assert (tmp_path / "r/w/f").read_text() == "f"


def test_directories_on_the_way_to_a_grant_in_a_private_directory_take_no_files() -> None:
    """What was written there would be gone without a word. Also when the view is built by us."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        out = place / "project/out"
        out.mkdir(parents=True)
        for number in range(60):
            (out / str(number)).touch()
        (place / "project/beside").touch()
        many = tuple(hidden(f"{out}/{number}", "file") for number in range(60))
        for hides in ((), many):
            wanted = system(grants=(write(str(out)),), hidden=hides, cwd=str(place))
            ran = shell(
                wanted,
                "for d in . project; do stat -c %a $d; echo x > $d/new; mkdir $d/new; mv project $d/moved;"
                "done; rmdir project; ls -A . project; echo kept > project/out/kept; echo > /tmp/new;"
                "ls /tmp/new",
            )
            assert ran.out.split() == ["555", "555", ".:", "project", "project:", "out", "/tmp/new"], ran.err
            assert ran.err.count("Permission denied") >= 4
            assert (out / "kept").read_text() == "kept\n"
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize("name", ODD)
def test_a_name_is_a_name_whatever_is_in_it(name: str, tmp_path: Path) -> None:
    at = tmp_path / name
    (at / name / "sub").mkdir(parents=True)
    (at / name / "sub" / name).write_text("guarded")
    (at / "f").write_text("secret")
    (at / "d").mkdir()
    wanted = system(
        grants=(write(str(at)),),
        hidden=(hidden(f"{at}/f", "file"), hidden(f"{at}/d")),
        guards=(guard(f"{at}/{name}/sub/{name}", False),),
        variables=(Variable("NAME", name, WHY),),
        texts=(Text(f"/etc/{name}", b"text", WHY),),
        cwd=str(at),
    )
    ran = shell(
        wanted,
        'cat -- "$NAME/sub/$NAME" "/etc/$NAME"; cat f d/x; echo x > "./$NAME/sub/$NAME";'
        ' mv -- "$NAME/sub" gone; echo ok > "new $NAME"',
    )
    assert ran.out == "guardedtext"
    assert ran.failure is None
    assert (at / name / "sub" / name).read_text() == "guarded"
    assert (at / f"new {name}").read_text() == "ok\n"


def test_only_the_standard_descriptors_are_open(tmp_path: Path) -> None:
    """Also when the view is built by us: for root's grants, and for very many of them."""
    many = []
    for number in range(60):
        (tmp_path / str(number)).write_text("")
        many.append(hidden(f"{tmp_path}/{number}", "file"))
    leaked = os.open("/", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        for wanted in (system(), system(grants=(write(str(tmp_path)),), hidden=tuple(many))):
            ran = python(
                wanted,
                "import os; print(sorted(os.listdir('/proc/self/fd')), [os.listdir('/proc/%s/fd' % p)"
                " for p in os.listdir('/proc') if p.isdigit() and p not in ('1', str(os.getpid()))])",
            )
            assert ran.out == "['0', '1', '2', '3'] []\n", ran.err  # 3 is the listing itself
    finally:
        os.close(leaked)


def test_the_environment_is_the_plans_and_secrets_are_on_no_command_line() -> None:
    wanted = system(variables=(Variable("TOKEN", "s3cret", WHY, secret=True), Variable("E", "", WHY)))
    launch = SANDBOX.prepare(wanted, ("/bin/sh", "-c", "env; read line"))
    process = started(launch, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        lines = [process.stdout.readline() for _ in range(4)]
        assert set(lines) == {"TOKEN=s3cret\n", "E=\n", "PATH=/usr/bin:/bin\n", "PWD=/\n"}
        assert "s3cret" not in " ".join(launch.argv)
        if not ROOT and SANDBOX.name == "bwrap":  # of others, only root could read it
            seen = Path(f"/proc/{process.pid}/environ").read_bytes()
            assert seen == b"PATH=/usr/bin:/bin\0"
    finally:
        process.communicate("\n", timeout=10)
        os.close(launch.status or 0)


def test_who_and_what_it_is() -> None:
    ran = shell(
        system(),
        "id -u; id -g; hostname; grep -E '^(Cap|NoNewPrivs|Seccomp:|Groups)' /proc/self/status; echo $$",
    )
    lines = ran.out.replace("\t", " ").splitlines()
    assert lines[:3] == ["1000", "1000", "sandbox"]
    assert [line.split()[1] for line in lines if line.startswith("Cap")] == ["0" * 16] * 5
    assert "NoNewPrivs: 1" in lines
    assert "Seccomp: 2" in lines
    assert int(lines[-1]) < 10


def test_the_launchers_own_process_and_the_hosts_keys_are_hidden() -> None:
    ran = shell(
        system(),
        "for f in /proc/1/environ /proc/1/maps /proc/keys /proc/key-users /proc/kallsyms;"
        " do cat $f >/dev/null 2>&1 && echo $f; done; ls /proc/1 /proc/1/root; kill -9 1 || echo refused",
    )
    assert ran.out == "refused\n"


def test_limits_of_every_sandbox_and_of_the_policy() -> None:
    script = "import resource as r; print([r.getrlimit(getattr(r, 'RLIMIT_' + n)) for n in %r])"
    ran = run(system(), "/usr/bin/python3", "-c", script % (["CORE", "RTPRIO", "NICE", "MEMLOCK"],))
    assert ran.out == "[(1, 1), (0, 0), (0, 0), (65536, 65536)]\n", ran.err
    wanted = system(limits=Limits(file_size=100, open_files=9), texts=(Text("/etc/long", b"x" * 9999, WHY),))
    ran = run(wanted, "/usr/bin/python3", "-c", script % (["FSIZE", "NOFILE"],))
    assert ran.out == "[(100, 100), (9, 9)]\n", ran.err
    wanted = wanted.replace(limits=Limits(file_size=100))
    ran = shell(
        wanted, "trap '' XFSZ; head -c 500 /dev/zero > /tmp/big; stat -c %s /tmp/big; wc -c < /etc/long"
    )
    assert ran.out.split() == ["100", "9999"]


def test_no_link_on_the_way_to_a_grant_is_followed(tmp_path: Path) -> None:
    """Somebody swaps a directory for a link after the plan was made."""
    outside = tmp_path / "outside"
    (outside / "d").mkdir(parents=True)
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/link").symlink_to(outside)
    for grant in (f"{tmp_path}/ws/link", f"{tmp_path}/ws/link/d"):
        assert "link in it" in refused(system(grants=(write(grant),)))


def test_a_swap_after_the_check_shows_nothing_else(tmp_path: Path) -> None:
    ws = tmp_path / "ws"
    ws.mkdir()
    (ws / "mine").write_text("")
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("")
    launch = SANDBOX.prepare(system(grants=(read(str(ws)),)), ("/bin/ls", str(ws)))
    ws.rename(tmp_path / "moved")
    ws.symlink_to(secret)
    assert "key" not in Ran(launch).out


@pytest.mark.parametrize("what", ["hidden", "guard", "text"])
def test_a_planted_link_to_the_old_root_creates_nothing_on_the_host(what: str, tmp_path: Path) -> None:
    """bwrap before 0.12 makes mount points through a link to /oldroot (CVE-2026-87766)."""
    target = tmp_path / "target"
    target.mkdir()
    ws = tmp_path / "ws"
    ws.mkdir()
    (ws / "a").symlink_to(f"/oldroot{target}")
    place = f"{ws}/a/planted"
    fields = {
        "hidden": {"hidden": (hidden(place),)},
        "guard": {"guards": (guard(place),)},
        "text": {"texts": (Text(place, b"x", WHY),)},
    }[what]
    wanted = system(grants=(write(str(ws)),), **fields)
    if what == "text":  # the host has no such file to cover: it is left out
        assert run(wanted, "/bin/true").code == 0
    else:
        assert refused(wanted)
    assert tree(target) == {}


def test_the_network_is_its_own_loopback_or_the_hosts() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        script = (
            "import socket as s\n"
            "own = s.create_server(('127.0.0.1', 0)); s.create_connection(own.getsockname())\n"
            f"print(s.socket().connect_ex(('127.0.0.1', {port})), [n for _, n in s.if_nameindex()])"
        )
        script = f"import sys; sys.path[:0] = ['/usr/lib/python3.11']\n{script}"
        denied = run(system(), "/usr/bin/python3", "-c", script)
        loopback = run(system(network=Network.loopback()), "/usr/bin/python3", "-c", script)
        opened = run(system(network=Network.open()), "/usr/bin/python3", "-c", script)
    assert denied.out == loopback.out == f"{errno.ECONNREFUSED} ['lo']\n", denied.err
    assert opened.out.startswith("0 "), opened.err


def test_abstract_sockets_of_the_host_are_out_of_reach_also_with_the_network_open() -> None:
    name = f"staddle-{os.getpid()}"
    script = (
        "import socket as s\n"
        "def able(n): return s.socket(s.AF_UNIX).connect_ex('\\0' + n)\n"
        f"own = s.socket(s.AF_UNIX); own.bind('\\0own-{name}'); own.listen()\n"
        f"print(able('{name}'), able('own-{name}'))"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        control = captured(["/usr/bin/python3", "-c", script])
        assert control.stdout == "0 0\n"
        for network, answer in ((Network.deny(), errno.ECONNREFUSED), (Network.open(), errno.EPERM)):
            wanted = system(network=network)
            assert SANDBOX.gaps(wanted) == ()
            ran = run(wanted, "/usr/bin/python3", "-c", script)
            assert ran.out == f"{answer} 0\n", ran.err


def test_everything_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    mark = f"staddle-end-{os.getpid()}"
    script = (
        "import subprocess, sys, time\n"
        "from tests.support.fresh_roots import SANDBOX, system\n"
        "script = 'sleep 1000 & echo on; exec sleep 1000'\n"
        f"launch = SANDBOX.prepare(system(), ('/bin/sh', '-c', script, '{mark}'))\n"
        "p = subprocess.Popen(launch.argv, env=launch.env, pass_fds=launch.pass_fds)\n"
        "launch.close(); time.sleep(100)"
    )
    here = Path(__file__).parents[2]
    starter = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{here}:{here}/src"},
    )
    assert next_line(starter) == b"on\n"
    starter.kill()
    starter.wait()
    assert starter.stdout.read() == b""  # whoever held it is gone
    starter.stdout.close()
    time.sleep(0.1)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            assert mark.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    run(system(grants=(write(str(tmp_path)),)), "/bin/true")  # what is made once is there
    mounts, descriptors = Path("/proc/self/mountinfo").read_bytes(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert shell(system(grants=(write(str(tmp_path)),)), f"touch {tmp_path}/x; rm {tmp_path}/x").code == 0
    launch = SANDBOX.prepare(system(grants=(write(str(tmp_path)),)), ("/bin/true",))
    launch.close()
    launch.close()
    os.close(launch.status or 0)
    assert "not as it was" in refused(system(grants=(write(f"{tmp_path}/none"),)))
    assert Path("/proc/self/mountinfo").read_bytes() == mounts
    assert len(os.listdir("/proc/self/fd")) <= descriptors  # those of an earlier test may have been closed
    assert tree(tmp_path) == {}


@pytest.mark.slow
def test_many_at_once_in_one_directory(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("c")
    wanted = system(
        grants=(write(str(tmp_path)),), guards=(guard(f"{tmp_path}/.git/config", False),), cwd=str(tmp_path)
    )
    launches = [
        SANDBOX.prepare(wanted, ("/bin/sh", "-c", f"echo {n} > {n}; cat .git/config")) for n in range(36)
    ]
    processes = [started(launch) for launch in launches]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["c"] * 36
    for launch in launches:
        os.close(launch.status or 0)
    assert len(tree(tmp_path)) == 38


def test_the_agent_preset_with_grants_leaves_no_gap(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "w").mkdir()
    policy = Policy.agent().with_read(str(tmp_path / "r")).with_write(str(tmp_path / "w"))
    wanted = compile(policy, cwd=str(tmp_path / "w"))
    assert SANDBOX.gaps(wanted) == ()
    ran = shell(wanted, "echo x > f; touch ../r/f || pwd; test ! -e ~/.ssh; echo $HOME; ls ~")
    assert ran.out == f"{tmp_path}/w\n/home/user\n", ran.err
    assert (tmp_path / "w/f").read_text() == "x\n"


def test_a_home_may_be_read_without_its_secrets_those_to_come_too(tmp_path: Path) -> None:
    for name in (".ssh", ".config/gh", ".config/fine", "src"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "f").write_text(name)
    policy = Policy.agent().with_read(str(tmp_path)).with_deny("~/.aws", "~/.config/gcloud")
    wanted = compile(policy, cwd=str(tmp_path), home=str(tmp_path))
    assert SANDBOX.gaps(wanted) == ()
    launch = SANDBOX.prepare(
        wanted,
        (
            "/bin/sh",
            "-c",
            "read x; cat .ssh/f .config/gh/f .aws/f .config/gcloud/f; cat src/f .config/fine/f",
        ),
    )
    process = started(launch, stdin=subprocess.PIPE)
    for name in (".aws", ".config/gcloud"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text("secret")
    out, _ = process.communicate("\n", timeout=20)
    os.close(launch.status or 0)
    assert out == "src.config/fine"


def test_python_is_the_systems() -> None:
    """The scripts above need an interpreter that every sandbox sees."""
    assert run(system(), *PYTHON, "print(1)").out == "1\n"


def test_no_descriptors_left_is_a_sentence_and_leaves_none_open(tmp_path: Path) -> None:
    import resource

    run(system(), "/bin/true")
    before = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 2, hard))
    try:
        with pytest.raises(LaunchFailed):
            SANDBOX.prepare(system(grants=(write(str(tmp_path)),)), ("/bin/true",))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) <= before


# ---------------------------------------------------------------- random trees and rules


# Tries to read and to write every file, and to create one in every directory.
TRY = """
import os, sys
def able(path, flags):
    try: os.close(os.open(path, flags, 0o600))
    except OSError: return False
    return True
for line in os.read(0, 1 << 20).decode().split("\\n"):
    if line.endswith("/"):
        found = able(line + "seen", os.O_RDONLY), able(line + "new", os.O_CREAT | os.O_WRONLY)
    else:
        found = able(line, os.O_RDONLY), able(line, os.O_WRONLY)
    print("r" if found[0] else "-", "w" if found[1] else "-")
"""


def grow(root: Path, dice: random.Random, depth: int = 3) -> None:
    root.mkdir(exist_ok=True)
    (root / "seen").write_text("")
    for name in "abc":
        if depth and dice.random() < 0.7:
            grow(root / name, dice, depth - 1)
    for name in "xy":
        if dice.random() < 0.7:
            (root / name).write_text(name)


def rules(root: Path, dice: random.Random) -> Plan:
    directories = [str(path) for path in [root, *root.rglob("*")] if path.is_dir()]
    files = [str(path) for path in root.rglob("*") if path.is_file() and path.name != "seen"]

    def some(among: list[str], most: int) -> list[str]:
        return dice.sample(among, min(len(among), dice.randint(0, most)))

    grants = [*map(read, some(directories, 3)), *map(write, some(directories, 3))]
    grants += [read(path, False) for path in some(files, 2)] + [write(path, False) for path in some(files, 2)]
    hides = [hidden(p) for p in some(directories, 2)] + [hidden(p, "file") for p in some(files, 3)]
    hides += [hidden(f"{p}/none/at-all", "missing") for p in some(directories, 2)]
    private = [scratch(path) for path in some(directories[1:], 1)]
    guards = [guard(p) for p in some(directories[1:], 2)] + [guard(p, False) for p in some(files, 2)]
    wanted = system(grants=tuple(grants), hidden=tuple(hides)).replace(scratch=tuple(private))
    guarded = [
        item
        for item in guards
        if wanted.access(item.path) == "write"
        and not any(grant.path == item.path or grant.path.startswith(item.path + "/") for grant in grants)
        and not any(item.path.startswith(place.path) for place in private)
    ]
    return wanted.replace(guards=tuple(guarded))


@pytest.mark.parametrize("seed", range(24))
def test_the_kernel_agrees_with_the_reference(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)  # noqa: S311
    grow(tmp_path / "t", dice)
    wanted = rules(tmp_path / "t", dice)
    unheld = {item.path for item in lay_out(wanted, Host()).unheld}
    places = []
    for path in sorted((tmp_path / "t").rglob("*")):
        private = [item.path for item in wanted.scratch]
        if path.name != "seen" and not any(f"{path}/".startswith(f"{place}/") for place in private):
            places.append(f"{path}/" if path.is_dir() else str(path))
    script = TRY.replace("os.read(0, 1 << 20).decode()", json.dumps("\n".join(places)))
    answers = run(wanted, *PYTHON, script).out.splitlines()
    expected = {"none": "- -", "read": "r -", "write": "r w"}
    for place, answer in zip(places, answers, strict=True):
        if place.rstrip("/") not in unheld:
            assert answer == expected[wanted.access(place.rstrip("/"))], (place, wanted)
