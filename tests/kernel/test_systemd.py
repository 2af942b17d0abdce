"""The systemd backend on a real systemd: as an ordinary user with a user manager, and as root.

A private systemd is started for these tests (see `private_systemd`), which only root can do.
Whatever must fail inside is tried outside first, by the same user on the same machine: the
control shows that the probe works.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.private_systemd import SOURCE_INSIDE, PrivateSystemd
from tests.kernel.programs import IDENTITY, SCRIPTS, SERVE, sample_wheel, script

pytestmark = pytest.mark.needs_root

HERE = Path(__file__).parent
DRIVER = f"{SOURCE_INSIDE}/inside_systemd.py"

#: Names in which something that parses units, paths or shell words would stumble.
ODD_NAMES = [
    "sp ace",
    "per%cent %h %%",
    "co:lon",
    'quo"te',
    "apo'strophe",
    "back\\slash",
    "new\nline",
    "dol$HOME ${HOME} $$",
    "-dash",
    "*glob?[a]",
    "\u00e9\u20ac",
    "#hash;semi",
    "\x01\x7f",
    "b\udcffytes",
]


class Sandbox:
    """Commands on the systemd backend of a private machine, as one of its two users."""

    def __init__(self, machine: PrivateSystemd, user: bool) -> None:
        self.machine, self.user = machine, user
        self._places = 0

    def place(self) -> str:
        """A new directory, writable by the one who starts the sandbox."""
        self._places += 1
        who = "user" if self.user else "root"
        return self.machine.work_place(
            f"{who}-{os.getpid()}-{self._places}-{time.monotonic_ns()}", user=self.user
        )

    def outside(self, argv: list[str], **kw: object) -> subprocess.CompletedProcess[bytes]:
        """Run it unconfined, as the same user."""
        return self.machine.run(argv, user=self.user, **kw)  # type: ignore[arg-type]

    def words(self, command: list[str] | None = None, **asked: object) -> list[str]:
        return ["/usr/bin/python3", DRIVER, json.dumps({"command": command, **asked})]

    def run(
        self, command: list[str] | None = None, *, input: bytes = b"", **asked: object
    ) -> subprocess.CompletedProcess[bytes]:
        """Run it confined, to its end."""
        return self.machine.run(self.words(command, **asked), user=self.user, input=input, timeout=100)

    def popen(self, command: list[str], **asked: object) -> subprocess.Popen[bytes]:
        return self.machine.popen(self.words(command, **asked), user=self.user)

    def python(self, code: str, *words: str, **asked: object) -> subprocess.CompletedProcess[bytes]:
        return self.run(["python3", "-c", code, *words], **asked)

    def units(self) -> list[str]:
        """The units of ours that the manager knows."""
        scope = ["--user"] if self.user else []
        told = self.outside(
            ["systemctl", *scope, "--no-legend", "--plain", "--all", "list-units", "staddle-*"]
        )
        return [line.split()[0].decode() for line in told.stdout.splitlines() if line.split()]

    def processes(self, mark: str) -> list[int]:
        """Everything on the machine whose command line has `mark` in it, but for who looks."""
        code = (
            "import os,sys\n"
            "for p in os.listdir('/proc'):\n"
            " if p.isdigit() and int(p) != os.getpid():\n"
            "  try:\n"
            "   words = open(f'/proc/{p}/cmdline','rb').read()\n"
            "   if sys.argv[1].encode() in words: print(p)\n"
            "  except OSError: pass\n"
        )
        told = self.machine.run(["python3", "-c", code.replace("sys.argv[1]", repr(mark))], user=False)
        return [int(word) for word in told.stdout.split()]


@pytest.fixture(scope="module")
def machine() -> Iterator[PrivateSystemd]:
    with PrivateSystemd() as made:
        made.copy_in(HERE / "inside_systemd.py", DRIVER)
        version = made.run(
            ["/usr/bin/python3", "-c", "import sys; print(sys.version_info >= (3, 11))"], user=False
        )
        assert version.stdout == b"True\n", "these tests need a /usr/bin/python3 of 3.11 or newer"
        made.run(["/usr/bin/python3", "-m", "compileall", "-q", SOURCE_INSIDE], user=False)
        yield made


@pytest.fixture(params=["user", "root"])
def sandbox(machine: PrivateSystemd, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    made = Sandbox(machine, request.param == "user")
    yield made
    assert made.units() == [], "a unit was left behind"


def wait_for(what: str, condition: object, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.02)


# ---------------------------------------------------------------- it runs commands


def test_the_self_test_succeeds(sandbox: Sandbox) -> None:
    told = json.loads(sandbox.run(only="probe").stdout)
    assert told["usable"], told
    assert int(told["version"]) >= 248


@pytest.mark.parametrize(
    ("text", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_status_is_the_commands(sandbox: Sandbox, text: str, code: int) -> None:
    assert sandbox.run(["sh", "-c", text]).returncode == code


def test_the_three_streams_are_the_commands_own(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 8000
    done = sandbox.run(["sh", "-c", "cat; echo problem >&2"], input=data)
    assert (done.stdout, done.stderr, done.returncode) == (data, b"problem\n", 0)


def test_a_reader_that_goes_away_ends_the_command(sandbox: Sandbox) -> None:
    process = sandbox.popen(["sh", "-c", "yes; echo $? >&2"])
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(100)
    process.stdout.close()
    assert process.stderr.read() == b"141\n"
    assert process.wait(10) == 0


def test_arguments_and_variables_arrive_as_they_are(sandbox: Sandbox) -> None:
    """Nothing expands, splits or quotes them: not systemd-run, not the manager, not a shell."""
    words = [*ODD_NAMES, "", "$MANAGER_SECRET", "${MANAGER_SECRET}", "%n", "a=b", "--user", "@x", "|", "-"]
    scope = ["--user"] if sandbox.user else []
    sandbox.outside(["systemctl", *scope, "set-environment", "MANAGER_SECRET=leaked", "PYTHONPATH=/leaked"])
    code = "import os,sys,json; print(json.dumps([sys.argv[1:], {k: v for k, v in os.environ.items()}]))"
    env = {f"V{number}": name for number, name in enumerate(ODD_NAMES)}
    done = sandbox.run(["python3", "-c", code, *words], env=env)
    sandbox.outside(["systemctl", *scope, "unset-environment", "MANAGER_SECRET", "PYTHONPATH"])
    arrived, variables = json.loads(done.stdout)
    assert arrived == words
    assert {key: variables[key] for key in env} == env
    usual = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "LC_CTYPE"}
    assert variables.keys() - env.keys() <= usual, variables.keys()


@pytest.mark.parametrize("name", ODD_NAMES)
def test_directories_of_any_name_can_be_granted(sandbox: Sandbox, name: str) -> None:
    place = f"{sandbox.place()}/{name}"
    encoded = os.fsencode(place)
    outside = f"/proc/{sandbox.machine.init}/root".encode() + encoded
    for folder in (outside, outside + b"/hidden", outside + b"/.git", outside + b"/.git/hooks"):
        os.mkdir(folder)
        if sandbox.user:
            os.chown(folder, sandbox.machine.uid, sandbox.machine.gid)
    code = (
        "import os,sys; p=sys.argv[1]; os.mkdir(p+'/made'); print(sorted(os.listdir(p)));\n"
        "for f in ('/hidden', '/.git/hooks'):\n"
        " try: os.mkdir(p+f+'/x'); print('open', f)\n"
        " except OSError: pass\n"
    )
    done = sandbox.python(code, place, write=[place], deny=[place + "/hidden"], cwd=place)
    assert done.stdout.decode() == "['.git', 'hidden', 'made']\n", done
    assert os.path.isdir(outside + b"/made")


def test_what_it_makes_belongs_to_who_started_it(sandbox: Sandbox) -> None:
    place = sandbox.place()
    assert sandbox.run(["sh", "-c", "echo x > f; stat -c %U f"], write=[place], cwd=place).stdout == b"user\n"
    made = os.stat(sandbox.machine.outside(place) / "f")
    assert made.st_uid == (sandbox.machine.uid if sandbox.user else 0)


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "pytest"])
def test_real_programs_work(sandbox: Sandbox, name: str, tmp_path: Path) -> None:
    place = sandbox.place()
    wheel = sample_wheel(tmp_path)
    sandbox.machine.copy_in(wheel, f"{place}/{wheel.name}")
    text = script(name, python="python3", wheel=f"{place}/{wheel.name}", serve=SERVE[True])
    done = sandbox.run(["bash", "-euo", "pipefail", "-c", text], write=[place], cwd=place)
    assert done.returncode == 0, done.stderr.decode()


def test_a_thousand_rules_do_not_take_long(sandbox: Sandbox) -> None:
    """As properties of the unit, a thousand denied directories take systemd twenty seconds."""
    place = sandbox.place()
    outside = sandbox.machine.outside(place)
    names = [f"{place}/d{number}" for number in range(1000)]
    for number in range(1000):
        (outside / f"d{number}").mkdir()
    before = time.monotonic()
    done = sandbox.run(["sh", "-c", "ls d1 d999; true"], write=[place], deny=names, cwd=place)
    assert time.monotonic() - before < 5
    assert done.stderr.count(b"Permission denied") == 2


# ---------------------------------------------------------------- it does not start

BROKEN = [
    ("PrivateIPC", "ipc namespace"),
    ("PrivateNetwork", "net namespace"),
    ("NoNewPrivileges", "ignored"),
]


@pytest.mark.parametrize(("name", "word"), BROKEN)
def test_without_one_of_its_properties_nothing_runs(sandbox: Sandbox, name: str, word: str) -> None:
    """What the manager may ignore is checked before the command: never counted on."""
    done = sandbox.run(["echo", "ran"], without=name)
    assert (done.returncode, done.stdout) == (125, b"")
    assert word in done.stderr.decode()
    assert not json.loads(sandbox.run(only="probe", without=name).stdout)["usable"]


def test_a_program_that_is_not_there_is_told(sandbox: Sandbox) -> None:
    done = sandbox.run(["/usr/bin/no-such-program"])
    assert done.returncode == 125
    assert "'/usr/bin/no-such-program' cannot be run: No such file" in done.stderr.decode()


def test_a_link_planted_after_the_plan_is_refused(sandbox: Sandbox) -> None:
    place = sandbox.place()
    outside = sandbox.machine.outside(place)
    for name in ("granted", "secret"):
        (outside / name).mkdir()
        if sandbox.user:
            os.chown(outside / name, sandbox.machine.uid, sandbox.machine.gid)
    granted = f"{place}/granted"
    done = sandbox.run(["ls", granted], write=[granted], link=[granted, f"{place}/secret"])
    assert (done.returncode, done.stdout) == (125, b"")
    assert "link" in done.stderr.decode()


def test_a_systemd_run_that_runs_nothing_is_found_out(sandbox: Sandbox) -> None:
    fake = "#!/bin/sh\nexit 0\n"
    words = " ".join(f"'{word}'" for word in sandbox.words(only="probe"))
    enter = (
        ""
        if not sandbox.user
        else f"setpriv --reuid={sandbox.machine.uid} --regid={sandbox.machine.gid} --clear-groups "
    )
    text = (
        f"printf '{fake}' > /run/fake && chmod 755 /run/fake && mount --bind /run/fake /usr/bin/systemd-run && "
        f"exec {enter}env XDG_RUNTIME_DIR=/run/user/{sandbox.machine.uid} {words}"
    )
    done = sandbox.machine.run(["unshare", "-m", "sh", "-c", text], user=False)
    told = json.loads(done.stdout)
    assert not told["usable"]


def test_without_a_user_manager_the_cause_is_named(machine: PrivateSystemd) -> None:
    words = ["/usr/bin/python3", DRIVER, json.dumps({"only": "probe"})]
    done = machine.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *words], user=False)
    told = json.loads(done.stdout)
    assert not told["usable"]
    assert "no user manager runs for uid 65534" in told["why"]
    assert "enable-linger" in told["fix"]


def test_what_it_cannot_hold_is_a_gap(sandbox: Sandbox) -> None:
    controllers = sandbox.machine.outside("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    limits = {"memory": "64M", "cpu": 0.5, "processes": 20, "disk": "1G"}
    told = dict(json.loads(sandbox.run(only="gaps", limits=limits).stdout))
    assert "limits.disk" in told
    for name, controller in (("memory", "memory"), ("cpu", "cpu"), ("processes", "pids")):
        assert (f"limits.{name}" in told) == (controller not in controllers)
    assert json.loads(sandbox.run(only="gaps").stdout) == []


# ---------------------------------------------------------------- what must fail inside


def probe(sandbox: Sandbox, code: str, *words: str, **asked: object) -> tuple[str, str]:
    """The same Python inside and outside: what each printed."""
    outside = sandbox.outside(["python3", "-c", code, *words])
    inside = sandbox.python(code, *words, **asked)
    assert b"Traceback" not in inside.stderr, inside.stderr.decode()
    return inside.stdout.decode(), outside.stdout.decode()


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
    assert inside.split() == ["/etc/machine-id"]  # a made-up one
    listed = sandbox.run(["ls", "-A", "/"]).stdout.split()
    assert set(listed) <= {*b"bin dev etc home lib lib32 lib64 libx32 opt proc run sbin tmp usr var".split()}


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


def test_protected_names_stay_as_they_are(sandbox: Sandbox) -> None:
    place = sandbox.place()
    sandbox.outside(
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


def test_the_manager_cannot_be_asked_for_another_unit(sandbox: Sandbox) -> None:
    """With the bus in sight, `systemd-run` inside is an escape in one command."""
    scope = ["--user"] if sandbox.user else []
    runtime = f"/run/user/{sandbox.machine.uid}"
    env = {"XDG_RUNTIME_DIR": runtime, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus"}
    command = ["systemd-run", *scope, "--wait", "--collect", "--quiet", "true"]
    assert sandbox.outside(command).returncode == 0
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


def test_the_network_is_what_the_policy_says(sandbox: Sandbox) -> None:
    place = sandbox.place()
    listening = sandbox.machine.popen(["python3", "-c", LISTENERS, place], user=sandbox.user)
    try:
        assert listening.stdout is not None
        words = [*listening.stdout.readline().decode().split(), place]
        assert {"tcp", "abstract", "named"} <= set(
            sandbox.outside(["python3", "-c", CONNECT, *words]).stdout.decode().split()
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
        ["sh", "-c", "cd /proc && echo [0-9]* && ls -d /proc/1 2>&1; kill -9 1; kill -0 1 && echo reached"]
    )
    assert told.stdout == b"2\n"


def test_it_has_no_rights_and_a_filter(sandbox: Sandbox) -> None:
    told = sandbox.run(["cat", "/proc/self/status"]).stdout.decode()
    fields = dict(line.split(":\t", 1) for line in told.splitlines() if ":\t" in line)
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    text = "unshare -r true && echo userns; mount -t tmpfs x /tmp && echo mount; keyctl show 2>/dev/null && echo keys; true"
    assert sandbox.run(["bash", "-c", text]).stdout == b""


def test_it_is_never_root_outside(sandbox: Sandbox) -> None:
    """Run by root it is an id that nobody has; root's own files are out of reach, where the system's are not."""
    place = sandbox.place()
    process = sandbox.popen(["sleep", "30.25"], write=[place])
    try:
        wait_for("the command", lambda: sandbox.processes("sleep\0" + "30.25"))
        (pid, *_) = [p for p in sandbox.processes("sleep\0" + "30.25")]
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


def test_no_secret_is_on_a_command_line_or_in_the_unit(sandbox: Sandbox) -> None:
    process = sandbox.popen(["sleep", "30.5"], env={"TOKEN": "s3cr3t-v4lue"})
    try:
        wait_for("the command", lambda: sandbox.processes("sleep\0" + "30.5"))
        scope = ["--user"] if sandbox.user else []
        (unit,) = sandbox.units()
        shown = sandbox.outside(["systemctl", *scope, "show", unit]).stdout
        assert b"PrivateNetwork=yes" in shown
        assert b"s3cr3t" not in shown
        driver = {int(p) for p in sandbox.processes(DRIVER)}  # the test's own words, which name the policy
        assert set(sandbox.processes("s3cr3t-v4lue")) <= driver
        runtime = sandbox.machine.outside(f"/run/user/{sandbox.machine.uid}")
        assert not [
            path for path in runtime.rglob("*") if "staddle" in path.name and "units" not in str(path)
        ]
    finally:
        process.kill()
        process.communicate()
    wait_for("the end", lambda: not sandbox.units())


# ---------------------------------------------------------------- how it ends


@pytest.fixture
def running(sandbox: Sandbox) -> Iterator[tuple[Sandbox, subprocess.Popen[bytes], int, str]]:
    """A command with two children in other sessions, its driver, the client's pid inside the machine."""
    place = sandbox.place()
    mark = f"{time.monotonic_ns()}"
    text = f"trap 'echo got term; exit 5' TERM; trap 'echo got int; exit 6' INT; setsid sleep {mark} & sleep {mark} & echo up; wait; wait; wait"
    process = sandbox.popen(["bash", "-c", text], pid_file=f"{place}/pid", write=[place], cwd=place)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    pid = int((sandbox.machine.outside(place) / "pid").read_text())
    yield sandbox, process, pid, mark
    process.kill()
    process.communicate()
    wait_for("every process ends", lambda: not sandbox.processes(f"sleep\0{mark}"))


@pytest.mark.parametrize(("name", "word", "code"), [("TERM", b"got term\n", 5), ("INT", b"got int\n", 6)])
def test_signals_reach_the_command_and_its_answer_counts(
    running: tuple[Sandbox, subprocess.Popen[bytes], int, str], name: str, word: bytes, code: int
) -> None:
    sandbox, process, pid, mark = running
    sandbox.outside(["kill", f"-{name}", str(pid)])
    assert process.stdout is not None
    assert process.stdout.readline() == word
    assert process.wait(10) == code
    assert not sandbox.processes(f"sleep\0{mark}")


def test_when_its_client_is_killed_everything_ends(
    running: tuple[Sandbox, subprocess.Popen[bytes], int, str],
) -> None:
    sandbox, _, pid, mark = running
    assert len(sandbox.units()) == 1
    sandbox.outside(["kill", "-KILL", str(pid)])
    wait_for("every process ends", lambda: not sandbox.processes(f"sleep\0{mark}"), seconds=1)
    wait_for("the unit is gone", lambda: not sandbox.units(), seconds=1)
    assert not sandbox.processes("systemd-unit")
    assert not sandbox.processes("systemd-run\0")


def test_when_its_starter_is_killed_everything_ends(
    running: tuple[Sandbox, subprocess.Popen[bytes], int, str],
) -> None:
    sandbox, _, pid, mark = running
    status = sandbox.machine.outside(f"/proc/{pid}/status").read_text()
    parent = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:"))
    sandbox.outside(["kill", "-KILL", parent])
    wait_for("every process ends", lambda: not sandbox.processes(f"sleep\0{mark}"), seconds=1)
    wait_for("the unit is gone", lambda: not sandbox.units(), seconds=1)


def test_a_unit_that_is_stopped_by_hand_ends_the_command(
    running: tuple[Sandbox, subprocess.Popen[bytes], int, str],
) -> None:
    sandbox, process, _, mark = running
    scope = ["--user"] if sandbox.user else []
    sandbox.outside(["systemctl", *scope, "stop", *sandbox.units()])
    assert process.wait(10) == 5  # it was asked, and answered
    assert not sandbox.processes(f"sleep\0{mark}")


def test_a_command_that_hears_nothing_is_ended_by_killing_its_client(sandbox: Sandbox) -> None:
    place = sandbox.place()
    text = "trap '' TERM INT HUP; echo up; while :; do sleep 31.75; done"
    process = sandbox.popen(["bash", "-c", text], pid_file=f"{place}/pid", write=[place], cwd=place)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    pid = (sandbox.machine.outside(place) / "pid").read_text()
    sandbox.outside(["kill", "-TERM", pid])
    time.sleep(0.3)
    assert sandbox.units()
    sandbox.outside(["kill", "-KILL", pid])
    wait_for("every process ends", lambda: not sandbox.processes("sleep\0" + "31.75"), seconds=1)
    assert process.wait(10) == 137
    process.communicate()
    wait_for("the unit is gone", lambda: not sandbox.units(), seconds=1)


def test_what_it_leaves_in_the_background_ends_with_it(sandbox: Sandbox) -> None:
    before = time.monotonic()
    done = sandbox.run(["bash", "-c", "setsid sleep 32.5 & disown; echo done"])
    assert done.stdout == b"done\n"
    assert time.monotonic() - before < 10
    assert not sandbox.processes("sleep\0" + "32.5")


def test_many_at_once_in_one_directory(sandbox: Sandbox) -> None:
    place = sandbox.place()
    command = ["sh", "-c", "echo $0 > out-$0; cat out-$0"]
    started = [sandbox.popen([*command, str(n)], write=[place], cwd=place) for n in range(12)]
    told = sorted(int(process.communicate(timeout=60)[0]) for process in started)
    assert told == list(range(12))
    assert len(list(sandbox.machine.outside(place).iterdir())) == 12


# ---------------------------------------------------------------- the machine of these tests


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


def test_a_killed_test_run_leaves_no_machine_behind(tmp_path: Path) -> None:
    code = (
        "import sys,time; sys.path.insert(0, sys.argv[1])\n"
        "from tests.kernel.private_systemd import PrivateSystemd\n"
        "with PrivateSystemd() as m: print(m.init, flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(HERE.parents[1])], stdout=subprocess.PIPE)
    assert process.stdout is not None
    init = int(process.stdout.readline())
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
