"""What sandboxes of one plan share, and what each has for itself."""

from __future__ import annotations

from staddle.mounts.operations import Bind, Devices, Directory, Empty, File, Mask, ProcMount, Seal, Symlink
from staddle.mounts.shared_view import ASIDE, OLD_ROOT, carried, share
from staddle.policy.paths import WORKSPACE_PATH

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


def test_what_can_be_written_is_each_ones_own_and_has_a_place_waiting() -> None:
    shared = share([ROOT, TMP, Seal("/", "")])
    assert shared.own == (TMP.replace(below=True),)
    assert Directory("/tmp", 0o755, "sandbox") in shared.template
    assert shared.template.index(Directory("/tmp", 0o755, "sandbox")) < shared.template.index(Seal("/", ""))


def test_a_place_below_something_of_the_host_is_there_already() -> None:
    below = TMP.replace(path="/opt/cache", below=True)
    shared = share([ROOT, Bind("/opt", False, ""), below])
    assert shared.own == (below,)
    assert not any(op.path == "/opt/cache" for op in shared.template)


def test_what_lies_below_something_of_ones_own_is_ones_own() -> None:
    text = File("/tmp/a", b"x", "")
    way = Directory("/tmp/b", 0o555, "")
    assert share([ROOT, TMP, text, way]).own == (TMP.replace(below=True), text, way)


def test_the_host_below_a_private_directory_is_kept_aside_until_it_can_be_shown() -> None:
    config = Bind("/tmp/config", True, "", source="/home/a/config")
    shared = share([ROOT, TMP, config])
    kept = [op for op in shared.template if isinstance(op, Bind)]
    assert [(op.outside, op.writable) for op in kept] == [("/home/a/config", True)]
    assert kept[0].path.startswith(f"{ASIDE}/")
    assert shared.own[1] == config.replace(source=kept[0].path)


def test_a_file_over_one_of_proc_is_written_in_the_shared_part() -> None:
    shared = share([ROOT, PROC, File("/proc/meminfo", b"x", "", below=True), Seal("/", "")])
    (covering,) = shared.own
    assert isinstance(covering, Bind)
    assert (covering.path, covering.writable, covering.below) == ("/proc/meminfo", False, True)
    assert covering.source.startswith(f"{ASIDE}/")
    assert File(covering.source, b"x", "") in shared.template


def test_what_gets_a_mount_again_is_not_kept_aside() -> None:
    again = Bind("/tmp/x", False, "", below=True, again=True)
    assert share([ROOT, TMP, again]).own[1] == again


def test_processes_are_each_ones_own_with_what_is_masked_in_them() -> None:
    mask = Mask("/proc/keys", "")
    shared = share([ROOT, PROC, mask, Empty("/proc/1", 0, 4096, "")])
    assert shared.own == (mask,)
    assert Directory("/proc", 0o755, "sandbox") in shared.template
    assert not any(isinstance(op, ProcMount) for op in shared.template)


def test_shared_memory_is_each_ones_own_and_the_devices_are_shared() -> None:
    shm = Empty("/dev/shm", 0o1777, 4096, "")
    shared = share([ROOT, Devices("/dev", ""), shm, Seal("/dev", "")])
    assert shared.own == (shm.replace(below=True),)
    assert shared.template[1] == Devices("/dev", "")  # what is kept aside is in there
    assert [type(op) for op in shared.template[-2:]] == [Directory, Seal]


def test_a_hidden_directory_is_shared_like_the_host_around_it() -> None:
    hidden = Empty("/usr/secret", 0, 4096, "", below=True)
    assert hidden in share([ROOT, USR, hidden]).template


def test_the_workspace_comes_last_with_all_that_is_done_to_it() -> None:
    place = Bind(WORKSPACE_PATH, True, "", source="/home/a/project")
    guard = Bind(f"{WORKSPACE_PATH}/.git", False, "", below=True, again=True)
    other = Bind("/workspaces", False, "")
    shared = share([ROOT, place, guard, other])
    assert shared.workspace == (place, guard)
    assert other in shared.template
    assert not any("/home/a" in op.path or "/home/a" in getattr(op, "source", "") for op in shared.template)


def test_an_empty_workspace_is_a_private_directory() -> None:
    empty = Empty(WORKSPACE_PATH, 0o755, 4096, "")
    shared = share([ROOT, empty])
    assert shared.own == (empty.replace(below=True),)
    assert shared.workspace == ()


def test_the_old_root_has_a_place_aside() -> None:
    assert any(op.path == OLD_ROOT for op in share([ROOT]).template)
    assert share([ROOT]).template[1].path == ASIDE


# ---------------------------------------------------------------- a world of layers


def test_a_place_of_the_world_is_not_made_empty_but_in_its_skeleton() -> None:
    shared = share([ROOT, TMP, Seal("/", "")], ["/tmp"])
    assert shared.places == ("/tmp",)
    assert shared.skeleton == (Directory("/tmp", 0o1777, ""),)
    assert shared.own == ()
    assert Directory("/tmp", 0o755, "sandbox") in shared.template


def test_what_is_ours_in_the_world_is_in_its_skeleton() -> None:
    text, way, link = File("/tmp/a", b"x", ""), Directory("/tmp/b", 0o555, ""), Symlink("/tmp/l", "a", "")
    shared = share([ROOT, TMP, text, way, link], ["/tmp"])
    assert shared.skeleton[1:] == (text, way, link)
    assert shared.own == ()


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


def test_over_a_copy_what_is_hidden_and_what_can_be_written_is_carried_on() -> None:
    shown, hidden = Bind("/etc/b", False, ""), Empty("/etc/c", 0, 0, "", below=True)
    written, within = Bind("/etc/d", True, ""), Bind("/etc/c/e", True, "")
    operations = [USR, Mask("/etc/a", ""), shown, hidden, within, written]
    assert carried(operations, "/etc") == {"/etc/a": False, "/etc/b": True, "/etc/c": False, "/etc/d": True}
    assert carried(operations, "/etc", copied=True) == {"/etc/a": False, "/etc/c": False, "/etc/d": True}
    assert carried(operations, "/opt") == {}


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
