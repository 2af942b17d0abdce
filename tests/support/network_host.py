"""A made-up host for real sandboxes: every server that a client could want, at names of its own.

    with Host(directory) as host:
        host.run("allow", "curl -sS https://api.example.com/")

It is a program of its own, in network and mount namespaces that nobody else sees: the servers
listen on its loopback and are published on a made-up internet beside it, its nameserver is the only
one, and its authority is the only one that clients trust. The sandboxes are
started in there as on any host, one for each setting.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from staddle import Network, Policy, Sandbox
from staddle.linux.mounts import CLONE_NEWNS, MS_BIND, MS_REC, MS_SLAVE, mount
from staddle.linux.process import SIGKILL, death_signal
from staddle.linux.syscalls import call
from staddle.linux.userns import CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWUSER, map_ids
from tests.support import network_offers
from tests.support.network_clients import SCRIPTS, STATIC
from tests.support.network_servers import certificate_for, nameserver, published, web_server
from tests.support.network_world import OTHER, PUBLIC, apart, connect_to_internet
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
#: Two names with the same servers behind them, at different addresses. The policy knows the first only.
NAME, ANOTHER = "api.example.com", "evil.example.com"
PORTS = (22, 80, 443, 5432)
SETTINGS = {
    "deny": Network.deny(),
    "loopback": Network.loopback(ports=PORTS),
    "allow": Network.allow(f"{NAME}:{','.join(map(str, PORTS))}"),
    "open": Network.open(),
}
#: The same list on a backend without network namespaces.
SETTINGS["allow, landlock"] = SETTINGS["allow"]
#: Longer than anything takes that works or is refused, shorter than any client's own patience.
SECONDS = 60
#: None of our clients is told of a proxy, where there is one as well.
_PROXIES = [name for word in ("HTTP", "HTTPS", "ALL") for name in (f"{word}_PROXY", f"{word.lower()}_proxy")]
_DATABASE_USER = 1000
_IFA_F_TENTATIVE = 0x40


class Host:
    """The host's process, as the test sees it."""

    def __init__(self, directory: Path) -> None:
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.support.network_host", str(directory)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._repository = str(directory / "www" / "repo.git")
        self._said()

    def run(self, setting: str, script: str) -> dict[str, Any]:
        """What became of a script in the sandbox with this network."""
        assert self._program.stdin
        self._program.stdin.write(json.dumps((setting, script)) + "\n")
        self._program.stdin.flush()
        return self._said()

    def fetch(self, setting: str, client: str, name: str) -> dict[str, Any]:
        """What became of a client that asked for the word of the host with this name."""
        script = f"unset {' '.join(_PROXIES)}\n" + SCRIPTS[client].replace("@host@", name).replace(
            "@repository@", self._repository
        )
        return self.run(setting, f"({script})")

    def close_sandboxes(self) -> dict[str, Any]:
        """Close all of them: how many network namespaces they had, and what is left of them."""
        return self.run("close", "")

    def _said(self) -> dict[str, Any]:
        assert self._program.stdout
        line = self._program.stdout.readline()
        assert line, "the made-up host has ended"
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self._program.stdin
        assert self._program.stdout
        self._program.stdin.close()
        assert self._program.wait(SECONDS) == 0
        self._program.stdout.close()


# What the program does.


def main(directory: Path) -> None:
    death_signal(SIGKILL)
    (directory / "workspace").mkdir()
    certificate = _offer(directory)
    _become(directory)
    nameserver(PUBLIC, {NAME: PUBLIC, ANOTHER: OTHER}, directory / "names")
    for port, with_tls in ((80, None), (443, certificate)):
        web_server("127.0.0.1", port, directory / "www", with_tls)
    _shells(directory)
    _database(directory)
    listening = [("127.0.0.1", port) for port in PORTS]
    assert until(lambda: all(_is_there(where) for where in listening), 90), _last_words(directory)
    for port in PORTS:
        published(port)
    assert until(lambda: not _tentative())
    print("{}", flush=True)
    before = _shown()
    sandboxes: dict[str, Sandbox] = {}
    for line in sys.stdin:
        setting, script = json.loads(line)
        if setting == "close":
            print(json.dumps(_closed(sandboxes, before)), flush=True)
            continue
        if setting not in sandboxes:
            policy = Policy.agent().with_network(SETTINGS[setting]).with_read(sys.prefix)
            backend = "landlock" if "landlock" in setting else "auto"
            sandboxes[setting] = Sandbox(
                workspace=directory / "workspace",
                policy=policy,
                backend=backend,
                best_effort=backend != "auto",
            )
        done = sandboxes[setting].run(script, timeout=SECONDS)
        said = {
            "code": done.exit_code,
            "out": done.stdout,
            "err": done.stderr,
            "late": done.timed_out,
            "refused": [event.what for event in done.violations],
        }
        print(json.dumps(said), flush=True)
    for sandbox in sandboxes.values():
        sandbox.close()


def _closed(sandboxes: dict[str, Sandbox], before: dict[str, list[str]]) -> dict[str, Any]:
    """Close all of them, and see what they leave behind on this host."""
    places: dict[str, int] = {}
    for setting, sandbox in sandboxes.items():
        if setting not in ("open", "allow, landlock"):
            place = sandbox.run("readlink /proc/self/ns/net").stdout.strip()
            # While it is open, no sandbox of another test gets a namespace of the same number.
            places[place] = os.open(f"/proc/{_living_in(place)[0]}/ns/net", os.O_RDONLY)
            sandbox.expose(8000)
        sandbox.close()
    sandboxes.clear()
    left: dict[str, Any] = {}

    def is_clean() -> bool:
        left.clear()
        shown = _shown()
        left.update({what: found for what, found in shown.items() if found != before[what]})
        left.update({place: pids for place in places if (pids := _living_in(place))})
        return not left

    until(is_clean, 10)
    for descriptor in places.values():
        os.close(descriptor)
    return {"places": len(places), "left": left}


def _tentative() -> bool:
    """Whether the kernel still looks for others with an address of ours: routes come after that."""
    lines = Path("/proc/net/if_inet6").read_text().splitlines()
    return any(int(line.split()[4], 16) & _IFA_F_TENTATIVE for line in lines)


def _shown() -> dict[str, list[str]]:
    """What this host's kernel shows of listeners, routes and gateways."""
    found = {"gateways": _gateways()}
    for name in ("tcp", "tcp6", "udp", "udp6"):
        lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        found[name] = sorted(words[1] for words in map(str.split, lines) if words[3] in ("0A", "07"))
    for name in ("route", "ipv6_route"):
        routes = [line.split()[0] for line in Path(f"/proc/net/{name}").read_text().splitlines()]
        # The kernel makes routes of links and groups by itself, when it has time.
        found[name] = sorted(route for route in routes if not route.startswith(("fe80", "ff00")))
    return found


def _gateways() -> list[str]:
    """The gateways that this process has started."""
    ours = [b"staddle/network/gateway/__main__.py", b"%d" % os.getpid()]
    return [pid for pid in _processes() if [word[-27:] for word in _words(pid)[-2:]] == ours]


def _living_in(place: str) -> list[str]:
    """The processes whose network namespace this is."""
    found = []
    for pid in _processes():
        try:
            if os.readlink(f"/proc/{pid}/ns/net") == place:
                found.append(pid)
        except OSError:
            continue
    return found


def _processes() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdecimal()]


def _words(pid: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return []


def _offer(directory: Path) -> Path:
    """The files that are served, and a certificate that clients trust; it is its own authority."""
    www, trusted = directory / "www", directory / "certificates"
    www.mkdir()
    trusted.mkdir()
    network_offers.page(www)
    build = ["gcc", "-static", "-x", "c", "-", "-o", str(directory / "workspace" / "fetch")]
    subprocess.run(build, input=STATIC, text=True, check=True, stderr=subprocess.DEVNULL)
    network_offers.repository(www, directory / "work")
    network_offers.wheel(www)
    network_offers.npm_package(www, NAME)
    made = certificate_for(directory, NAME, ANOTHER, "localhost", addresses=("127.0.0.1", PUBLIC, OTHER))
    public = directory / "cert.pem"
    found = ["openssl", "x509", "-noout", "-hash", "-in", str(public)]
    number = subprocess.run(found, check=True, capture_output=True, text=True).stdout.strip()
    for name in ("ca-certificates.crt", f"{number}.0"):
        (trusted / name).write_bytes(public.read_bytes())
    return made


def _become(directory: Path) -> None:
    """Enter the namespaces. The ids stay what they are, so that sandboxes are started as always."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", CLONE_NEWNET | CLONE_NEWNS | (CLONE_NEWUSER if uid else 0))
    if uid:
        map_ids(uid, gid, uid, gid)
    connect_to_internet()
    if uid:  # a program that is started has no rights any more
        Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
    etc = directory / "etc"
    etc.mkdir()
    (etc / "resolv.conf").write_text(f"nameserver {PUBLIC}\n")
    accounts = f"git:x:{uid}:{gid}::{directory / 'home'}:/bin/sh\n"
    if uid != _DATABASE_USER:
        accounts += f"database:x:{_DATABASE_USER}:{_DATABASE_USER}::/:/bin/sh\n"
    (etc / "passwd").write_text(accounts)
    mount(None, "/", flags=MS_REC | MS_SLAVE)
    for name in ("resolv.conf", "passwd"):
        mount(str(etc / name), os.path.realpath(f"/etc/{name}"), flags=MS_BIND)
    mount(str(directory / "certificates"), "/etc/ssl/certs", flags=MS_BIND)


def _shells(directory: Path) -> None:
    """sshd, for the one account and the one key that is in the workspace."""
    home, key = directory / "home", directory / "workspace" / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    (home / ".ssh").mkdir(mode=0o700, parents=True)
    home.chmod(0o700)
    (home / ".ssh/authorized_keys").write_bytes(key.with_suffix(".pub").read_bytes())
    (home / ".ssh/authorized_keys").chmod(0o600)
    made = str(directory / "hostkey")
    subprocess.run(["dropbearkey", "-t", "ed25519", "-f", made], check=True, capture_output=True)
    words = ["/usr/sbin/dropbear", "-F", "-E", "-s", "-r", made, "-p", "22", "-P", str(directory / "pid")]
    _server(directory / "ssh.log", words)


def _database(directory: Path) -> None:
    """PostgreSQL, which does not run as root: there it has another id, in a namespace of its own."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
    data, log = directory / "data", directory / "database.log"
    data.mkdir(mode=0o700)

    def work() -> None:
        uid, gid = os.geteuid(), os.getegid()
        call("unshare", CLONE_NEWIPC | CLONE_NEWUSER)
        map_ids(uid, gid, uid or _DATABASE_USER, gid or _DATABASE_USER)
        initdb = [str(programs / "initdb"), "-D", str(data), "-U", "me", "-A", "trust", "--no-sync"]
        initdb += ["--locale=C", "--wal-segsize=1", "--no-instructions"]
        with log.open("w") as file:
            subprocess.run(initdb, check=True, stdout=file, stderr=file)
        with (data / "pg_hba.conf").open("a") as file:
            file.write("host all all 0.0.0.0/0 trust\n")
        options = ["-h", "0.0.0.0", "-k", "", "-c", "dynamic_shared_memory_type=sysv", "-c", "fsync=off"]
        _become_program(log, [str(programs / "postgres"), "-D", str(data), *options])

    apart(work)


def _server(log: Path, words: list[str]) -> None:
    apart(lambda: _become_program(log, words))


def _become_program(log: Path, words: list[str]) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, to in enumerate((null, descriptor, descriptor)):
        os.dup2(to, number)
    os.execv(words[0], words)  # noqa: S606


def _is_there(where: tuple[str, int]) -> bool:
    with socket.socket() as made:
        return made.connect_ex(where) == 0


def _last_words(directory: Path) -> str:
    return "".join(path.read_text() for path in directory.glob("*.log"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
