"""What must fail in the systemd backend: tried outside first, by the same user on the same machine.

The control outside shows that the probe works. The machine is a private one, so that a probe
that gets through harms nothing. What every backend must hold is in tests/containment; this is
what a service manager adds to it.
"""

# ruff: noqa: E501 - scripts read better unbroken

from __future__ import annotations

import os

import pytest

from tests.support.programs import IDENTITY
from tests.support.systemd_sandbox import DRIVER, Sandbox, wait_for

pytestmark = pytest.mark.needs_root


def probe(sandbox: Sandbox, code: str, *words: str, **asked: object) -> tuple[str, str]:
    """The same Python inside and outside: what each printed."""
    outside = sandbox.unconfined(["python3", "-c", code, *words])
    inside = sandbox.python(code, *words, **asked)
    assert b"Traceback" not in inside.stderr, inside.stderr.decode()
    return inside.stdout.decode(), outside.stdout.decode()


@pytest.mark.slow
def test_only_what_the_plan_names_is_there(sandbox: Sandbox) -> None:
    home = sandbox.machine.home if sandbox.user else "/root"
    secret = sandbox.machine.outside(home) / "secret"
    secret.write_text("secret")
    if sandbox.user:
        os.chown(secret, sandbox.machine.uid, sandbox.machine.gid)
    code = (
        "import os,sys\n"
        "for p in sys.argv[1:]:\n"
        " try: os.listdir(p) if os.path.isdir(p) else open(p).close(); print(p)\n"
        " except OSError: pass\n"
    )
    paths = [f"{home}/secret", home, "/run/systemd", "/run/dbus", "/sys", "/boot", "/srv", "/etc/machine-id"]
    inside, outside = probe(sandbox, code, *paths)
    assert outside.split() == paths
    assert inside.split() == ["/srv", "/etc/machine-id"]  # an empty one, a made-up one
    listed = sandbox.run(["ls", "-A", "/"]).stdout.split()
    known = b"bin dev etc home lib lib32 lib64 libx32 media mnt opt proc run sbin srv tmp usr var"
    assert set(listed) <= {*known.split()}


@pytest.mark.slow
def test_nothing_outside_the_grants_can_be_changed(sandbox: Sandbox) -> None:
    code = (
        "import os\n"
        "def t(name, f, *a):\n"
        " try: f(*a); print(name)\n"
        " except OSError: pass\n"
        "t('create', os.mkdir, '/x'); t('usr', os.mkdir, '/usr/x'); t('etc', os.mkdir, '/etc/x')\n"
        "t('dev', os.mkdir, '/dev/x'); t('passwd', open, '/etc/passwd', 'a'); t('mode', os.chmod, '/etc/passwd', 0o666)\n"
        "t('root', os.chmod, '/', 0o777); t('keys', os.chmod, '/proc/keys', 0o777); t('read keys', open, '/proc/keys')\n"
        "t('core', open, '/proc/sys/kernel/core_pattern', 'w'); t('sysrq', open, '/proc/sysrq-trigger', 'w')\n"
        "t('tmp', os.mkdir, '/tmp/x'); t('home', os.mkdir, os.environ['HOME'] + '/x'); t('shm', os.mkdir, '/dev/shm/x')\n"
    )
    assert sandbox.python(code).stdout.split() == [b"tmp", b"home", b"shm"]
    for path in ("/tmp/x", "/dev/shm/x", "/usr/x", "/etc/x"):
        assert not sandbox.machine.outside(path).exists()


@pytest.mark.slow
def test_protected_names_stay_as_they_are(sandbox: Sandbox) -> None:
    place = sandbox.place()
    sandbox.unconfined(
        [
            "bash",
            "-ec",
            f"{IDENTITY}; cd {place}; git init -q; mkdir -p a/b; git init -q a/b/inner; echo s > .env",
        ]
    )
    before = (sandbox.machine.outside(place) / ".git/config").read_bytes()
    text = f"""
        {IDENTITY}
        echo 1 > f; git add f; git commit -qm 1 || echo commit failed
        for d in . a/b/inner; do
            mv $d/.git $d/gone && echo moved $d; rm -rf $d/.git/hooks && echo removed $d; echo evil >> $d/.git/config && echo written $d
            echo evil > $d/.git/hooks/pre-commit && echo hooked $d; ln -sf /tmp/evil $d/.git/config && echo linked $d
        done
        mv a x && echo moved a; mv a/b a/x && echo moved a/b
        cat .env; echo x > .env; mv .env y; ls .env
    """
    done = sandbox.run(["bash", "-c", text], write=[place], deny=[f"{place}/.env"], cwd=place)
    assert done.stdout.decode().split() == [".env"], done.stdout
    assert (sandbox.machine.outside(place) / ".git/config").read_bytes() == before
    assert (sandbox.machine.outside(place) / "a/b/inner/.git/config").exists()
    assert (sandbox.machine.outside(place) / ".env").read_text() == "s\n"


@pytest.mark.slow
def test_the_manager_cannot_be_asked_for_another_unit(sandbox: Sandbox) -> None:
    """With the bus in sight, `systemd-run` inside is an escape in one command."""
    scope = ["--user"] if sandbox.user else []
    runtime = f"/run/user/{sandbox.machine.uid}"
    env = {"XDG_RUNTIME_DIR": runtime, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus"}
    command = ["systemd-run", *scope, "--wait", "--collect", "--quiet", "true"]
    assert sandbox.unconfined(command).returncode == 0
    assert sandbox.run(command, env=env).returncode != 0
    assert sandbox.run(command, env=env, network="open").returncode != 0
    assert sandbox.run(["sh", "-c", "ls /run/user /run/dbus /run/systemd"]).stdout == b""


LISTENERS = """
import os, socket, sys, time
tcp = socket.create_server(("127.0.0.1", 0)); udp = socket.socket(type=socket.SOCK_DGRAM); udp.bind(("127.0.0.1", 0))
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0staddle-" + str(os.getpid())); abstract.listen()
named = socket.socket(socket.AF_UNIX); named.bind(sys.argv[1] + "/socket"); named.listen()
print(tcp.getsockname()[1], os.getpid(), flush=True)
time.sleep(60)
"""
CONNECT = """
import socket, sys
def t(name, family, address):
    try:
        s = socket.socket(family); s.settimeout(2); s.connect(address); print(name)
    except OSError: pass
t("tcp", socket.AF_INET, ("127.0.0.1", int(sys.argv[1])))
t("abstract", socket.AF_UNIX, "\\0staddle-" + sys.argv[2])
t("named", socket.AF_UNIX, sys.argv[3] + "/socket")
t("vsock", 40, (2, 1))
try: socket.socket(socket.AF_PACKET, socket.SOCK_RAW); print("packet")
except OSError: pass
"""


@pytest.mark.slow
def test_the_network_is_what_the_policy_says(sandbox: Sandbox) -> None:
    place = sandbox.place()
    listening = sandbox.machine.popen(["python3", "-c", LISTENERS, place], user=sandbox.user)
    try:
        assert listening.stdout is not None
        words = [*listening.stdout.readline().decode().split(), place]
        assert {"tcp", "abstract", "named"} <= set(
            sandbox.unconfined(["python3", "-c", CONNECT, *words]).stdout.decode().split()
        )
        assert sandbox.python(CONNECT, *words).stdout == b""
        assert sandbox.python(CONNECT, *words, network="loopback").stdout == b""
        assert sandbox.python(CONNECT, *words, network="open").stdout == b"tcp\n"
        assert sandbox.python(CONNECT, *words, sockets=[f"{place}/socket"]).stdout == b"named\n"
    finally:
        listening.kill()
        listening.communicate()


def test_its_own_loopback_works(sandbox: Sandbox) -> None:
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname());\n"
        "c.send(b'x'); print(s.accept()[0].recv(1))"
    )
    assert sandbox.python(code).stdout == b"b'x'\n"


@pytest.mark.slow
def test_processes_of_the_host_are_neither_seen_nor_reached(sandbox: Sandbox) -> None:
    victim = sandbox.machine.popen(["sh", "-c", "echo $$; exec sleep 60"], user=sandbox.user)
    try:
        assert victim.stdout is not None
        pid = victim.stdout.readline().decode().strip()
        code = (
            "import os,sys,ctypes\n"
            "pid = int(sys.argv[1])\n"
            "def t(name, f, *a):\n"
            " try:\n"
            "  f(*a); print(name)\n"
            " except (OSError, AssertionError): pass\n"
            "t('seen', os.stat, f'/proc/{pid}'); t('signal', os.kill, pid, 0); t('niced', os.setpriority, 0, pid, 19)\n"
            "t('environ', open, f'/proc/{pid}/environ'); t('affinity', os.sched_setaffinity, pid, {0})\n"
            "t('limited', __import__('resource').prlimit, pid, 0, (1000, 1000))\n"
        )
        inside, outside = probe(sandbox, code, pid)
        assert outside.split() == ["seen", "signal", "niced", "environ", "affinity", "limited"]
        assert inside == ""
    finally:
        victim.kill()
        victim.communicate()
    told = sandbox.run(
        ["sh", "-c", "cd /proc && echo [0-9]* && ls -d /proc/1; kill -9 1; kill -0 1 && echo reached"]
    )
    assert told.stdout == b"2\n"


@pytest.mark.slow
def test_it_is_never_root_outside(sandbox: Sandbox) -> None:
    """Run by root it is an id that nobody has; root's own files are out of reach, where the system's are not."""
    place = sandbox.place()
    process = sandbox.popen(["sleep", "30.25"], write=[place])
    try:
        wait_for("the command", lambda: sandbox.processes("sleep\0" + "30.25"))
        pid = sandbox.processes("sleep\0" + "30.25")[-1]
        status = sandbox.machine.outside(f"/proc/{pid}/status").read_text()
        uid = int(next(line.split()[1] for line in status.splitlines() if line.startswith("Uid:")))
        assert uid == sandbox.machine.uid if sandbox.user else uid >= 0x70000000
    finally:
        process.kill()
        process.communicate()
    wait_for("the end", lambda: not sandbox.units())


def test_no_setuid_file_can_be_made_on_the_host(sandbox: Sandbox) -> None:
    place = sandbox.place()
    done = sandbox.run(["sh", "-c", "cp /bin/true t; chmod 4755 t; stat -c %a t"], write=[place], cwd=place)
    assert done.stdout == b"755\n"


def test_limits_on_files_hold(sandbox: Sandbox) -> None:
    text = "head -c 9000 /dev/zero > /tmp/f; stat -c %s /tmp/f; ulimit -n; ulimit -c"
    done = sandbox.run(["bash", "-c", text], limits={"file_size": "4K", "open_files": 64})
    assert done.stdout.split()[:2] == [b"4096", b"64"]


@pytest.mark.slow
def test_no_secret_is_on_a_command_line_or_in_the_unit(sandbox: Sandbox) -> None:
    process = sandbox.popen(["sleep", "30.5"], env={"TOKEN": "s3cr3t-v4lue"})
    try:
        wait_for("the command", lambda: sandbox.processes("sleep\0" + "30.5"))
        scope = ["--user"] if sandbox.user else []
        (unit,) = sandbox.units()
        shown = sandbox.unconfined(["systemctl", *scope, "show", unit]).stdout
        assert b"PrivateNetwork=yes" in shown
        assert b"s3cr3t" not in shown
        driver = {int(p) for p in sandbox.processes(DRIVER)}  # the test's own words, which name the policy
        assert set(sandbox.processes("s3cr3t-v4lue")) <= driver
        runtime = sandbox.machine.outside(f"/run/user/{sandbox.machine.uid}")
        assert not [path for path in runtime.iterdir() if "staddle" in path.name]
    finally:
        process.kill()
        process.communicate()
    wait_for("the end", lambda: not sandbox.units())
