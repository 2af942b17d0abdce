"""The file that programs inside read says where our resolver is."""

from __future__ import annotations

from staddle.network.namespace.from_policy import RESOLVER
from staddle.policy.system import RESOLV_CONF


def test_the_resolver_is_where_programs_look_for_it() -> None:
    assert RESOLV_CONF.splitlines()[0] == f"nameserver {RESOLVER}".encode()
