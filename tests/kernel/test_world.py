"""The world of a command: who it is, on which machine, with what in its home. Everything tells one story."""

from __future__ import annotations

import asyncio
import http.server
import os
import pwd
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import AsyncSandbox, Identity, Network, Policy, Sandbox, wrap
from staddle.errors import PolicyError, PolicyNotEnforceable

ADA = Identity("ada", 1500, "box.example", "/home/of/ada")
IDENTITIES = pytest.mark.parametrize("who", [Identity(), ADA, Identity(uid=0)], ids=["usual", "ada", "root"])

WHO = 'id -u; id -g; id -un; id -gn; whoami; hostname; uname -n; echo "$HOME" "$USER" "$LOGNAME"; echo ~'
#: Everything that could tell about the host.
LOOKING = """
hostname; uname -a; id; whoami; groups; env; mount; df -a; ps auxww; w; who; last; getent passwd; getent group
getent hosts; grep -Ish "" /etc/* ~/.*  # texts: two letters may be anywhere in a compiled file
cat /proc/mounts /proc/self/mountinfo /proc/self/mountstats /proc/self/{cgroup,environ,maps}
cat /proc/[0-9]*/{cmdline,environ,comm,status,cgroup} /proc/cmdline /proc/net/{unix,tcp,tcp6,udp,route,arp}
cat /proc/sys/kernel/{hostname,domainname,core_pattern} /proc/self/{uid,gid}_map
readlink /proc/self/{cwd,exe,root} /proc/self/fd/* /proc/[0-9]*/{cwd,root,fd/*}
ls -laR /home /tmp /run /var /workspace / 2>/dev/null | head -2000
"""


def told(who: Identity) -> str:
    name = f"{who.user}\n{who.user}\n{who.user}\n{who.host}\n{who.host}\n"
    return f"{who.uid}\n{who.gid}\n{name}{who.home} {who.user} {who.user}\n{who.home}\n"


@IDENTITIES
def test_a_session_is_who_it_is_said_to_be(who: Identity) -> None:
    with Sandbox(identity=who) as sb:
        assert sb.run(WHO).stdout == told(who)
        files = sb.run(
            "cat /etc/hostname; getent passwd $USER; getent group $USER; getent hosts $HOSTNAME"
        ).stdout
        assert files.split()[0] == who.host
        assert f"{who.user}:x:{who.uid}:{who.gid}::{who.home}:" in files
        assert f"{who.user}:x:{who.gid}:" in files
        assert "127.0.1.1" in files
        # What it makes is its own, in its home, its workspace and beside them.
        made = sb.run("touch ~/a /workspace/a /tmp/a && stat -c %u:%g ~/a /workspace/a /tmp/a ~ /workspace")
        assert made.stdout.split() == [f"{who.uid}:{who.gid}"] * 5


@pytest.mark.parametrize("mode", ["overlay", "bind"])
@IDENTITIES
def test_what_it_leaves_on_the_host_is_the_owners(who: Identity, mode: str, tmp_path: Path) -> None:
    with Sandbox(tmp_path, identity=who, mode=mode) as sb:
        sb.run("mkdir d && echo x > d/f").check()
        if mode == "overlay":
            sb.commit()
    assert {path.stat().st_uid for path in (tmp_path / "d", tmp_path / "d/f")} == {os.geteuid()}


def test_whatever_opens_it_and_goes_on_from_it() -> None:
    async def asked() -> str:
        async with AsyncSandbox(identity=ADA) as sb:
            return (await sb.run("whoami")).stdout

    assert asyncio.run(asked()) == "ada\n"
    with Sandbox(identity=ADA) as sb:
        sb.run("echo x > ~/f").check()
        (fork,) = sb.fork(1)
        with fork:
            assert fork.run("whoami; cat ~/f; stat -c %U ~/f").stdout == "ada\nx\nada\n"
        sb.reset()
        assert sb.run("whoami; ls ~").stdout == "ada\n"


@pytest.mark.parametrize("backend", ["namespaces", "bwrap"])
@IDENTITIES
def test_a_single_command_is_too(who: Identity, backend: str) -> None:
    wrapped = wrap(["bash", "-c", WHO], Policy.agent().with_identity(who), backend=backend, cwd="/")
    done = wrapped.run(capture_output=True, text=True)
    assert done.stdout == told(who)


@pytest.mark.parametrize("backend", ["namespaces", "bwrap"])
def test_root_inside_has_no_more_rights_than_anybody(backend: str) -> None:
    text = "grep -h ^Cap /proc/self/status; echo 1 > /proc/sys/kernel/core_pattern; mount -t tmpfs x /tmp"
    with Sandbox(identity=Identity(uid=0), backend=backend, mode="readonly") as sb:
        got = sb.run(f"{text}; touch /usr/x; chown 1 /tmp; chroot /tmp true; date -s 2000-01-01; echo over")
        assert got.stdout.split("over")[0].count("0000000000000000") == 5
        assert "over" in got.stdout
        assert len(re.findall("ermitted|denied|[Rr]ead-only|allowed|Invalid", got.stderr)) >= 6, got.stderr


def test_what_cannot_change_who_one_is_says_so() -> None:
    with pytest.raises(PolicyNotEnforceable, match="changes neither the user nor the host's name"):
        wrap(["true"], Policy.agent().with_identity(ADA), backend="landlock", cwd="/")


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace, and a home around it, of names that are nowhere else."""
    home = tmp_path / "zqhomezq"
    (home / "zqprojectzq").mkdir(parents=True)
    (home / "zqprojectzq/f").write_text("x")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("ZQVARIABLE", "zqvaluezq")
    return home / "zqprojectzq"


def tells_nobody(seen: str) -> None:
    """Neither the host's name nor that of whoever runs this is a word of it."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = ""  # it has no account
    host = os.uname().nodename
    words = set(re.findall(r"[\w.-]+", seen))
    assert host not in words - {"sandbox", "localhost"}
    assert user not in words - {"root", "user"}


def test_nothing_inside_tells_about_the_host(hidden: Path) -> None:
    with Sandbox(workspace=hidden) as sb:
        sb.run("touch /workspace/new /tmp/new ~/new; sleep 0 & wait")
        seen = sb.run(LOOKING).stdout
    assert re.findall(r".*zq\w+zq.*", seen) == []
    assert "/dev/shm/staddle" not in seen
    assert "/var/tmp/staddle" not in seen
    tells_nobody(seen)
    assert "uid=1000(user) gid=1000(user) groups=1000(user)" in seen
    assert str(os.getpid()) not in re.findall(r"^\w+ +(\d+) ", seen, re.MULTILINE)


@pytest.mark.parametrize("backend", ["namespaces", "bwrap"])
def test_nor_does_anything_tell_a_single_command(hidden: Path, backend: str) -> None:
    done = wrap(["bash", "-c", LOOKING], Policy.agent(), backend=backend, cwd="/")
    seen = done.run(capture_output=True, text=True, errors="replace").stdout
    assert re.findall(r".*zq\w+zq.*", seen) == []
    tells_nobody(seen)


def test_what_would_tell_is_there_to_be_found_without_a_sandbox(hidden: Path) -> None:
    with Sandbox(workspace=hidden, backend="native", mode="bind") as sb:
        assert "zqprojectzq" in sb.run(LOOKING).stdout


def test_processors_are_those_of_the_limit() -> None:
    # As it is shown also where nobody may limit it.
    limited = Policy.agent().with_limits(cpu=0.5)
    with Sandbox(policy=limited, best_effort=True) as sb:
        assert sb.run("nproc; nproc").stdout == "1\n1\n"
    done = wrap(["nproc"], limited, backend="namespaces", cwd="/", best_effort=True)
    assert done.run(capture_output=True, text=True).stdout == "1\n"


@pytest.mark.parametrize("backend", ["namespaces", "bwrap"])
def test_memory_is_that_of_the_limit(backend: str) -> None:
    limited = Policy.agent().with_limits(memory="256M")
    look = "grep -h ^MemTotal /proc/meminfo; free -m | grep ^Mem"
    with Sandbox(policy=limited, best_effort=True, backend=backend, mode="readonly") as sb:
        words = sb.run(look).stdout.split()
        assert words[:2] == ["MemTotal:", "262144"]
        assert words[4] == "256"
    done = wrap(["bash", "-c", look], limited, backend=backend, cwd="/", best_effort=True)
    assert done.run(capture_output=True, text=True).stdout.split()[1] == "262144"


# ---------------------------------------------------------------- programs


@pytest.fixture(scope="module")
def sb() -> Iterator[Sandbox]:
    with Sandbox() as made:
        yield made


def test_bash_reads_its_own_start_files(sb: Sandbox) -> None:
    sb.run("echo 'export FROM_BASHRC=1' >> ~/.bashrc; mkdir -p ~/.local/bin").check()
    with sb.terminal() as terminal:
        terminal.write("echo [$FROM_BASHRC] $- && exit\n")
        out = b""
        while terminal.poll() is None or out.count(b"[1]") == 0:
            chunk = terminal.read(20)
            if not chunk:
                break
            out += chunk
    assert b"[1]" in out
    assert b"user@sandbox:/workspace$" in out.replace(b"\x1b[?2004h", b"")
    login = sb.exec(["bash", "-lc", "echo $PATH"]).stdout
    assert login.startswith("/home/user/.local/bin:")


def test_git_ssh_keygen_locale_and_time(sb: Sandbox) -> None:
    sb.run(
        "cd && git init -q r && cd r && git config user.email a@b.c && git config user.name A && echo 1 > f"
        " && git add f && git commit -qm 1 && git log --oneline | grep -q ' 1$'"
    ).check()
    sb.run(
        "ssh-keygen -q -t ed25519 -N '' -f ~/.ssh-key && ssh-keygen -lf ~/.ssh-key.pub | grep -q user@sandbox"
    ).check()
    assert "LANG=C.UTF-8" in sb.run("locale").stdout
    assert sb.run("locale charmap; printf 'ä' | wc -m").stdout.split() == ["UTF-8", "1"]
    here = subprocess.run(["date", "+%Z"], capture_output=True, text=True, check=True).stdout
    assert sb.run("date +%Z").stdout == here
    assert sb.run("TZ=Asia/Tokyo date +%Z").stdout == "JST\n"


def test_systemctl_refuses_in_a_sentence(sb: Sandbox) -> None:
    systemctl = sb.run("systemctl status")
    assert not systemctl.ok
    assert "not been booted with systemd" in systemctl.stderr


def test_an_editor_and_a_pager_on_a_terminal(sb: Sandbox) -> None:
    sb.run("seq 500 > /tmp/long; rm -f /tmp/text").check()
    with sb.terminal(["vi", "/tmp/text"]) as terminal:
        terminal.write("ihello world\x1b:wq\r")
        assert _ended(terminal) == 0
    assert sb.files.read("/tmp/text") == "hello world\n"
    with sb.terminal(["less", "/tmp/long"], rows=10) as terminal:
        out = terminal.read(20)
        while b"/tmp/long" not in out and b":" not in out[-8:]:
            out += terminal.read(20)
        assert b"1\r\n2\r\n" in out
        assert b"\n11\r" not in out
        terminal.write("q")
        assert _ended(terminal) == 0


def _ended(terminal: object) -> int | None:
    """Read what comes until it is over."""
    from staddle.sandbox.terminal import Terminal

    assert isinstance(terminal, Terminal)
    while terminal.poll() is None:
        try:
            terminal.read(20)
        except TimeoutError:
            break
    return terminal.poll()


# ---------------------------------------------------------------- where packages come from


@pytest.mark.slow
def test_a_mirror_on_this_machine_is_reached_and_its_password_stays_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mirror(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"a mirror")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Mirror) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
            monkeypatch.setenv("PIP_INDEX_URL", f"http://me:zqpasszq@127.0.0.1:{server.server_port}/simple")
            network = Network.packages(managers=["pip"])
            with Sandbox(policy=Policy.agent().with_network(network)) as sb:
                url = f"http://127.0.0.1:{server.server_port}/simple"
                fetch = f"import urllib.request; print(urllib.request.urlopen({url!r}).read().decode())"
                assert sb.exec(["python3", "-c", fetch]).stdout == "a mirror\n"
                seen = sb.run(LOOKING).stdout
                told = repr(sb.events()) + repr(sb.enforced) + repr(network)
                assert "zqpasszq" not in seen + told
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["namespaces", "bwrap"])
def test_a_group_id_of_its_own(backend: str, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")
    who = Identity(uid=1500, gid=1700)
    said = "1500 1700 user\n"
    script = "echo $(id -u) $(id -g) $(id -gn)"
    with Sandbox(tmp_path, identity=who, backend=backend) as sandbox:
        assert sandbox.run(script).stdout == said
        owners = sandbox.run(
            "touch made ~/made; stat -c '%u %g' there made ~/made; echo x >> there", check=True
        )
        assert owners.stdout == "1500 1700\n" * 3
    policy = Policy.agent().with_identity(who)
    done = wrap(["sh", "-c", script], policy, backend=backend, cwd="/").run(capture_output=True, text=True)
    assert done.stdout == said
    with Sandbox(identity=Identity(gid=1700)) as sandbox:
        assert sandbox.run("id -u; id -g", user="root").stdout == "0\n0\n"


@pytest.mark.parametrize(
    "ids", [{"gid": 0}, {"uid": 0, "gid": 5}, {"gid": 65534}, {"gid": "x"}, {"gid": True}]
)
def test_group_ids_that_cannot_be(ids: dict[str, object]) -> None:
    with pytest.raises(PolicyError):
        Identity(**ids)  # type: ignore[arg-type]
