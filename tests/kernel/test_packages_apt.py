"""Debian's packages install inside, by apt and dpkg as they are, whoever runs it; the host has none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Identity, Network, Policy, Sandbox
from staddle.packages.installed import fold
from tests.kernel.test_packages import host as _host
from tests.kernel.test_packages import names
from tests.support.package_indexes import Indexes

host = _host

#: What a package's own scripts try: to write where the sandbox ends, and where only the host has something.
POSTINST = """#!/bin/sh
for place in {outside} /proc/sys/kernel/hostname /sys/kernel/uevent_helper /dev/sda /dev/.staddle/planted; do
    echo planted > $place && echo "wrote $place" >> /var/log/through
done 2>/dev/null
echo configured > /etc/chatty-was-here
chown daemon:mail /etc/chatty-was-here
"""


#: Every Debian has it: what is replaced inside is the host's, and nobody's there.
HOSTNAME = ("apt", "hostname", "99.0")


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Indexes]:
    """A signed repository: two versions of a package, one with settings, one that means harm."""
    outside = tmp_path_factory.mktemp("outside")
    with Indexes(tmp_path_factory.mktemp("indexes")) as made:
        for version in ("1.0", "2.0"):
            made.deb("greeter", version, {"usr/bin/greeter": f"#!/bin/sh\necho greetings {version}\n"}, {})
        made.deb("settled", "1.0", {"etc/settled.conf": "value=1\n"}, {"conffiles": "/etc/settled.conf\n"})
        script = POSTINST.format(outside=outside / "planted")
        made.deb("chatty", "0.1", {"usr/bin/chatty": "#!/bin/sh\necho hello\n"}, {"postinst": script})
        made.deb("hostname", "99.0", {"bin/hostname": "#!/bin/sh\necho replaced\n"}, {})
        made.sign()
        yield made
        assert os.listdir(outside) == []


def opened(indexes: Indexes, *, always: bool = False) -> Sandbox:
    """A sandbox whose apt knows the repository and no other, whatever the host is configured with."""
    policy = Policy.agent().with_network(Network.loopback(ports=[indexes.port]))
    sandbox = Sandbox(policy=policy, backend="namespaces", identity=Identity(uid=0) if always else None)
    sandbox.run(
        "rm -rf /etc/apt/sources.list* /var/lib/apt/lists/* && mkdir -p /etc/apt/keyrings"
        f" && echo 'deb [signed-by=/etc/apt/keyrings/test.asc] {indexes.url}/debian test main'"
        " > /etc/apt/sources.list && cat > /etc/apt/keyrings/test.asc",
        stdin=indexes.key,
        user="root",
        check=True,
    )
    return sandbox


def files(sandbox: Sandbox) -> set[str]:
    """What was changed that is of no package, but for what `opened` has done."""
    rest = fold(sandbox.diff(everything=True))[1]
    return {change.path for change in rest if not change.path.startswith("/etc/apt/")}


@pytest.mark.slow
@pytest.mark.usefixtures("host")
def test_a_command_as_root_installs_upgrades_and_removes(indexes: Indexes) -> None:
    with opened(indexes) as sb:

        def apt(words: str) -> None:
            sb.run(f"apt-get {words}", user="root", check=True, timeout=120)

        apt("update")
        apt("install -y greeter=1.0 settled")
        assert sb.run("greeter; cat /etc/settled.conf; id -un").stdout == "greetings 1.0\nvalue=1\nuser\n"
        if os.geteuid() == 0:  # else there is one id for both
            assert not sb.run("touch /usr/bin/mine").ok
        before = sb.snapshot("before the upgrade")
        apt("-y upgrade")
        assert sb.run("greeter; hostname").stdout == "greetings 2.0\nreplaced\n"
        assert names(sb) == [("apt", "greeter", "2.0"), HOSTNAME, ("apt", "settled", "1.0")]
        assert files(sb) == set()
        (fork,) = sb.fork()
        with fork:
            assert fork.run("greeter").stdout == "greetings 2.0\n"
            fork.run("apt-get -y purge settled", user="root", check=True, timeout=120)
            assert names(fork) == [("apt", "greeter", "2.0"), HOSTNAME]
            assert not fork.files.exists("/etc/settled.conf")
        sb.restore(before)
        assert sb.run("greeter; hostname").stdout == "greetings 1.0\nsandbox\n"
        apt("remove -y greeter")
        assert sb.run("greeter").exit_code == 127
        assert names(sb) == [("apt", "settled", "1.0")]
        sb.reset()
        assert names(sb) == []
        assert not sb.files.exists("/etc/settled.conf")


@pytest.mark.slow
@pytest.mark.usefixtures("host")
def test_a_session_of_root_types_it_as_on_any_machine(indexes: Indexes) -> None:
    with opened(indexes, always=True) as sb:
        sb.run("apt update && apt install -y greeter=1.0", check=True, timeout=120)
        assert sb.run("greeter").stdout == "greetings 1.0\n"
        sb.run(
            "cd /tmp && apt-get download greeter=2.0 && dpkg -i greeter_2.0_all.deb", check=True, timeout=120
        )
        assert sb.run("greeter; dpkg -s greeter | grep ^Version").stdout == "greetings 2.0\nVersion: 2.0\n"
        assert names(sb) == [("apt", "greeter", "2.0")]
        assert files(sb) == {"/tmp/greeter_2.0_all.deb"}
        assert sb.diff() == []


@pytest.mark.slow
@pytest.mark.usefixtures("host")
def test_what_a_package_does_when_it_is_installed_stays_inside(indexes: Indexes) -> None:
    with opened(indexes) as sb:
        sb.run("apt-get update && apt-get install -y chatty", user="root", check=True, timeout=120)
        assert sb.run("chatty; cat /etc/chatty-was-here").stdout == "hello\nconfigured\n"
        owner = "daemon mail" if os.geteuid() == 0 else "root root"  # an ordinary user has one id to give
        assert sb.run("stat -c '%U %G' /etc/chatty-was-here", user="root").stdout == f"{owner}\n"
        assert not sb.files.exists("/var/log/through")
        assert files(sb) == {"/etc/chatty-was-here"}
    assert not os.path.exists("/etc/chatty-was-here")


@pytest.mark.slow
def test_a_repository_that_was_tampered_with_is_refused(indexes: Indexes, tmp_path: Path) -> None:
    """By apt itself, which asks the same questions as outside."""
    debian = indexes.place / "debian"
    kept = tmp_path / "kept"
    shutil.copytree(debian, kept)
    try:
        with opened(indexes) as sb:
            sb.run("apt-get update", user="root", check=True, timeout=120)
            package = debian / "pool" / "greeter_2.0_all.deb"
            package.write_bytes(package.read_bytes()[:-1] + b"!")
            changed = sb.run("apt-get install -y greeter", user="root", timeout=120)
            assert not changed.ok
            assert "Hash Sum mismatch" in changed.stderr
            signed = debian / "dists/test/InRelease"
            signed.write_text(signed.read_text().replace("Origin: test", "Origin: best"))
            said = sb.run("rm -rf /var/lib/apt/lists/*; apt-get update", user="root", timeout=120)
            assert "BADSIG" in said.stdout + said.stderr or "invalid" in said.stdout + said.stderr
            assert not sb.run("apt-get install -y greeter", user="root", timeout=120).ok
            assert names(sb) == []
    finally:
        shutil.rmtree(debian)
        kept.rename(debian)
