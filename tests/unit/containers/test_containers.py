"""What a container is, which options it needs, which settings of a host are in the way: pure functions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from staddle.containers import advice
from staddle.containers.advice import NAMES, Evidence, Needs, found, options
from staddle.linux.userns import UsernsFacts

pytestmark = pytest.mark.same_for_everyone
ALL = Needs(filter=True, processes=True, memory=True, user=True)


def kinds(
    environment: dict[str, str] | None = None,
    files: dict[str, str] | None = None,
    there: tuple[str, ...] = (),
) -> set[str]:
    contents = files or {}
    seen = found(environment or {}, lambda path: contents.get(path, ""), lambda path: path in there)
    assert all(item.by for item in seen)
    assert all(item.kind in NAMES for item in seen)
    return {item.kind for item in seen}


def test_every_kind_is_known_by_its_traces() -> None:
    assert kinds() == set()
    assert kinds(there=("/.dockerenv",)) == {"docker"}
    assert kinds(there=("/run/.containerenv",)) == {"podman"}
    assert kinds({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == {"kubernetes"}
    assert kinds(files={"/proc/version": "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"}) == {
        "gvisor"
    }
    assert kinds(files={"/proc/sys/kernel/osrelease": "6.6.87.2-microsoft-standard-WSL2\n"}) == {"wsl"}
    assert kinds(files={"/run/systemd/container": "systemd-nspawn\n"}) == {"nspawn"}
    assert kinds({"container": "lxc"}) == {"lxc"}
    assert kinds({"GITHUB_ACTIONS": "true"}, there=("/.dockerenv",)) == {"docker", "github"}


def test_an_overlay_as_root_speaks_for_a_container_only_where_nothing_says_which() -> None:
    mounted = {"/proc/self/mountinfo": "500 400 0:50 / / rw - overlay overlay rw\n"}
    assert kinds(files=mounted) == {"container"}
    assert kinds(files=mounted, there=("/.dockerenv",)) == {"docker"}


def test_options_name_what_is_needed_and_nothing_else() -> None:
    docker, podman = (Evidence("docker", "x"),), (Evidence("podman", "x"),)
    assert options(docker, Needs(), 0) == []
    profile, line = options(docker, ALL, 0)
    assert "--profile" in profile
    for word in ("seccomp=staddle.json", "systempaths=unconfined", "--shm-size 1g", "--user 1000"):
        assert word in line
    assert "unmask=ALL" in options(podman, ALL, 0)[-1]
    (line,) = options(docker, Needs(processes=True), 1234)
    assert line == "docker run --security-opt systempaths=unconfined --user 1234 IMAGE"


def test_a_pod_is_described_in_its_own_words() -> None:
    text = "\n".join(options((Evidence("kubernetes", "x"), Evidence("docker", "x")), ALL, 0))
    for word in (
        "hostUsers: false",
        "procMount: Unmasked",
        "runAsUser: 1000",
        "localhostProfile",
        "medium: Memory",
    ):
        assert word in text
    assert "docker run" not in text


def test_gvisor_is_told_what_it_is() -> None:
    assert "boundary itself" in options((Evidence("gvisor", "x"),), ALL, 0)[0]


def test_the_profile_allows_what_sandboxes_need_and_refuses_what_engines_refuse() -> None:
    profile = json.loads(advice.profile())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed: set[str] = set()
    refused: set[str] = set()
    for row in profile["syscalls"]:
        if row.get("includes"):
            continue
        (allowed if row["action"] == "SCMP_ACT_ALLOW" else refused).update(row["names"])
    needed = {
        "unshare",
        "clone3",
        "mount",
        "pivot_root",
        "sethostname",
        "pidfd_getfd",
        "landlock_restrict_self",
    }
    assert needed <= allowed
    assert {"bpf", "keyctl", "io_uring_setup", "kexec_load", "userfaultfd", "open_by_handle_at"} <= refused
    assert not allowed & refused
    assert len(allowed) > 300


# Settings of a host.


def facts(**known: str) -> UsernsFacts:
    return UsernsFacts("namespace", 1, **known)


def test_a_host_that_refuses_nothing_needs_no_fix() -> None:
    assert advice.fixes(facts(userns_clone="1", maximum="100", apparmor="0"), "/usr/bin/python3.12") == ()


def test_ubuntu_gets_a_profile_for_the_interpreter_alone() -> None:
    (fix,) = advice.fixes(facts(apparmor="1"), "/usr/bin/python3.12")
    assert fix.path == "/etc/apparmor.d/staddle"
    assert 'profile staddle "/usr/bin/python3.12" flags=(unconfined)' in fix.content
    assert "userns," in fix.content
    assert fix.command[0] == "apparmor_parser"


def test_without_apparmors_parser_the_setting_is_changed() -> None:
    (fix,) = advice.fixes(facts(apparmor="1"), "/usr/bin/python3", has_parser=False)
    assert "apparmor_parser is not installed" in fix.why
    assert fix.whom == "every program"
    assert fix.path == "/etc/sysctl.d/60-staddle.conf"
    assert fix.content == "kernel.apparmor_restrict_unprivileged_userns = 0\n"
    assert fix.command[0] == "sysctl"


def test_settings_of_the_kernel_are_in_one_file() -> None:
    (fix,) = advice.fixes(facts(userns_clone="0", maximum="0"), "/usr/bin/python3")
    assert fix.content == "kernel.unprivileged_userns_clone = 1\nuser.max_user_namespaces = 15000\n"
    assert fix.command[-1] == fix.path


def test_a_fix_is_written_whole_and_its_failure_told(tmp_path: Path) -> None:
    place = tmp_path / "file.conf"
    fix = advice.Fix("why", "whom", str(place), "text\n", ("true",))
    assert advice.apply(fix) == ""
    assert place.read_text() == "text\n"
    assert advice.apply(fix.replace(command=("false",))) == "false failed"
    assert advice.apply(fix.replace(path=str(tmp_path / "none" / "x")))
    assert [path.name for path in tmp_path.iterdir()] == ["file.conf"]
