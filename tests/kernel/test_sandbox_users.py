"""`user=` by name or number, where their ids are mapped; and accounts that packages make inside."""

from __future__ import annotations

import asyncio
import io
import os
import struct
import tarfile
from collections.abc import Iterator

import pytest

from staddle import AsyncSandbox, Identity, Sandbox
from staddle.errors import InvalidCall, RootUnavailable, UserUnavailable
from staddle.inside.agent.confinement import CALLS, program
from staddle.linux.syscalls import AUDIT_ARCH, COLUMN, NUMBERS
from tests.support.waiting import until

pytestmark = pytest.mark.both_users

LOOK = "id -un; id -G; echo $HOME $USER; pwd; grep CapEff /proc/self/status; echo opened > /dev/stdout"


@pytest.fixture(scope="module")
def sb() -> Iterator[Sandbox]:
    with Sandbox(backend="namespaces") as made:
        assert made.run("groupadd -g 2000 crew && useradd -u 1234 -G crew bob", user="root").ok
        yield made


def has_ids(sandbox: Sandbox) -> bool:
    """Whether this sandbox has more than one id: that of an ordinary user has not."""
    return sandbox._inside.ids > 1


needs_ids = pytest.mark.needs_root  # an ordinary user's sandbox has one id


@needs_ids
def test_a_user_by_name_or_number(sb: Sandbox) -> None:
    for user in ("bob", 1234, "1234"):
        got = sb.run(LOOK, user=user)
        assert got.stdout == (
            "bob\n1234 2000\n/home/bob bob\n/workspace\nCapEff:\t0000000000000000\nopened\n"
        ), got.stderr
    assert sb.exec(["id", "-u"], user="bob").stdout == "1234\n"
    assert sb.exec(["id", "-u"], user=4321).stdout == "4321\n"  # a number needs no account
    assert sb.run("id -un").stdout == "user\n"
    assert sb.run("id -un", user=1000).stdout == sb.run("id -un", user="user").stdout == "user\n"


def test_roots_streams_can_be_opened_by_name(sb: Sandbox) -> None:
    assert sb.run("echo opened > /dev/stdout; echo too > /dev/stderr", user=0).stderr == "too\n"


@needs_ids
def test_everything_takes_a_user(sb: Sandbox) -> None:
    process = sb.start("id -un; sleep 1000", user="bob")
    assert until(lambda: str(process.output()) == "bob\n")
    process.kill()
    with sb.stream("id -un", user="bob") as stream:
        assert "".join(chunk.text for chunk in stream) == "bob\n"
    with sb.session("of bob", user="bob") as session:
        assert session.run("x=1; id -un").stdout == "bob\n"
        assert session.run("echo $x").stdout == "1\n"
        with pytest.raises(InvalidCall, match="not root's"):
            sb.session("of bob", user="root")
    with sb.terminal(["sh", "-c", "id -un > $(tty)"], user="bob") as terminal:
        terminal.wait()
        assert terminal.read() == b"bob\r\n"


@needs_ids
def test_files_and_tars_of_a_user_are_its_own(sb: Sandbox) -> None:
    bob = sb.files.as_user("bob")
    bob.write("/tmp/bobs", "hers")
    assert sb.run("stat -c %U /tmp/bobs").stdout == "bob\n"
    sb.files.as_user(0).write("/tmp/roots", "private")
    sb.run("chmod 600 /tmp/roots", user="root")
    with pytest.raises(PermissionError):
        bob.read("/tmp/roots")
    assert sb.files.as_user("root").read("/tmp/roots") == "private"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("in-the-tar"), io.BytesIO(b""))
    packed.seek(0)
    sb.upload_tar(packed, "/tmp/unpacked", user="bob")
    assert sb.run("stat -c %U /tmp/unpacked/in-the-tar").stdout == "bob\n"
    out = io.BytesIO()
    with pytest.raises(PermissionError):
        sb.download_tar(out, "/tmp/roots", user="bob")


def test_a_user_that_does_not_exist_is_an_error(sb: Sandbox) -> None:
    with pytest.raises(InvalidCall, match="no user 'admin'"):
        sb.run("true", user="admin")
    for wrong in ("", True, 1.5):
        with pytest.raises(InvalidCall, match="user is"):
            sb.run("true", user=wrong)  # type: ignore[arg-type]


def test_a_user_without_an_id_is_unavailable(sb: Sandbox) -> None:
    far = 70000 if has_ids(sb) else "bob"
    with pytest.raises(UserUnavailable, match="not mapped" if has_ids(sb) else "one id"):
        sb.run("true", user=far)
    with pytest.raises(UserUnavailable):
        sb.files.as_user(far)
    with Sandbox(backend="native") as plain, pytest.raises(UserUnavailable):
        plain.run("true", user=4321)
    assert issubclass(RootUnavailable, UserUnavailable)


@needs_ids
def test_a_hostile_passwd_makes_nobody_root() -> None:
    with Sandbox(backend="namespaces") as sb:
        lines = "evil:x:0:0::/:/bin/sh\\nbig:x:4294967295:0::/:/bin/sh\\nodd:x:-1:0::/:/bin/sh\\nshort:x\\n"
        assert sb.run(f"printf '{lines}' >> /etc/passwd", user="root").ok
        for name in ("evil", "big", "odd", "short"):
            with pytest.raises((InvalidCall, UserUnavailable)):
                sb.run("true", user=name)


@needs_ids
def test_the_session_may_be_root_and_others_are_who_they_are() -> None:
    with Sandbox(backend="namespaces", identity=Identity(uid=0)) as sb:
        assert sb.run("useradd -u 1234 bob").ok
        assert sb.run("id -u; id -u nobody", user="bob").stdout == "1234\n65534\n"
        assert sb.run("id -u", user="root").stdout == "0\n"


@needs_ids
def test_the_awaited_face_has_users() -> None:
    async def work() -> None:
        async with AsyncSandbox(backend="namespaces") as sb:
            assert (await sb.run("id -u", user=4321)).stdout == "4321\n"
            assert (await sb.exec(["id", "-u"], user="nobody")).stdout == "65534\n"
            await sb.files.as_user(4321).write("/tmp/theirs", "x")
            assert (await sb.run("stat -c %u /tmp/theirs")).stdout == "4321\n"

    asyncio.run(work())


# ---------------------------------------------------------------- accounts that packages make


MAKE = r"""
make() {
    mkdir -p $1/DEBIAN $1/usr/share/$1 && echo x > $1/usr/share/$1/file
    printf 'Package: %s\nVersion: 1\nArchitecture: all\nMaintainer: x <x@x>\n' $1 > $1/DEBIAN/control
    echo 'Description: x' >> $1/DEBIAN/control
    printf '#!/bin/sh\nset -e\n%s\n' "$2" > $1/DEBIAN/postinst
    chmod 755 $1/DEBIAN/postinst && dpkg-deb --root-owner-group -b $1 $1.deb > /dev/null
}
make plain true
make service 'adduser --quiet --system --group --home /var/lib/service service
chown -R service:service /usr/share/service
install -d -o service -g adm -m 2750 /var/log/service
su -s /bin/sh service -c true'
"""


@pytest.fixture(scope="module", params=["once", "always"])
def root(request: pytest.FixtureRequest) -> Iterator[tuple[Sandbox, str | None]]:
    always = request.param == "always"
    with Sandbox(backend="namespaces", identity=Identity(uid=0) if always else None) as sb:
        user = None if always else "root"
        sb.run(MAKE, user=user, check=True)
        yield sb, user


@pytest.mark.slow
def test_a_package_with_an_account_is_installed_and_the_next_one_too(
    root: tuple[Sandbox, str | None],
) -> None:
    sb, user = root
    for name in ("service", "plain"):
        sb.run(f"dpkg -i {name}.deb", user=user, check=True)
    assert (
        sb.run("dpkg --audit; id -un service; ls /usr/share/service", user=user).stdout == "service\nfile\n"
    )


def test_files_can_be_given_to_anybody(root: tuple[Sandbox, str | None]) -> None:
    sb, user = root
    line = "touch f && chown 12:34 f && tar cf - f | tar xf - && cp -a f g && chgrp 56 g && stat -c %u f g"
    owner = "0" if os.geteuid() else "12"  # an ordinary user's sandbox has one id
    assert sb.run(line, user=user, check=True).stdout == f"{owner}\n{owner}\n"


def test_the_sandboxs_user_still_cannot() -> None:
    with Sandbox(backend="namespaces") as sb:
        sb.run("true", user="root", check=True)
        assert sb.run("touch f; chown 0 f").exit_code == 1
        assert sb.exec(["python3", "-c", "import os; os.setuid(0)"]).exit_code == 1


@pytest.mark.parametrize("processor", COLUMN)
def test_the_filter_answers_these_calls_and_no_others(processor: str) -> None:
    rows = list(struct.iter_unpack("=HBBI", program(processor)))

    def answer(architecture: int, number: int) -> int:
        at, loaded = 0, 0
        while True:
            code, yes, no, value = rows[at]
            if code == 0x06:
                return int(value)
            if code == 0x20:
                loaded = architecture if value == 4 else number
            at += 1 + ((yes if loaded == value else no) if code == 0x15 else 0)

    these = {NUMBERS[name][COLUMN[processor]] for name in CALLS} - {None}
    for number in range(500):
        assert answer(AUDIT_ARCH[processor], number) == (0x50000 if number in these else 0x7FFF0000)
        assert answer(7, number) == 0x7FFF0000
