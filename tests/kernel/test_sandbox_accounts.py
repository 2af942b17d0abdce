"""Root inside installs packages that make accounts, and unpacks archives with many owners."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest

from staddle import Identity, Sandbox
from staddle.inside.agent.confinement import CALLS, program
from staddle.linux.syscalls import AUDIT_ARCH, COLUMN, NUMBERS

pytestmark = pytest.mark.both_users

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
