"""What sandboxes of one plan share, and what each has for itself."""

from __future__ import annotations

from staddle.mounts.operations import Bind, Directory, Empty, File, ProcMount, Seal, Symlink
from staddle.mounts.shared_view import ASIDE, OLD_ROOT, carried, share
from staddle.paths import WORKSPACE_PATH

ROOT = Empty("/", 0o755, 4096, "")
USR = Bind("/usr", False, "")
TMP = Empty("/tmp", 0o1777, 4096, "")
PROC = ProcMount("/proc", "")


def test_what_shows_the_host_is_shared() -> None:
    shared = share([ROOT, Symlink("/bin", "/usr/bin", ""), USR, File("/etc/hosts", b"", ""), Seal("/", "")])
    assert shared.template[0] == ROOT
    assert USR in shared.template
    assert shared.template[-1] == Seal("/", "")
    assert shared.own == ()


def test_a_place_below_something_of_the_host_is_there_already() -> None:
    below = TMP.replace(path="/opt/cache", below=True)
    shared = share([ROOT, Bind("/opt", False, ""), below])
    assert shared.own == (below,)
    assert not any(op.path == "/opt/cache" for op in shared.template)


def test_what_lies_below_something_of_ones_own_is_ones_own() -> None:
    text = File("/tmp/a", b"x", "")
    way = Directory("/tmp/b", 0o555, "")
    assert share([ROOT, TMP, text, way]).own == (TMP.replace(below=True), text, way)


def test_what_gets_a_mount_again_is_not_kept_aside() -> None:
    again = Bind("/tmp/x", False, "", below=True, again=True)
    assert share([ROOT, TMP, again]).own[1] == again


def test_a_hidden_directory_is_shared_like_the_host_around_it() -> None:
    hidden = Empty("/usr/secret", 0, 4096, "", below=True)
    assert hidden in share([ROOT, USR, hidden]).template


def test_an_empty_workspace_is_a_private_directory() -> None:
    empty = Empty(WORKSPACE_PATH, 0o755, 4096, "")
    shared = share([ROOT, empty])
    assert shared.own == (empty.replace(below=True),)
    assert shared.workspace == ()


def test_the_old_root_has_a_place_aside() -> None:
    assert any(op.path == OLD_ROOT for op in share([ROOT]).template)
    assert share([ROOT]).template[1].path == ASIDE


# ---------------------------------------------------------------- a world of layers


def test_what_is_mounted_in_the_world_has_a_place_in_its_skeleton() -> None:
    config = Bind("/tmp/config", True, "", source="/home/a/config")
    rebuilt, kept = Empty("/tmp/d", 0o755, 4096, ""), Bind("/tmp/d/kept", False, "")
    shared = share([ROOT, TMP, config, rebuilt, kept], ["/tmp"])
    assert [op.path for op in shared.skeleton] == ["/tmp", "/tmp/config", "/tmp/d"]
    assert [(op.path, getattr(op, "below", None)) for op in shared.own] == [
        ("/tmp/config", True),
        ("/tmp/d", True),
        ("/tmp/d/kept", False),  # in what is made empty, as ever
    ]
    assert carried(shared.own, "/tmp") == {"/tmp/config": True, "/tmp/d": True}


def test_a_place_in_another_one_is_a_directory_of_it() -> None:
    home = Empty("/tmp/home", 0o700, 4096, "")
    shared = share([ROOT, TMP, home], ["/tmp", "/tmp/home"])
    assert shared.places == ("/tmp",)
    assert shared.skeleton == (Directory("/tmp", 0o1777, ""), Directory("/tmp/home", 0o700, ""))
    assert shared.own == ()


def test_without_a_world_everything_is_as_it_was() -> None:
    operations = [ROOT, TMP, File("/tmp/a", b"x", "")]
    shared = share(operations, ["/home/user"])
    assert (shared.places, shared.skeleton) == ((), ())
    assert shared.own == share(operations).own
