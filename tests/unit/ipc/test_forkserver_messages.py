"""What a fork server is told arrives whole, or not at all."""

from __future__ import annotations

import pytest

from staddle.ipc.forkserver_messages import (
    ForkServerConfig,
    SandboxRequest,
    decode_config,
    decode_request,
    encode,
)
from staddle.ipc.wire import Malformed
from staddle.mounts.operations import Bind, Empty, encode_operations

VIEW = encode_operations((Empty("/", 0o755, 4096, ""), Bind("/a b\n", True, "", source="/x'\"é")))
CONFIG = ForkServerConfig(
    template=VIEW,
    own=(),
    uid=1000,
    gid=1000,
    host=b"sandbox",
    base=-1,
    count=1,
    network=0,
    reach=((b"gate", b"abcd", 8, b"\0\1"),),
    scoped=0,
    rlimits=((4, 1, 1),),
    filter=b"x" * 16,
    bash=b"/bin/bash",
    environment=(b"A=b\n",),
    directory=b"/",
    spares=2,
)
REQUEST = SandboxRequest(b"/home/a b", 1, 2, b"/u", b"/w", (b"/l",), VIEW)


def test_a_blueprint_arrives_as_it_was() -> None:
    assert decode_config(encode(CONFIG)) == CONFIG


def test_a_request_arrives_as_it_was() -> None:
    assert decode_request(encode(REQUEST)) == REQUEST
    assert REQUEST.operations()[1] == Bind("/a b\n", True, "", source="/x'\"é")


def test_trees_arrive_with_their_layers() -> None:
    trees = ((b"/", b"/u", b"/w", b"/a\0/b"), (b"/usr", b"/u", b"/w", b"/c"))
    assert decode_request(encode(REQUEST.replace(trees=trees, alone=1))).trees == trees
    made = CONFIG.replace(places=(b"/tmp", b"/home/user"), skeleton=b"/store/skeleton")
    assert decode_config(encode(made)) == made


@pytest.mark.parametrize("cut", [0, 5, 20, 40, -1])
def test_what_is_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(Malformed):
        decode_config(encode(CONFIG)[:cut])
    with pytest.raises(Malformed):
        decode_request(encode(REQUEST)[:cut])


def test_one_is_not_taken_for_the_other() -> None:
    with pytest.raises(Malformed):
        decode_request(encode(CONFIG))


def test_an_operation_that_is_none_is_refused() -> None:
    with pytest.raises(Malformed):
        decode_request(encode(REQUEST.replace(view=((b"bind", b"relative", 0, 0, 0, b""),)))).operations()
    with pytest.raises(Malformed):
        decode_request(encode(REQUEST.replace(view=((b"bind", b"/a", 0, 0, 0, b"relative"),)))).operations()


def test_who_has_only_one_id_is_called_zero_by_the_fork_server() -> None:
    assert CONFIG.whose == 0
    assert CONFIG.replace(base=1 << 30, count=1 << 16).whose == 1000
    assert CONFIG.replace(base=1 << 30, count=1).whose == 0
