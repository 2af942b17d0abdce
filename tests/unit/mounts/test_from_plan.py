"""From a plan to operations: what is shown, hidden, pinned, and in which order."""

from __future__ import annotations

import itertools
import random

import pytest

from staddle import backends
from staddle.errors import PolicyNotEnforceable
from staddle.mounts.from_plan import Layout, lay_out
from staddle.mounts.operations import (
    OVERLAY,
    Bind,
    Devices,
    Directory,
    Empty,
    File,
    Mask,
    Overlay,
    ProcMount,
    Seal,
    Symlink,
    decode_operations,
)
from staddle.policy.plan import Layered, Link, Plan, Socket, Text
from tests.unit.mounts.plans import WHY, DictHost, guard, hidden, plan, read, scratch, write


def laid_out(host: DictHost | None = None, **fields: object) -> Layout:
    return lay_out(plan(**fields), host or DictHost())


def of_plan(layout: Layout) -> list[object]:
    """The operations that the plan asked for, without those of every sandbox."""
    return [op for op in layout.operations if op.origin == WHY]


def test_a_sandbox_of_nothing_has_a_root_devices_and_processes() -> None:
    kinds = [type(op) for op in laid_out().operations]
    assert kinds == [Empty, *[Directory] * 3, Devices, Empty, ProcMount, Empty, Seal, Seal]
    first, *_, last = laid_out().operations
    assert (first.path, last.path) == ("/", "/")


def test_shared_memory_is_there_once() -> None:
    layout = laid_out(scratch=(scratch("/dev/shm", size=7),))
    assert [(op.path, op.size) for op in layout.operations if op.path == "/dev/shm"] == [("/dev/shm", 7)]


def test_what_proc_tells_of_the_host_is_masked_where_it_exists() -> None:
    host = DictHost({"/proc/keys": None})
    assert [op.path for op in laid_out(host).operations if isinstance(op, Mask)] == ["/proc/keys"]
    hiding = [op for op in laid_out(host).operations if op.path == "/proc/1"]
    assert hiding == [Empty("/proc/1", 0, 4096, "sandbox")]


def test_a_file_of_a_private_home_may_be_changed_and_one_of_proc_is_covered() -> None:
    host = DictHost({"/proc/meminfo": None})
    texts = (
        Text("/home/user/.bashrc", b"x", WHY, 0o644),
        Text("/proc/meminfo", b"y", WHY),
        Text("/proc/no", b"", WHY),
    )
    layout = laid_out(host, scratch=(scratch("/home/user"),), texts=texts)
    assert [op for op in of_plan(layout) if isinstance(op, File)] == [
        File("/home/user/.bashrc", b"x", WHY, mode=0o644),
        File("/proc/meminfo", b"y", WHY, below=True),
    ]
    paths = [op.path for op in layout.operations]
    assert paths.index("/proc") < paths.index("/proc/meminfo")
    assert plan(scratch=(scratch("/home/user"),), texts=texts).access("/home/user/.bashrc") == "write"


def test_grants_links_texts_and_sockets_in_the_fresh_root() -> None:
    layout = laid_out(
        grants=(read("/usr"), write("/w", directory=False)),
        links=(Link("/bin", "usr/bin", WHY),),
        texts=(Text("/etc/hosts", b"x", WHY),),
        sockets=(Socket("/run/a.sock", True, WHY), Socket("/run/later.sock", False, WHY)),
    )
    assert of_plan(layout) == [
        Symlink("/bin", "usr/bin", WHY),
        File("/etc/hosts", b"x", WHY),
        Bind("/run/a.sock", False, WHY, optional=True),
        Bind("/usr", False, WHY),
        Bind("/w", True, WHY),
    ]


def test_parents_come_before_children_whatever_the_spelling() -> None:
    paths = ["/a/b", "/a", "/a-b", "/a b/c", "/a.b", "/a/b/c"]
    layout = laid_out(
        grants=tuple(itertools.chain((write(p) for p in paths[::2]), (read(p) for p in paths[1::2])))
    )
    seen = [op.path for op in of_plan(layout)]
    for path in seen:
        above = [p for p in seen if path.startswith(p + "/")]
        assert all(seen.index(p) < seen.index(path) for p in above)


@pytest.mark.parametrize(
    ("outer", "inner", "shown"),
    [
        (read, read, [("/d", False)]),
        (write, write, [("/d", True)]),
        (write, read, [("/d", True)]),
        (read, write, [("/d", False), ("/d/i", True)]),
    ],
)
def test_a_grant_in_a_grant_adds_what_it_can(outer, inner, shown) -> None:  # type: ignore[no-untyped-def]
    layout = laid_out(grants=(outer("/d"), inner("/d/i")))
    assert [(op.path, op.writable) for op in of_plan(layout)] == shown


def test_a_private_directory_covers_a_grant_and_a_grant_below_it_shows() -> None:
    layout = laid_out(grants=(read("/"), write("/tmp/w")), scratch=(scratch("/tmp"),))
    assert of_plan(layout) == [
        Bind("/", False, WHY),
        Empty("/tmp", 0o1777, 1 << 20, WHY, below=True),
        Bind("/tmp/w", True, WHY),
    ]


def test_directories_on_the_way_to_a_grant_in_a_private_directory_take_no_files() -> None:
    layout = laid_out(
        grants=(write("/tmp/way/project/out"), read("/tmp/way/in")),
        scratch=(scratch("/tmp"),),
        texts=(Text("/tmp/way/project/t", b"", WHY),),
        sockets=(Socket("/tmp/s/socket", True, WHY),),
    )
    assert of_plan(layout) == [
        Empty("/tmp", 0o1777, 1 << 20, WHY),
        Directory("/tmp/s", 0o555, WHY),
        Bind("/tmp/s/socket", False, WHY, optional=True),
        Directory("/tmp/way", 0o555, WHY),
        Bind("/tmp/way/in", False, WHY),
        Directory("/tmp/way/project", 0o555, WHY),
        Bind("/tmp/way/project/out", True, WHY),
        File("/tmp/way/project/t", b"", WHY),
    ]


def test_a_private_directory_in_a_private_directory_begins_anew() -> None:
    layout = laid_out(grants=(read("/tmp/a/b/c/d"),), scratch=(scratch("/tmp"), scratch("/tmp/a/b")))
    assert [op.path for op in of_plan(layout) if isinstance(op, Directory)] == ["/tmp/a", "/tmp/a/b/c"]


def test_the_private_home_stays_writable_all_over() -> None:
    """Programs write below ~/.config and ~/.local as they like; something is granted there often."""
    home = "/home/user"
    layout = laid_out(grants=(read(f"{home}/.config/tool"),), scratch=(scratch(home),))
    assert not [op for op in of_plan(layout) if isinstance(op, Directory)]


def test_elsewhere_the_directories_on_the_way_are_sealed_with_what_they_are_in() -> None:
    layout = laid_out(grants=(read("/data/a/b"),))
    assert of_plan(layout) == [Bind("/data/a/b", False, WHY)]
    assert isinstance(layout.operations[-1], Seal)


def test_a_guard_is_read_only_and_every_directory_above_it_is_pinned() -> None:
    layout = laid_out(grants=(write("/w"),), guards=(guard("/w/a/b/.git/hooks"), guard("/w/a/.envrc", False)))
    assert of_plan(layout) == [
        Bind("/w", True, WHY),
        Bind("/w/a", True, WHY, below=True, again=True),
        Bind("/w/a/.envrc", False, WHY, below=True, again=True),
        Bind("/w/a/b", True, WHY, below=True, again=True),
        Bind("/w/a/b/.git", True, WHY, below=True, again=True),
        Bind("/w/a/b/.git/hooks", False, WHY, below=True, again=True),
    ]


def test_a_write_grant_inside_a_guard_stays_writable() -> None:
    layout = laid_out(grants=(write("/w"), write("/w/.git/x")), guards=(guard("/w/.git"),))
    assert [(op.path, op.writable) for op in of_plan(layout)] == [
        ("/w", True),
        ("/w/.git", False),
        ("/w/.git/x", True),
    ]


def test_hidden_in_write_is_pinned_hidden_in_read_need_not_be() -> None:
    layout = laid_out(
        grants=(write("/w"), read("/r")),
        hidden=(hidden("/w/a/s"), hidden("/w/f", "file"), hidden("/r/a/s"), hidden("/r/a/f", "file")),
    )
    assert of_plan(layout) == [
        Bind("/r", False, WHY),
        Mask("/r/a/f", WHY),
        Empty("/r/a/s", 0, 4096, WHY, below=True),
        Bind("/w", True, WHY),
        Bind("/w/a", True, WHY, below=True, again=True),
        Empty("/w/a/s", 0, 4096, WHY, below=True),
        Mask("/w/f", WHY),
    ]


def test_nothing_below_what_is_hidden_is_shown() -> None:
    layout = laid_out(
        grants=(read("/r"), write("/r/s/w")),
        hidden=(hidden("/r/s"), hidden("/elsewhere"), hidden("/r/s/deeper")),
        guards=(guard("/r/s/w/.git"),),
        scratch=(scratch("/r/s/tmp"),),
        texts=(Text("/r/s/t", b"", WHY),),
        sockets=(Socket("/r/s/socket", True, WHY),),
    )
    assert of_plan(layout) == [Bind("/r", False, WHY), Empty("/r/s", 0, 4096, WHY, below=True)]


def test_deny_wins_at_the_same_path() -> None:
    layout = laid_out(
        grants=(read("/r"), write("/x")), hidden=(hidden("/r"), hidden("/x")), scratch=(scratch("/x"),)
    )
    assert of_plan(layout) == []


def test_a_missing_denied_path_in_a_writable_directory_is_not_held() -> None:
    layout = laid_out(grants=(write("/w"),), hidden=(hidden("/w/.env", "missing"),))
    assert [item.path for item in layout.unheld] == ["/w/.env"]


def test_a_missing_denied_path_in_a_readable_directory_is_held_by_rebuilding_it() -> None:
    host = DictHost({"/r": ["a", "d", "l", "s"], "/r/a": None, "/r/d": [], "/r/l": "to/there", "/r/s": None})
    layout = laid_out(
        host, grants=(read("/r"),), hidden=(hidden("/r/.config/x/y", "missing"), hidden("/r/s", "file"))
    )
    assert layout.unheld == ()
    assert of_plan(layout) == [
        Bind("/r", False, WHY),
        Empty("/r", 0o755, 1 << 20, WHY, below=True),
        Bind("/r/a", False, WHY, optional=True),
        Bind("/r/d", False, WHY, optional=True),
        Symlink("/r/l", "to/there", WHY),
        Seal("/r", WHY),
    ]


def test_what_is_granted_in_a_rebuilt_directory_keeps_its_access() -> None:
    host = DictHost({"/r": ["d", "tmp", "w"], "/r/d": [], "/r/w": [], "/r/tmp": []})
    layout = laid_out(
        host,
        grants=(read("/r"), write("/r/w"), write("/r/d/deep")),
        hidden=(hidden("/r/new", "missing"),),
        scratch=(scratch("/r/tmp"),),
    )
    assert [(op.path, getattr(op, "writable", None)) for op in of_plan(layout)] == [
        ("/r", False),
        ("/r", None),
        ("/r/d", False),
        ("/r/d/deep", True),
        ("/r/tmp", None),
        ("/r/w", True),
        ("/r", None),
    ]


def test_a_directory_that_cannot_be_listed_or_is_too_large_is_not_held() -> None:
    for tree in ({"/r": [f"f{n}" for n in range(600)]}, {"/r": []}):
        host = DictHost(tree)
        if not tree["/r"]:
            host.entries = lambda path: (_ for _ in ()).throw(PermissionError(path))  # type: ignore[method-assign]
        layout = laid_out(host, grants=(read("/r"),), hidden=(hidden("/r/.env", "missing"),))
        assert [item.path for item in layout.unheld] == ["/r/.env"]


def test_a_directory_nobody_may_enter_needs_no_holding() -> None:
    host = DictHost({"/r": ["d"], "/r/d": "not listed"})
    host.kind = lambda path: "directory" if path in ("/r", "/r/d") else None  # type: ignore[method-assign]
    host.searchable = lambda path: path != "/r/d"  # type: ignore[method-assign]
    layout = laid_out(host, grants=(read("/r"),), hidden=(hidden("/r/d/x", "missing"),))
    assert layout.unheld == ()
    assert of_plan(layout) == [Bind("/r", False, WHY)]


def test_a_file_in_the_way_of_a_missing_path_leaves_nothing_to_hold() -> None:
    host = DictHost({"/r": ["f"], "/r/f": None})
    layout = laid_out(host, grants=(read("/r"),), hidden=(hidden("/r/f/below", "missing"),))
    assert layout.unheld == ()
    assert of_plan(layout) == [Bind("/r", False, WHY)]


def test_a_thousand_denied_files_with_few_siblings_are_a_few_mounts() -> None:
    names = [f"s{n}" for n in range(1000)]
    host = DictHost({"/r": [*names, "kept"], "/r/kept": None})
    layout = laid_out(host, grants=(read("/r"),), hidden=tuple(hidden(f"/r/{n}", "file") for n in names))
    assert len(of_plan(layout)) == 4
    assert not any(isinstance(op, Mask) for op in layout.operations)


def test_a_few_denied_files_with_many_siblings_are_masked() -> None:
    names = [f"f{n}" for n in range(100)]
    host = DictHost({"/r": names})
    layout = laid_out(host, grants=(read("/r"),), hidden=tuple(hidden(f"/r/{n}", "file") for n in names[:20]))
    assert sum(isinstance(op, Mask) for op in layout.operations) == 20


def test_a_writable_directory_is_never_rebuilt() -> None:
    names = [f"s{n}" for n in range(100)]
    host = DictHost({"/w": names})
    layout = laid_out(host, grants=(write("/w"),), hidden=tuple(hidden(f"/w/{n}", "file") for n in names))
    assert sum(isinstance(op, Mask) for op in layout.operations) == 100


def test_a_text_covers_the_hosts_file_and_is_left_out_where_there_is_none() -> None:
    host = DictHost({"/etc/passwd": None, "/etc/resolv.conf": "../run/x"})
    texts = tuple(Text(f"/etc/{n}", b"", WHY) for n in ("passwd", "resolv.conf", "machine-id"))
    layout = laid_out(host, grants=(read("/etc"),), texts=texts)
    assert of_plan(layout) == [Bind("/etc", False, WHY), File("/etc/passwd", b"", WHY, below=True)]


def test_a_link_or_socket_that_a_grant_shows_is_not_made_again() -> None:
    layout = laid_out(
        grants=(read("/d"),), links=(Link("/d/l", "x", WHY),), sockets=(Socket("/d/s", True, WHY),)
    )
    assert of_plan(layout) == [Bind("/d", False, WHY)]


def test_nothing_is_mounted_through_a_link() -> None:
    with pytest.raises(PolicyNotEnforceable, match="'/bin' is a link"):
        laid_out(links=(Link("/bin", "/usr/bin", WHY),), grants=(read("/bin/x"),))


def test_proc_and_dev_are_the_sandboxs_own_whatever_is_granted() -> None:
    layout = laid_out(grants=(read("/proc"), read("/dev"), write("/proc/sys")))
    assert of_plan(layout) == []


def test_order_of_the_rules_does_not_matter() -> None:
    host = DictHost({"/r": ["a", "b"], "/r/a": None, "/r/b": []})
    grants = [read("/r"), write("/r/b/w"), write("/w"), read("/usr")]
    hides = [hidden("/r/gone", "missing"), hidden("/w/s"), hidden("/w/f/g", "file")]
    guards = [guard("/w/.git/hooks"), guard("/w/.git/config", False)]
    first = laid_out(host, grants=tuple(grants), hidden=tuple(hides), guards=tuple(guards))
    for seed in range(5):
        shuffle = random.Random(seed).shuffle  # noqa: S311
        for rules in (grants, hides, guards):
            shuffle(rules)
        assert laid_out(host, grants=tuple(grants), hidden=tuple(hides), guards=tuple(guards)) == first


def test_it_is_quick_with_thousands_of_rules() -> None:
    import time

    many = plan(
        grants=tuple(write(f"/w/{n}") for n in range(1000)) + tuple(read(f"/r/{n}") for n in range(1000)),
        hidden=tuple(hidden(f"/w/{n}/x/s", "file") for n in range(1000)),
    )
    assert isinstance(many, Plan)
    began = time.process_time()
    lay_out(many, DictHost())
    assert time.process_time() - began < 0.5


# A directory whose changes go to a layer.


LAYER = Layered("/p", "/up", "/work", WHY)


def test_it_lies_on_what_is_shown_and_covers_nothing_that_is_written_directly() -> None:
    asked = plan(grants=(read("/p"), write("/p/docs"), read("/p/src")), layers=(LAYER,))
    assert of_plan(lay_out(asked, DictHost())) == [
        Bind("/p", True, WHY),
        Overlay("/p", "/up", "/work", WHY),
        Bind("/p/docs", True, WHY, below=True),
    ]
    assert [asked.access(path) for path in ("/p", "/p/a/b", "/p/docs/x", "/q")] == ["write"] * 3 + ["none"]


def test_it_works_below_another_grant_and_in_a_private_directory() -> None:
    below = lay_out(plan(grants=(read("/"),), layers=(LAYER,)), DictHost())
    assert of_plan(below)[1:] == [Bind("/p", True, WHY, below=True), Overlay("/p", "/up", "/work", WHY)]
    layer = LAYER.replace(path="/tmp/a/p")
    private = lay_out(
        plan(grants=(read(layer.path),), scratch=(scratch("/tmp"),), layers=(layer,)), DictHost()
    )
    assert of_plan(private)[-2:] == [Bind("/tmp/a/p", True, WHY), Overlay("/tmp/a/p", "/up", "/work", WHY)]


def test_what_is_denied_is_hidden_in_it_and_what_is_not_there_cannot_come_out() -> None:
    denied = (hidden("/p/d"), hidden("/p/f", "file"), hidden("/p/later", "missing"))
    layout = lay_out(plan(grants=(read("/p"),), hidden=denied, layers=(LAYER,)), DictHost())
    assert layout.unheld == ()
    assert of_plan(layout)[2:] == [Empty("/p/d", 0, 4096, WHY, below=True), Mask("/p/f", WHY)]


def test_only_one_backend_has_them() -> None:
    for name in backends.NAMES:
        if name != "namespaces":
            with pytest.raises(PolicyNotEnforceable):
                backends.choose(plan(layers=(LAYER,)), name, best_effort=True)


@pytest.mark.parametrize("data", [b"", b"/up", b"/up\0work", b"up\0/work", b"/up\0/wo\0rk"])
def test_two_directories_are_needed(data: bytes) -> None:
    with pytest.raises(ValueError, match="two absolute paths"):
        decode_operations([(OVERLAY, b"/p", 0, 0, 0, data)])
