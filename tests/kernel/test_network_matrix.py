"""Every client with every setting: what is allowed works with nothing to configure, all else fails at once.

At once means: no client here has a time limit of its own, and none waits for what is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.network_clients import SCRIPTS
from tests.support.network_host import ANOTHER, NAME, Host
from tests.support.network_offers import WORD
from tests.support.network_world import OTHER, PUBLIC

#: Who runs it is behind the gateway: what a client meets there is the same.
pytestmark = pytest.mark.same_for_everyone

#: ICMP is not for sandboxes, whatever their network: the system call filter has no socket for it.
LANDLOCK = "allow, landlock"
CLIENTS = [client for client in SCRIPTS if client != "ping"]

every_client = pytest.mark.parametrize("client", CLIENTS)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with Host(tmp_path_factory.mktemp("host")) as made:
        yield made


def reached(host: Host, setting: str, client: str, name: str) -> None:
    done = host.fetch(setting, client, name)
    assert WORD in done["out"], done
    assert done["code"] == 0, done


def refused(host: Host, setting: str, client: str, name: str) -> dict[str, Any]:
    done = host.fetch(setting, client, name)
    assert not done["late"], done
    assert done["code"] != 0, done
    assert WORD not in done["out"]
    return done


@every_client
def test_denied_means_that_nobody_is_there(host: Host, client: str) -> None:
    refused(host, "deny", client, NAME)


@every_client
def test_ports_of_the_hosts_loopback_are_as_on_the_host(host: Host, client: str) -> None:
    reached(host, "loopback", client, "localhost")


@every_client
def test_a_name_on_the_list_is_reached(host: Host, client: str) -> None:
    reached(host, "allow", client, NAME)


@every_client
def test_a_name_that_is_not_on_the_list_does_not_exist(host: Host, client: str) -> None:
    assert refused(host, "allow", client, ANOTHER)["refused"] == [ANOTHER]


@every_client
def test_without_a_network_of_its_own_a_sandbox_reaches_a_name_on_the_list(host: Host, client: str) -> None:
    reached(host, LANDLOCK, client, NAME)


@every_client
def test_without_a_network_of_its_own_no_other_name_exists(host: Host, client: str) -> None:
    refused(host, LANDLOCK, client, ANOTHER)


@every_client
def test_an_open_network_is_the_hosts(host: Host, client: str) -> None:
    reached(host, "open", client, NAME)


@pytest.mark.parametrize("setting", ["deny", "loopback", "allow", "open"])
def test_nobody_pings(host: Host, setting: str) -> None:
    refused(host, setting, "ping", "127.0.0.1")


@pytest.mark.parametrize("client", ["curl", "curl over TLS", "psql", "/dev/tcp", "a static program"])
def test_an_address_is_not_a_way_around(host: Host, client: str) -> None:
    for address in (PUBLIC, OTHER):
        refused(host, "deny", client, address)
        refused(host, "loopback", client, address)
        found = refused(host, "allow", client, address)["refused"]
        assert [what.partition(":")[0] for what in found] == [address]
    refused(host, "allow", client, "localhost")
    refused(host, "loopback", client, NAME)


def test_no_client_was_told_of_a_proxy(host: Host) -> None:
    assert "proxy" not in host.run("allow", "env")["out"].lower()


def test_nothing_is_left_after_close(host: Host) -> None:
    for setting in ("deny", "loopback", "allow", "open"):
        host.run(setting, "true")
    found = host.close_sandboxes()
    assert found["places"] == 3
    assert found["left"] == {}
