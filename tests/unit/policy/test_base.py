"""Another system inside: what of a root file system is shown, and where its links can lead to."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from staddle import Identity, Policy
from staddle.errors import CommandNotFound, PolicyError, PolicyNotEnforceable
from staddle.hostinfo.resolution import HostPaths
from staddle.launch.view import find_program
from staddle.policy import base
from staddle.policy.compiler import compile as compile_policy
from staddle.policy.plan import Plan
from tests.unit.policy.tree import make


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    make(
        made, "usr/bin/bash", "usr/lib/os-release", "etc/ssl/cert", "opt/", "var/lib/", "var/tmp/", "home/x/"
    )
    (made / "usr/bin/bash").chmod(0o755)
    (made / "bin").symlink_to("usr/bin")
    (made / "etc/passwd").write_text(
        "root:x:0:0::/root:/bin/sh\nwww:x:33:33::/:/bin/sh\nnode:x:1000:1000:::\n"
    )
    (made / "etc/group").write_text("root:x:0:\nwww:x:33:\n")
    (made / "etc/issue").write_text("Other\n")
    (made / "etc/os-release").symlink_to("../usr/lib/os-release")
    return made


def compiled(root: Path, policy: Policy | None = None) -> Plan:
    asked = policy or Policy()
    return compile_policy(asked.with_base(root), cwd="/", base=str(root.parent), home=str(root.parent))


def test_the_system_inside_is_the_bases(root: Path) -> None:
    plan = compiled(root)
    shown = {grant.path: grant.source for grant in plan.grants}
    assert shown == {
        "/etc/ssl": f"{root}/etc/ssl",
        "/opt": f"{root}/opt",
        "/usr": f"{root}/usr",
        "/var/lib": f"{root}/var/lib",
    }
    assert all(grant.access == "read" and grant.origin == "base" for grant in plan.grants)
    links = {link.path: link.target for link in plan.links}
    assert links["/bin"] == "usr/bin"
    assert links["/etc/os-release"] == "../usr/lib/os-release"
    assert plan.base == str(root)


def test_our_files_say_who_it_is_and_the_bases_accounts_stay(root: Path) -> None:
    texts = {text.path: text.content for text in compiled(root).texts}
    assert texts["/etc/issue"] == b"Other\n"
    assert texts["/etc/hostname"] == b"sandbox\n"
    accounts = texts["/etc/passwd"].decode().splitlines()
    assert [line.split(":")[0] for line in accounts] == ["root", "user", "nobody", "www"]
    assert b"www:x:33:" in texts["/etc/group"]


def test_nothing_of_the_host_is_there_unless_it_is_granted(root: Path, tmp_path: Path) -> None:
    make(tmp_path, "tools/x")
    plan = compiled(root, Policy().with_read(tmp_path / "tools"))
    assert plan.outside(f"{tmp_path}/tools/x") == f"{tmp_path}/tools/x"
    assert plan.access(f"{tmp_path}/tools/x") == "read"
    assert plan.outside("/usr/bin/env") == f"{root}/usr/bin/env"


def test_a_grant_in_a_directory_of_the_base_takes_its_place_there(root: Path) -> None:
    make(root, "usr/local/own")
    plan = compiled(root, Policy().with_read("/usr/share", "/opt"))
    shown = {grant.path: grant.source for grant in plan.grants}
    assert shown["/usr/share"] == ""
    assert shown["/opt"] == ""
    assert shown["/usr/bin"] == f"{root}/usr/bin"  # beside it, entry by entry
    assert "/usr" not in shown


def test_links_are_resolved_in_it_and_never_on_the_host(root: Path) -> None:
    (root / "etc/evil").symlink_to("/etc/passwd")
    (root / "usr/bin/out").symlink_to("../../../../../../bin/sh")
    (root / "usr/bin/loop").symlink_to("loop")
    inside = HostPaths(str(root))
    assert inside.find("/etc/evil").path == "/etc/passwd"
    assert inside.find("/usr/bin/out").kind == "missing"
    assert inside.find("/usr/bin/loop").kind == "circle"
    with pytest.raises(CommandNotFound, match="has no program 'out'"):
        find_program(compiled(root), "out")
    assert find_program(compiled(root), "bash") == "/usr/bin/bash"


def test_a_directory_of_ours_is_never_below_a_link_of_theirs(root: Path) -> None:
    for name in ("etc", "var"):
        os.rename(root / name, root / f"old-{name}")
        (root / name).symlink_to(f"/{name}")
    plan = compiled(root)
    assert not {"/etc", "/var"} & {link.path for link in plan.links}
    assert "/etc/passwd" in {text.path for text in plan.texts}
    assert "/var/tmp" in {item.path for item in plan.scratch}


def test_odd_entries_are_left_out(root: Path) -> None:
    os.mkfifo(root / "etc/fifo")
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        os.chdir(root)  # a socket's path is short
        try:
            one.bind("sock")
        finally:
            os.chdir(here)
    (root / "etc/shadow").write_text("root:secret\n")
    (root / os.fsdecode(b"etc/\xff\xfe")).write_text("odd")
    (root / "etc/large").write_bytes(bytes(base.LARGEST_COPY + 1))
    plan = compiled(root)
    paths = {item.path for item in (*plan.grants, *plan.texts, *plan.links)}
    assert not {"/etc/fifo", "/sock", "/etc/shadow"} & paths
    assert os.fsdecode(b"/etc/\xff\xfe") in paths
    assert "/etc/large" in {grant.path for grant in plan.grants}


def test_an_empty_base_has_ours_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    plan = compiled(tmp_path / "nothing")
    assert plan.grants == ()
    assert {"/tmp", "/home/user", "/var/tmp"} <= {item.path for item in plan.scratch}
    with pytest.raises(CommandNotFound, match="has no program 'bash'"):
        find_program(plan, "bash")


def test_a_home_that_the_base_has_is_a_private_one(root: Path) -> None:
    make(root, "root/.ssh/key")
    plan = compiled(root, Policy(identity=Identity(uid=0)))
    assert "/root" in {item.path for item in plan.scratch}
    assert not any(grant.path.startswith("/root") for grant in plan.grants)


def test_a_deny_holds_in_the_base_as_the_base_has_it(root: Path) -> None:
    make(root, "usr/bin/tool", "usr/share/doc/x")
    (root / "usr/bin/alias").symlink_to("tool")
    plan = compiled(root, Policy(deny=["/bin/tool", "/usr/share/doc", "/usr/none", "/bin/alias"]))
    hidden = {item.path: item.kind for item in plan.hidden}
    assert hidden == {"/usr/bin/tool": "file", "/usr/share/doc": "directory", "/usr/none": "missing"}


def test_what_is_no_base(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STADDLE_BASES", str(tmp_path / "bases"))
    for text, why in (("/nowhere/at/all", "does not exist"), (str(root / "etc/issue"), "not a directory")):
        with pytest.raises(PolicyError, match=why):
            compiled(Path(text))
    with pytest.raises(PolicyError, match="no base of that name"):
        compile_policy(Policy(base="debian"), cwd="/", base=str(tmp_path), home=str(tmp_path))
    with pytest.raises(PolicyError, match="host's own system"):
        compile_policy(Policy(base="/"), cwd="/", home=str(tmp_path))
    with pytest.raises(PolicyError, match="a base is a system"):
        Policy(base=str(root), system=False)


def test_a_bare_name_is_an_imported_one_first(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STADDLE_BASES", str(tmp_path / "bases"))
    make(tmp_path, str(Path("bases", "root", "root", "usr/imported")), "root/usr/own")
    here = {"cwd": "/", "base": str(tmp_path), "home": str(tmp_path)}
    assert compile_policy(Policy(base="root"), **here).base == str(tmp_path.joinpath("bases", "root", "root"))  # type: ignore[arg-type]
    for own in ("./root", Path("root"), str(root)):
        assert compile_policy(Policy(base=own).replace(env={"A": "1"}), **here).base == str(root)  # type: ignore[arg-type]


def test_a_directory_with_too_many_entries_is_not_taken_apart(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(root, *(f"usr/share/{number}" for number in range(20)))
    monkeypatch.setattr(base, "MOST_ENTRIES", 19)
    compiled(root)
    with pytest.raises(PolicyError, match="20 entries") as error:
        compiled(root, Policy().with_read("/usr/share/zoneinfo"))
    assert error.value.fix


@pytest.mark.parametrize("name", ["landlock", "native", "seatbelt"])
def test_a_backend_that_shows_directories_in_their_place_refuses_it(root: Path, name: str) -> None:
    from staddle import backends

    for best_effort in (False, True):
        with pytest.raises(PolicyNotEnforceable, match="cannot use the base"):
            backends.choose(compiled(root), name, best_effort=best_effort)


def test_accounts_that_are_none_are_not_taken_over() -> None:
    ours = b"user:x:1000:1000::/home/user:/bin/sh\n"
    theirs = b"\xff:x:5:5:::\nuser:x:7:7:::\no:x:1000:7:::\nbad\nx:x:abc:1:::\nb:x:99999:1:::\nok:x:5:5:::\n"
    assert base.accounts(theirs, ours) == ours + b"ok:x:5:5:::\n"
