"""`sudo` and `su` inside, ports below 1024 and git, as people and models type them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from staddle import Identity, Policy, Sandbox
from staddle.linux.process import parent_of
from tests.support.waiting import until


@pytest.fixture(scope="module")
def sb() -> Iterator[Sandbox]:
    with Sandbox(backend="namespaces") as made:
        yield made


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("sudo id -un", "root\n"),
        ("su -c 'id -un'", "root\n"),
        ("echo piped | sudo cat", "piped\n"),
        ("sudo echo a; sudo echo b; sudo echo c", "a\nb\nc\n"),
        ("sudo sh -c 'exit 7'; echo $?", "7\n"),
        ("sudo A=1 sh -c 'echo $A $HOME $USER'", "1 /root root\n"),
        ("export B=2; sudo -E sh -c 'echo $B'", "2\n"),
        ("cd /usr && sudo pwd; cd /workspace", "/usr\n"),
        ("sudo touch /etc/by-sudo /usr/by-sudo && test -e /etc/by-sudo && echo made", "made\n"),
        ("sudo -n true && echo fine", "fine\n"),
        ("sudo -iu root pwd; sudo -nu root id -un; sudo -k && sudo -K && echo fine", "/root\nroot\nfine\n"),
        ("sudo su -c 'id -un'; sudo su - -c 'id -un; pwd'", "root\nroot\n/root\n"),
        ("su - -c 'pwd; echo $0'; echo pwd | sudo -i", "/root\n/bin/bash\n/root\n"),
        ("echo 'x y' | sudo tee /etc/teed >/dev/null; cat /etc/teed", "x y\n"),
    ],
)
def test_a_line_with_sudo(sb: Sandbox, line: str, printed: str) -> None:
    got = sb.run(line)
    assert (got.stdout, got.stderr) == (printed, "")


def test_what_sudo_cannot_do_is_said(sb: Sandbox) -> None:
    got = sb.run("sudo nope")
    assert (got.exit_code, got.stderr) == (127, "sudo: 'nope' cannot be run: No such file or directory\n")
    assert "only root can be chosen" in sb.run("sudo -u bob id").stderr
    assert sb.run("sudo").exit_code == 1


def test_programs_and_background_processes_have_it_too(sb: Sandbox) -> None:
    assert sb.exec(["sudo", "id", "-u"]).stdout == "0\n"
    process = sb.start("sudo sh -c 'id -u; sleep 1000'")
    assert "0" in process.wait_for_text("0", timeout=60)
    process.kill()
    process.wait()


@pytest.mark.slow
def test_who_asks_as_soon_as_it_runs_is_answered(sb: Sandbox) -> None:
    """Also before the agent has seen that the program was started."""
    for _ in range(60):
        process = sb.start("sudo sh -c 'id -u; sleep 1000'")
        process.wait_for_text("0", timeout=30)
        process.kill()
        process.wait()


def test_a_command_of_sudo_ends_with_who_asked(sb: Sandbox) -> None:
    got = sb.run("sudo sh -c 'echo $$ > /tmp/asked; exec sleep 1000'", timeout=1)
    assert got.timed_out
    pid = sb.files.read("/tmp/asked").strip()
    assert until(lambda: not sb.run(f"kill -0 {pid}", user="root").ok)


def test_the_policy_switches_it_off() -> None:
    with Sandbox(policy=Policy.agent().replace(sudo=False), backend="namespaces") as sb:
        got = sb.run("sudo id")
        assert (got.exit_code, got.stdout) == (1, "")
        assert "no command can become root here" in got.stderr
        assert not sb.run("test -e /dev/.staddle/sudo").ok


def test_nothing_is_made_for_it_before_it_is_typed() -> None:
    with Sandbox(backend="namespaces") as sb:
        assert not sb.run("test -e /dev/.staddle/sud*").ok
        assert not sb.run("grep -q overlay.*/usr /proc/self/mounts").ok


@pytest.mark.parametrize("said", ["1", "0", "-1", "99999999999", "x", "", "1\\n1\\n1"])
def test_nonsense_on_its_pipe_harms_nobody(sb: Sandbox, said: str) -> None:
    sb.run("sudo true")
    assert sb.run(f"printf '{said}\\n' > /dev/.staddle/sudo; sudo echo on").stdout == "on\n"


def test_nobody_gets_the_streams_of_our_own_processes(sb: Sandbox) -> None:
    """The file server is asked about by its number: its socket leads to the host."""
    sb.run("sudo true")
    sb.files.exists("/tmp")
    inside = sb._inside
    server = inside.file_client._process
    assert server is not None
    assert sb.run(f"echo {server.pid} > /dev/.staddle/sudo; echo 1 > /dev/.staddle/sudo").ok
    assert sb.run("sudo echo on").stdout == "on\n"
    assert sb.files.exists("/tmp")
    assert inside.file_client._process is server


def test_others_write_nothing_but_numbers_and_read_nothing(sb: Sandbox) -> None:
    sb.run("sudo true")
    assert sb.run("rm /dev/.staddle/sudo").exit_code == 1
    assert sb.run("mv /dev/.staddle/sudo /tmp/x").exit_code == 1
    assert "Permission denied" in sb.run("cat < /dev/.staddle/sudo", timeout=5).stderr
    assert not sb.run("chmod 666 /dev/.staddle/sudo").ok
    assert sb.run("sudo echo on").stdout == "on\n"


def test_a_root_by_sudo_is_held_as_any_root_inside(sb: Sandbox) -> None:
    look = (
        "grep -E '^(Cap|Seccomp:|NoNewPrivs)' /proc/self/status; readlink /proc/self/ns/mnt /proc/self/ns/pid"
    )
    by_sudo, by_user = sb.run(f'sudo sh -c "{look}"').stdout, sb.run(look, user="root").stdout
    assert by_sudo == by_user
    assert "Seccomp:\t2\n" in by_sudo
    assert "NoNewPrivs:\t1\n" in by_sudo
    assert "CapEff:\t00000000000000fb\n" in by_sudo


def test_ports_below_1024_can_be_bound(sb: Sandbox) -> None:
    process = sb.start(["python3", "-m", "http.server", "80", "--bind", "127.0.0.1"])
    process.wait_for_port(80)
    with sb.connect(80) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert connection.recv(8) == b"HTTP/1.0"
    process.kill()


def test_git_commits_without_being_told_who_we_are(sb: Sandbox) -> None:
    line = (
        "git init -q repo && git -C repo commit -q --allow-empty -m x && git -C repo log --format='%an %ae'"
    )
    assert sb.run(line).stdout == "user user@sandbox\n"
    own = "git -C repo config user.email me@here && git -C repo commit -q --allow-empty -m y"
    assert sb.run(f"{own} && git -C repo log -1 --format=%ae").stdout == "me@here\n"
    with Sandbox(backend="namespaces", identity=Identity(user="ada", host="box")) as other:
        assert other.run("git config user.email").stdout == "ada@box\n"


@pytest.mark.slow
def test_apt_without_root_or_without_a_network_says_what_to_do(sb: Sandbox) -> None:
    got = sb.run("apt-get install -y hello")
    assert got.exit_code == 100
    assert got.stderr.endswith(
        "apt-get: packages are installed by root: sudo apt-get install -y hello; the network is denied; "
        "the policy has to allow it: Network.packages()\n"
    )
    assert [event.what for event in got.violations] == ["root"]
    got = sb.run("sudo apt-get install -y no-such-package")
    assert got.exit_code == 100
    assert got.stderr.endswith(
        "sudo: the network is denied; the policy has to allow it: Network.packages()\n"
    )
    assert [event.what for event in got.violations] == ["network"]
    assert sb.run("apt-get --version | head -n 1").stderr == ""


def test_without_a_network_there_is_no_name_and_nothing_is_tried_for_long(sb: Sandbox) -> None:
    look = "import socket; socket.getaddrinfo('example.com', 80)"
    assert "[Errno -2] Name or service not known" in sb.exec(["python3", "-c", look]).stderr
    assert "retries = 1\n" in sb.run("cat /etc/pip.conf").stdout
    assert "fetch-retries=0\n" in sb.run("cat ~/.npmrc").stdout
    assert sb.run("getent hosts localhost").ok


def test_a_script_that_root_runs_may_use_sudo(sb: Sandbox) -> None:
    sb.files.write("script.sh", "id -u; sudo id -u; su -c 'id -un'\n")
    assert sb.run("sudo bash script.sh").stdout == "0\n0\nroot\n"
    assert sb.run("bash script.sh", user="root").stdout == "0\n0\nroot\n"


def test_a_denied_directory_of_the_system_does_not_keep_root_away() -> None:
    with Sandbox(policy=Policy.agent().with_deny("/opt"), backend="namespaces") as sandbox:
        assert sandbox.run("id -u; ls -A /opt", user="root").stdout == "0\n"
        assert sandbox.run("sudo id -u").stdout == "0\n"


#: Asks without end, with the descriptor that the script of sudo has.
_ASKING = """
import os, time
pipe = os.open("/dev/.staddle/sudo", os.O_WRONLY)
mine, end = b"%d\\n" % os.getpid(), time.monotonic() + 3
while time.monotonic() < end:
    os.write(pipe, mine * 20)
"""


def test_requests_without_end_do_not_have_the_agent_work_without_end() -> None:
    with Sandbox(backend="namespaces") as sandbox:
        assert sandbox.run("sudo id -u").stdout == "0\n"
        sandbox.files.write("asking.py", _ASKING)
        agent = parent_of(sandbox._now().main._shell._state.bash.host_pid)

        def worked() -> float:
            with open(f"/proc/{agent}/stat") as file:
                words = file.read().rpartition(")")[2].split()
            return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

        before, began = worked(), time.monotonic()
        sandbox.run("python3 asking.py 9<>/dev/null; : sudo", timeout=60)
        took = time.monotonic() - began
        assert worked() - before < 1.0 + 0.35 * took
        assert sandbox.run("sudo id -u", timeout=30).stdout == "0\n"


def test_everybody_sees_what_root_has_started() -> None:
    with Sandbox() as sb:
        sb.run("sudo sh -c 'sleep 4321 > /dev/null 2>&1 &'", check=True)
        assert sb.run("pgrep -fx 'sleep 4321' | wc -l").stdout == "1\n"
        assert sb.run("ps -eo args | grep -c '[s]leep 4321'").stdout == "1\n"
        # The command lines of staddle's own processes name no file of the host.
        assert sb.run("tr '\\0' ' ' < /proc/1/cmdline").stdout.split() == ["staddle-forkserver"]
