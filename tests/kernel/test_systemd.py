"""The systemd backend on a real systemd: as an ordinary user with a user manager, and as root.

A private systemd is started for these tests (see `private_systemd`), which only root can do.
"""

# ruff: noqa: E501 - scripts read better unbroken

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.support.private_systemd import PrivateSystemd
from tests.support.programs import PIP, SCRIPTS, SERVE, sample_wheel, script
from tests.support.systemd_sandbox import DRIVER, Sandbox

pytestmark = pytest.mark.needs_root

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

# It runs commands.


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


@pytest.mark.parametrize("who", [{"uid": 0}, {"user": "ada", "uid": 1500, "host": "box"}])
def test_the_command_is_who_it_is_said_to_be(sandbox: Sandbox, who: dict[str, object]) -> None:
    text = "id -un; id -u; uname -n; grep -c '^Cap.*0000000000000000' /proc/self/status; ls -A ~"
    done = sandbox.run(["bash", "-c", text], identity=who)
    expected = f"{who.get('user', 'root')}\n{who['uid']}\n{who.get('host', 'sandbox')}\n5\n"
    assert done.stdout.decode().startswith(expected), done.stderr
    assert b".bashrc" in done.stdout


def test_the_system_inside_may_be_another(sandbox: Sandbox) -> None:
    base = f"{sandbox.place()}/base"
    make = f"mkdir -p {base}/etc; echo other > {base}/etc/issue; for d in bin lib lib64; do ln -s usr/$d {base}; done"
    sandbox.unconfined(["sh", "-c", make])
    done = sandbox.run(["bash", "-c", "cat /etc/issue; id -un"], base=base, read=["/usr"])
    assert done.stdout == b"other\nuser\n", done.stderr


def test_a_reader_that_goes_away_ends_the_command(sandbox: Sandbox) -> None:
    process = sandbox.popen(["sh", "-c", "yes; echo $? >&2"])
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(100)
    process.stdout.close()
    assert process.stderr.read() == b"141\n"
    assert process.wait(60) == 0


def test_arguments_and_variables_arrive_as_they_are(sandbox: Sandbox) -> None:
    """Nothing expands, splits or quotes them: not systemd-run, not the manager, not a shell."""
    words = [*ODD_NAMES, "", "$MANAGER_SECRET", "${MANAGER_SECRET}", "%n", "a=b", "--user", "@x", "|", "-"]
    scope = ["--user"] if sandbox.user else []
    sandbox.unconfined(
        ["systemctl", *scope, "set-environment", "MANAGER_SECRET=leaked", "PYTHONPATH=/leaked"]
    )
    code = "import os,sys,json; print(json.dumps([sys.argv[1:], {k: v for k, v in os.environ.items()}]))"
    env = {f"V{number}": name for number, name in enumerate(ODD_NAMES)}
    done = sandbox.run(["python3", "-c", code, *words], env=env)
    sandbox.unconfined(["systemctl", *scope, "unset-environment", "MANAGER_SECRET", "PYTHONPATH"])
    arrived, variables = json.loads(done.stdout)
    assert arrived == words
    assert {key: variables[key] for key in env} == env
    usual = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "LC_CTYPE"}
    usual |= {"HOSTNAME", "LC_ALL", "STADDLE_SANDBOX"}
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


def test_directories_on_the_way_to_a_grant_in_a_private_directory_take_no_files(sandbox: Sandbox) -> None:
    """What was written there would be gone without a word."""
    place = f"/tmp/way-{time.monotonic_ns()}"
    out = f"{place}/project/out"
    sandbox.unconfined(["mkdir", "-p", out])
    text = (
        "for d in . project; do stat -c %a $d; echo x > $d/new; mkdir $d/new; mv project $d/moved; done; rmdir project; "
        "ls -A . project; echo kept > project/out/kept; echo > /tmp/new && ls /tmp/new"
    )
    done = sandbox.run(["sh", "-c", text], write=[out], cwd=place)
    assert done.stdout.split() == b"555 555 .: project project: out /tmp/new".split(), done
    assert done.stderr.count(b"Permission denied") >= 4
    assert sandbox.unconfined(["cat", f"{out}/kept"]).stdout == b"kept\n"


def test_a_write_grant_in_a_system_directory_is_held_or_refused(sandbox: Sandbox) -> None:
    """As root its owner must be translated, which the overlay that this machine stands on cannot."""
    place = f"/opt/granted-{time.monotonic_ns()}"
    outside = sandbox.machine.outside(place)
    outside.mkdir(parents=True)
    if sandbox.user:
        os.chown(outside, sandbox.machine.uid, sandbox.machine.gid)
    done = sandbox.run(["touch", "kept"], write=[place], cwd=place)
    if sandbox.user:
        assert (outside / "kept").exists(), done
    else:
        assert (done.returncode, done.stdout) == (125, b"")
        assert "cannot translate owners" in done.stderr.decode()


def test_what_it_makes_belongs_to_who_started_it(sandbox: Sandbox) -> None:
    place = sandbox.place()
    assert sandbox.run(["sh", "-c", "echo x > f; stat -c %U f"], write=[place], cwd=place).stdout == b"user\n"
    made = os.stat(sandbox.machine.outside(place) / "f")
    assert made.st_uid == (sandbox.machine.uid if sandbox.user else 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "pytest"])
def test_real_programs_work(sandbox: Sandbox, name: str, tmp_path: Path) -> None:
    place = sandbox.place()
    wheel = sample_wheel(tmp_path)
    sandbox.machine.copy_in(wheel, f"{place}/{wheel.name}")
    text = script(name, python="python3", wheel=f"{place}/{wheel.name}", serve=SERVE[True], pip=PIP[False])
    done = sandbox.run(["bash", "-euo", "pipefail", "-c", text], write=[place], cwd=place)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.slow
def test_a_thousand_rules_do_not_take_long(sandbox: Sandbox) -> None:
    """As properties of the unit, a thousand denied directories take systemd twenty seconds."""
    place = sandbox.place()
    outside = sandbox.machine.outside(place)
    names = [f"{place}/d{number}" for number in range(1000)]
    for number in range(1000):
        (outside / f"d{number}").mkdir()
    before = time.monotonic()
    done = sandbox.run(["sh", "-c", "ls d1 d999; true"], write=[place], deny=names, cwd=place)
    assert time.monotonic() - before < 15
    assert done.stderr.count(b"Permission denied") == 2


# It does not start.

BROKEN = [
    ("PrivateIPC", "ipc namespace"),
    ("PrivateNetwork", "net namespace"),
    ("NoNewPrivileges", "ignored"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "word"), BROKEN)
def test_without_one_of_its_properties_nothing_runs(sandbox: Sandbox, name: str, word: str) -> None:
    """What the manager may ignore is checked before the command: never counted on."""
    done = sandbox.run(["echo", "ran"], without=name)
    assert (done.returncode, done.stdout) == (125, b"")
    assert word in done.stderr.decode()
    assert not json.loads(sandbox.run(only="probe", without=name).stdout)["usable"]


def test_without_its_user_namespace_a_users_unit_does_not_start(machine: PrivateSystemd) -> None:
    sandbox = Sandbox(machine, user=True)
    done = sandbox.run(["echo", "ran"], without="PrivateUsers")
    assert (done.returncode, done.stdout) == (125, b"")
    assert "systemd did not give the unit its own" in done.stderr.decode()  # 252 says nothing at all


def test_a_failure_is_told_on_standard_error_when_nobody_reads_the_status(sandbox: Sandbox) -> None:
    done = sandbox.run(["/usr/bin/no-such-program"], status="closed")
    assert "staddle: '/usr/bin/no-such-program' cannot be run" in done.stderr.decode()


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
