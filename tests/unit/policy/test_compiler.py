"""compile: what each rule, and each combination of rules, means on this host."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from staddle import Network, Policy
from staddle.errors import PathEscape, PolicyError
from staddle.policy.compiler import compile as compile_policy
from staddle.policy.system import other_hosts
from tests.unit.policy.tree import make, names, own, plan


def sentence(error: pytest.ExceptionInfo[PolicyError]) -> str:
    assert error.value.what
    assert error.value.why
    assert error.value.fix
    return str(error.value)


# --- grants


def test_grants_are_resolved_and_keep_their_origin(tmp_path: Path) -> None:
    make(tmp_path, "data/", "out/", "file")
    made = plan(Policy(read=["data", "~/file"], write=[tmp_path / "out"]), tmp_path)
    assert own(made, tmp_path) == {"data": "read", "file": "read", "out": "write"}
    grants = {grant.path: grant for grant in made.grants}
    assert grants[f"{tmp_path}/data"].origin == "read 'data'"
    assert grants[f"{tmp_path}/data"].directory
    assert not grants[f"{tmp_path}/file"].directory


def test_relative_paths_are_relative_to_base_then_cwd_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "base/x/", "cwd/x/", "here/x/")
    monkeypatch.chdir(tmp_path / "here")
    policy = Policy(read=["x", str(tmp_path / "cwd")])
    assert "base/x" in own(compile_policy(policy, cwd=f"{tmp_path}/cwd", base=f"{tmp_path}/base"), tmp_path)
    assert plan(policy, tmp_path, base=None, cwd=f"{tmp_path}/cwd").access(f"{tmp_path}/cwd/x") == "read"
    assert own(compile_policy(Policy(read=["x"])), tmp_path) == {"here/x": "read"}


def test_a_relative_cwd_is_relative_to_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a/b/")
    monkeypatch.chdir(tmp_path)
    assert compile_policy(Policy(read=[tmp_path / "a"]), cwd="a/b").cwd == f"{tmp_path}/a/b"
    assert compile_policy(Policy(read=["."]), cwd="a/b").cwd == f"{tmp_path}/a/b"


@pytest.mark.parametrize("field", ["read", "write"])
def test_a_declared_path_that_is_missing_is_an_error(field: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="does not exist") as caught:
        plan(Policy(**{field: ["nothing"]}), tmp_path)  # type: ignore[arg-type]
    assert "'nothing'" in sentence(caught)


@pytest.mark.parametrize(
    ("tree", "policy", "why"),
    [
        pytest.param(["file"], Policy(read=["file/x"]), "does not exist", id="a path through a file"),
        pytest.param([], Policy(read=["d/" * 1900]), "does not exist", id="a path of 1900 directories"),
        pytest.param(["a -> b", "b -> a"], Policy(read=["a"]), "circle", id="links in a circle"),
        pytest.param(["file"], Policy(sockets=["file"]), "not a socket", id="a file as a socket"),
        pytest.param(["a:b/", "l -> a:b"], Policy.coding_agent("l"), "passwd", id="a home with a colon"),
    ],
)
def test_what_cannot_be_granted(tree: list[str], policy: Policy, why: str, tmp_path: Path) -> None:
    make(tmp_path, *tree)
    with pytest.raises(PolicyError, match=why):
        plan(policy, tmp_path)


def test_a_path_that_cannot_be_reached_is_an_error_unless_we_are_root(tmp_path: Path) -> None:
    make(tmp_path, "closed/x/")
    (tmp_path / "closed").chmod(0)
    try:
        if os.geteuid() == 0:
            assert own(plan(Policy(read=["closed/x"]), tmp_path), tmp_path) == {"closed/x": "read"}
        else:
            with pytest.raises(PolicyError, match="cannot be entered"):
                plan(Policy(read=["closed/x"]), tmp_path)
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_pipes_sockets_and_devices_are_no_files_to_grant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PolicyError, match="device or a pipe"):
        plan(Policy(write=["pipe"]), tmp_path)
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        with pytest.raises(PolicyError, match="name it in sockets"):
            plan(Policy(read=["s"]), tmp_path)


def test_a_root_that_only_turns_out_to_be_one_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "all -> /", "proc -> /proc", "tmp -> /tmp")
    for path in ("all", "proc", "tmp"):
        with pytest.raises(PolicyError):
            plan(Policy(read=[path]), tmp_path)
    with pytest.raises(PolicyError, match="whole machine"):
        plan(Policy(read=["."]), tmp_path, base="/")
    with pytest.raises(PolicyError, match="whole machine"):
        plan(Policy(write=["~"]), tmp_path, home="/")
    with pytest.raises(PolicyError, match="hide everything"):
        plan(Policy(deny=["all"]), tmp_path)
    with pytest.raises(PolicyError, match="private"):
        plan(Policy(read=["/var/run"]), tmp_path)


@pytest.mark.parametrize(
    ("policy", "grants"),
    [
        pytest.param(
            Policy(read=["a", "a/b", "a/b/c", "ab"], write=["a/d"]),
            {"a": "read", "ab": "read", "a/d": "write"},
            id="those that add nothing are dropped",
        ),
        pytest.param(Policy(write=["a", "a/b/c"]), {"a": "write"}, id="also below a write grant"),
        pytest.param(Policy(read=["a"], write=["a"]), {"a": "write"}, id="write covers read"),
        pytest.param(Policy(write=["a", "link"]), {"a": "write", "ab": "write"}, id="a link beside them"),
        pytest.param(Policy(write=["a"], deny=["a"]), {}, id="a deny of the path itself takes it away"),
    ],
)
def test_these_grants_are_left(policy: Policy, grants: dict[str, str], tmp_path: Path) -> None:
    make(tmp_path, "a/b/c/", "a/d/", "ab/", "link -> ab")
    made = plan(policy, tmp_path)
    assert own(made, tmp_path) == grants
    assert made.hidden == ()


def test_a_read_inside_a_write_has_no_effect_and_a_note(tmp_path: Path) -> None:
    make(tmp_path, "a/b/c/")
    made = plan(Policy(read=["a/b"], write=["a", "a/b/c"]), tmp_path)
    assert own(made, tmp_path) == {"a": "write"}
    assert made.access(f"{tmp_path}/a/b/x") == "write"
    assert [note.origin for note in made.notes] == ["read 'a/b'"]


def test_a_path_named_in_two_spellings_is_one_grant(tmp_path: Path) -> None:
    make(tmp_path, "a/")
    made = plan(Policy(read=["a", "./a/", "~/a", f"{tmp_path}//a"]), tmp_path)
    assert own(made, tmp_path) == {"a": "read"}


def test_names_of_any_bytes_survive(tmp_path: Path) -> None:
    odd = os.fsdecode(bytes(range(1, 47)) + bytes(range(48, 256)))
    (tmp_path / odd).mkdir()
    made = plan(Policy(write=[odd], deny=[f"{odd}/x"]), tmp_path)
    assert own(made, tmp_path) == {odd: "write"}
    assert names(made.hidden, tmp_path) == {f"{odd}/x"}


# --- deny


def test_deny_wins_at_any_depth_and_in_any_combination(tmp_path: Path) -> None:
    make(tmp_path, "a/secret/deep/", "a/open/", "a/file")
    made = plan(Policy(read=["a"], write=["a/open"], deny=["a/secret", "a/file", "a/open/x"]), tmp_path)
    hidden = {item.path[len(str(tmp_path)) + 1 :]: item.kind for item in made.hidden}
    assert hidden == {"a/secret": "directory", "a/file": "file", "a/open/x": "missing"}
    assert made.access(f"{tmp_path}/a/secret/deep") == "none"
    assert made.access(f"{tmp_path}/a/open/x/y") == "none"
    assert made.access(f"{tmp_path}/a/open/z") == "write"


def test_a_grant_inside_a_deny_is_dead_and_noted(tmp_path: Path) -> None:
    make(tmp_path, "a/b/c/")
    made = plan(Policy(read=["a"], write=["a/b/c", "a/b"], deny=["a/b"]), tmp_path)
    assert own(made, tmp_path) == {"a": "read"}
    assert names(made.hidden, tmp_path) == {"a/b"}
    assert {note.origin for note in made.notes} == {"write 'a/b'", "write 'a/b/c'"}
    assert made.access(f"{tmp_path}/a/b/c") == "none"


def test_denies_below_denies_and_outside_grants_cost_nothing(tmp_path: Path) -> None:
    make(tmp_path, "a/b/c/", "z/")
    made = plan(Policy(read=["a"], deny=["a/b", "a/b/c", "z", "/no/such"]), tmp_path)
    assert names(made.hidden, tmp_path) == {"a/b"}
    assert {note.origin for note in made.notes} == {"deny 'z'", "deny '/no/such'"}


def test_a_denied_link_hides_what_it_leads_to(tmp_path: Path) -> None:
    make(tmp_path, "a/link -> ../b/secret", "b/secret", "b/other")
    made = plan(Policy(read=["a", "b"], deny=["a/link"]), tmp_path)
    assert names(made.hidden, tmp_path) == {"b/secret"}
    assert any("b/secret" in note.text for note in made.notes)


def test_a_denied_link_to_nowhere_hides_the_place_it_would_lead_to(tmp_path: Path) -> None:
    make(tmp_path, "a/link -> ../b/later", "b/")
    made = plan(Policy(read=["a", "b"], deny=["a/link"]), tmp_path)
    assert [(item.path, item.kind) for item in made.hidden] == [(f"{tmp_path}/b/later", "missing")]


def test_a_system_directory_can_be_denied_as_a_whole_or_in_part(tmp_path: Path) -> None:
    made = plan(Policy(deny=["/opt", "/usr/share", "/etc/ssl", "/etc/passwd", "/etc/localtime"]), tmp_path)
    paths = {grant.path for grant in made.grants}
    assert "/opt" not in paths
    assert not any(path.startswith("/etc/ssl") for path in paths)
    assert "/usr/share" in {item.path for item in made.hidden}
    shown = {text.path for text in made.texts} | {link.path for link in made.links}
    assert not shown & {"/etc/passwd", "/etc/ssl/openssl.cnf", "/etc/localtime"}
    assert "/etc/group" in shown


# --- links


def test_a_grant_through_a_link_is_for_what_it_leads_to_and_both_spellings_work(tmp_path: Path) -> None:
    make(tmp_path, "link -> real/dir", "real/dir/sub/")
    made = plan(Policy(read=["link/sub"]), tmp_path)
    assert own(made, tmp_path) == {"real/dir/sub": "read"}
    assert (f"{tmp_path}/link", f"{tmp_path}/real/dir") in {(link.path, link.target) for link in made.links}
    assert any("real/dir/sub" in note.text for note in made.notes)


def test_every_link_of_a_chain_is_there_inside(tmp_path: Path) -> None:
    make(tmp_path, "a -> b", "b -> c/../d", "c/", "d/e -> ../f", "f/")
    made = plan(Policy(read=["a/e"]), tmp_path)
    assert own(made, tmp_path) == {"f": "read"}
    links = {
        link.path[len(str(tmp_path)) + 1 :]: link.target[len(str(tmp_path)) + 1 :] for link in made.links
    }
    assert {"a": "d", "b": "d", "d/e": "f"}.items() <= links.items()


def test_no_link_is_made_where_the_hosts_own_can_be_seen(tmp_path: Path) -> None:
    make(tmp_path, "dir/link -> ../real", "real/")
    made = plan(Policy(read=["dir", "dir/link"]), tmp_path)
    assert own(made, tmp_path) == {"dir": "read", "real": "read"}
    assert names(made.links, tmp_path) == set()


def test_a_link_to_nowhere_is_a_missing_path(tmp_path: Path) -> None:
    make(tmp_path, "a -> nowhere")
    with pytest.raises(PolicyError, match="nowhere") as caught:
        plan(Policy(read=["a"]), tmp_path)
    assert "does not exist" in sentence(caught)


@pytest.mark.parametrize("field", ["read", "write", "sockets"])
@pytest.mark.parametrize("declared", ["ws/link", "ws/link/x", "ws/sub/deep"])
def test_a_link_that_a_sandbox_could_have_planted_is_an_escape(
    field: str, declared: str, tmp_path: Path
) -> None:
    make(tmp_path, "ws/link -> ../outside", "ws/sub -> ../outside", "outside/x/", "outside/deep/")
    if field == "sockets":
        (tmp_path / "outside/x").rmdir()
        (tmp_path / "outside/deep").rmdir()
        declared = declared.replace("ws/link/x", "ws/link/s").replace("ws/link", "ws/link/s", 1)
    rules: dict[str, list[str]] = {"write": ["ws"]}
    rules[field] = [*rules.get(field, []), declared]
    with pytest.raises(PathEscape) as caught:
        plan(Policy(**rules), tmp_path)  # type: ignore[arg-type]
    assert "outside" in sentence(caught)


def test_a_base_or_write_path_reached_through_a_planted_link_is_an_escape(tmp_path: Path) -> None:
    make(tmp_path, "ws/dir -> /usr", "ws/real/")
    with pytest.raises(PathEscape):
        plan(Policy(write=[tmp_path / "ws"], read=["share"]), tmp_path, base=f"{tmp_path}/ws/dir")


def test_a_deny_may_lead_through_a_planted_link_for_it_only_takes_away(tmp_path: Path) -> None:
    make(tmp_path, "ws/link -> ../b", "b/x")
    made = plan(Policy(write=["ws"], read=["b"], deny=["ws/link/x"]), tmp_path)
    assert names(made.hidden, tmp_path) == {"b/x"}


# --- sockets


def test_sockets_are_found_or_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("now")
        made = plan(Policy(sockets=["now", "later"]), tmp_path)
    assert [(item.path, item.present) for item in made.sockets] == [
        (f"{tmp_path}/later", False),
        (f"{tmp_path}/now", True),
    ]


def test_a_socket_yields_to_a_deny_of_the_user_not_to_one_of_a_preset(tmp_path: Path) -> None:
    made = plan(Policy.agent().with_sockets("/run/user/1/bus"), tmp_path)
    assert [item.path for item in made.sockets] == ["/run/user/1/bus"]
    made = plan(Policy.agent().with_sockets("s/x").with_deny("s"), tmp_path)
    assert made.sockets == ()
    assert any("no effect" in note.text for note in made.notes)


def test_the_old_name_of_run_leads_to_the_new_one(tmp_path: Path) -> None:
    made = plan(Policy(sockets=["/var/run/x.sock"]), tmp_path)
    assert made.sockets[0].path == "/run/x.sock"
    assert ("/var/run", "/run") in {(link.path, link.target) for link in made.links}


# --- the system


def test_the_system_is_readable_and_nothing_of_the_user_is(tmp_path: Path) -> None:
    made = plan(Policy(), tmp_path)
    assert made.access("/usr/bin/env") == "read"
    assert all(grant.access == "read" and grant.origin == "system" for grant in made.grants)
    for path in ("/root", "/home", "/etc/shadow", "/etc/ssh", "/etc/sudoers", "/var/log", "/boot", "/srv"):
        assert made.access(path) == "none"
    for name in ("bin", "lib"):
        path = f"/{name}"
        there = {link.path for link in made.links} | {grant.path for grant in made.grants}
        assert path in there


def test_the_files_that_say_who_is_who_are_made_up(tmp_path: Path) -> None:
    made = plan(Policy(), tmp_path)
    texts = {text.path: text.content for text in made.texts}
    assert b"user:x:1000:1000::/home/user:" in texts["/etc/passwd"]
    assert texts["/etc/hostname"] == b"sandbox\n"
    assert texts["/etc/resolv.conf"] == b""
    assert b"sandbox" in texts["/etc/hosts"]
    assert made.access("/etc/passwd") == "read"
    assert not any(name in path for path in texts for name in ("shadow", "sudoers"))
    assert b"index-url" not in texts["/etc/pip.conf"]  # nothing is reached, nothing is told
    assert b"registry" not in texts["/home/user/.npmrc"]


def test_with_the_network_open_names_resolve_as_outside(tmp_path: Path) -> None:
    texts = {text.path: text.content for text in plan(Policy(network=Network.open()), tmp_path).texts}
    resolv = Path("/etc/resolv.conf")
    assert texts["/etc/resolv.conf"] == (resolv.read_bytes() if resolv.exists() else b"")
    assert other_hosts(Path("/etc/hosts").read_bytes(), os.uname().nodename) in texts["/etc/hosts"]


def test_a_grant_of_etc_shows_the_hosts_own_files(tmp_path: Path) -> None:
    made = plan(Policy(read=["/etc"]), tmp_path)
    assert not any(text.path.startswith("/etc") for text in made.texts)
    assert [grant.path for grant in made.grants if grant.path.startswith("/etc")] == ["/etc"]
    assert not any(link.path.startswith("/etc/") for link in made.links)


def test_without_the_system_there_is_only_what_is_named(tmp_path: Path) -> None:
    make(tmp_path, "a/")
    made = plan(Policy(read=["a"], system=False), tmp_path)
    assert [grant.path for grant in made.grants] == [f"{tmp_path}/a"]
    assert made.texts == ()
    assert made.links == ()
    assert "/tmp" in {item.path for item in made.scratch}


# --- private directories and the home


def test_private_directories_cover_what_is_granted_above_them(
    tmp_path: Path,
) -> None:
    made = plan(Policy(read=["/var"]), tmp_path)
    assert made.access("/var/lib") == "read"
    assert made.access("/var/tmp/x") == "write"
    assert {(item.path, item.mode) for item in made.scratch} == {
        ("/dev/shm", 0o1777),
        ("/home/user", 0o700),
        ("/run", 0o755),
        ("/tmp", 0o1777),
        ("/var/tmp", 0o1777),
    }


def test_a_grant_of_a_private_directory_itself_takes_its_place(tmp_path: Path) -> None:
    made = plan(Policy(read=["/var/tmp"]), tmp_path)
    assert "/var/tmp" not in {item.path for item in made.scratch}
    assert made.access("/var/tmp/x") == "read"
    assert any("not a private directory" in note.text for note in made.notes)


def test_nothing_has_to_be_made_on_the_host_for_a_private_home(tmp_path: Path) -> None:
    made = plan(Policy(read=["/home"]), tmp_path)
    expected = "/home/user" if Path("/home/user").is_dir() else "/tmp/home"
    assert made.identity.home == expected
    assert expected in {item.path for item in made.scratch}
    assert made.environment()["HOME"] == expected


def test_a_deny_cannot_take_a_private_directory_away(tmp_path: Path) -> None:
    make(tmp_path, "homes/me/")
    policy = Policy.coding_agent(tmp_path / "homes/me").with_read(".")
    assert plan(policy.with_deny("homes/me"), tmp_path).access(f"{tmp_path}/homes/me/x") == "write"
    with pytest.raises(PolicyError, match="private directory"):
        plan(policy.with_deny("homes"), tmp_path)


# --- where the command starts


def test_the_command_starts_here_if_here_can_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "seen/", "unseen/", "seen/hidden/")
    policy = Policy(read=["seen"], deny=["seen/hidden"])
    for where, expected in (
        ("seen", f"{tmp_path}/seen"),
        (".", f"{tmp_path}"),  # what is above a grant is there, with nothing else in it
        ("unseen", "/home/user"),
        ("seen/hidden", "/home/user"),
    ):
        monkeypatch.chdir(tmp_path / where)
        assert plan(policy, tmp_path).cwd == expected


def test_a_place_to_start_that_is_asked_for_must_be_seen(tmp_path: Path) -> None:
    make(tmp_path, "seen/dir/", "seen/file", "unseen/", "link -> seen")
    policy = Policy(read=["seen"])
    assert plan(policy, tmp_path, cwd=f"{tmp_path}/seen/dir").cwd == f"{tmp_path}/seen/dir"
    assert plan(policy, tmp_path, cwd=f"{tmp_path}/link/dir").cwd == f"{tmp_path}/seen/dir"
    for private in ("/tmp", "/home/user", "/"):
        assert plan(policy, tmp_path, cwd=private).cwd == private
    for wrong, why in (
        ("unseen", "with_read"),
        ("seen/file", "not a directory"),
        ("seen/nothing", "does not exist"),
    ):
        with pytest.raises(PolicyError, match=why) as caught:
            plan(policy, tmp_path, cwd=f"{tmp_path}/{wrong}")
        assert sentence(caught)
    with pytest.raises(PolicyError):
        plan(policy, tmp_path, cwd="")


def test_a_current_directory_that_is_gone_matters_only_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "gone/", "a/")
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert plan(Policy(read=[tmp_path / "a"]), tmp_path).cwd == "/home/user"
    with pytest.raises(PolicyError, match="does not exist any more"):
        compile_policy(Policy(read=["a"]), home=str(tmp_path))


def test_a_home_that_is_not_known_is_an_error_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compile_policy(Policy(), host_env={"HOME": "relative"})
    with pytest.raises(PolicyError, match="HOME"):
        compile_policy(Policy.agent(), host_env={"HOME": "relative"})
    made = compile_policy(Policy(read=["~/a"]), host_env={"HOME": str(make(tmp_path, "a/"))})
    assert own(made, tmp_path) == {"a": "read"}


# --- presets


def test_the_agent_preset_hides_secrets_below_what_is_granted(tmp_path: Path) -> None:
    make(tmp_path, ".ssh/id", ".aws/credentials", ".config/gcloud/x", ".netrc", "work/")
    made = plan(Policy.agent().with_read("~"), tmp_path)
    assert names(made.hidden, tmp_path) == {".ssh", ".aws", ".config/gcloud", ".netrc"}
    assert {item.origin for item in made.hidden} == {"preset agent"}
    assert plan(Policy.agent().with_read("work"), tmp_path).hidden == ()
    assert made.access(f"{tmp_path}/.ssh/id") == "none"


def test_a_secret_behind_a_link_is_hidden_where_it_is(tmp_path: Path) -> None:
    make(tmp_path, ".ssh -> dotfiles/ssh", "dotfiles/ssh/id")
    made = plan(Policy.agent().with_read("dotfiles"), tmp_path)
    assert names(made.hidden, tmp_path) == {"dotfiles/ssh"}


def test_the_coding_agent_finds_its_configuration_in_a_fresh_home(tmp_path: Path) -> None:
    make(tmp_path, ".claude/settings.json", ".claude.json", ".local/bin/", ".ssh/id", "notes", "work/")
    made = plan(Policy.coding_agent(tmp_path).with_write("work"), tmp_path)
    assert own(made, tmp_path) == {
        ".claude": "write",
        ".claude.json": "write",
        ".local/bin": "read",
        "work": "write",
    }
    assert made.identity.home == str(tmp_path)
    assert made.environment()["HOME"] == str(tmp_path)
    assert made.environment()["PATH"].startswith(f"{tmp_path}/.local/bin:")
    assert str(tmp_path) in {item.path for item in made.scratch}
    assert names(made.guards, tmp_path) == set()
    assert made.access(f"{tmp_path}/.ssh/id") == "write"  # in the fresh home: there is none
    assert {text.path: text.content for text in made.texts}["/etc/passwd"].count(os.fsencode(tmp_path)) == 1


def test_the_home_of_a_coding_agent_may_be_missing_or_a_link(tmp_path: Path) -> None:
    make(tmp_path, "link -> real", "real/.codex/")
    assert plan(Policy.coding_agent("nothing"), tmp_path).identity.home == f"{tmp_path}/nothing"
    made = plan(Policy.coding_agent("link"), tmp_path)
    assert made.identity.home == f"{tmp_path}/real"
    assert own(made, tmp_path) == {"real/.codex": "write"}
    make(tmp_path, "file")
    with pytest.raises(PolicyError, match="not a directory"):
        plan(Policy.coding_agent("file"), tmp_path)


def test_compiling_twice_gives_the_same_plan(tmp_path: Path) -> None:
    make(tmp_path, "a/.git/config", "b/")
    policy = Policy.agent().with_write("a").with_read("b").with_deny("b/x")
    assert plan(policy, tmp_path) == plan(policy, tmp_path)


def test_links_in_a_circle_hide_nothing_and_stop_nothing(tmp_path: Path) -> None:
    make(tmp_path, "a/x -> y", "a/y -> x", ".ssh -> .ssh")
    made = plan(Policy.agent().with_read("a").with_deny("a/x"), tmp_path)
    assert own(made, tmp_path) == {"a": "read"}
