"""From what was seen to the true cause: a table, and no kernel."""

from __future__ import annotations

from errno import EACCES, EINVAL, ENOSPC, ENOSYS, EPERM

import pytest

from staddle.linux.userns import Facts, obstacle

TABLE = [
    (Facts("namespace", ENOSPC, maximum="0"), "user.max_user_namespaces is 0", "user.max_user_namespaces="),
    (Facts("namespace", ENOSPC, maximum="9"), "a sandbox around us", "outside that sandbox"),
    (Facts("namespace", EINVAL), "CONFIG_USER_NS", "landlock"),
    (Facts("namespace", ENOSYS), "CONFIG_USER_NS", "landlock"),
    (Facts("namespace", EPERM, userns_clone="0"), "unprivileged_userns_clone is 0", "userns_clone=1"),
    (Facts("namespace", EPERM, userns_clone="0", seccomp=True), "unprivileged_userns_clone is 0", "=1"),
    (Facts("namespace", EPERM, userns_clone="1", seccomp=True), "seccomp filter", "seccomp=unconfined"),
    (
        Facts("namespace", EPERM, seccomp=True),
        "seccomp filter around this process refuses new namesp",
        "docker",
    ),
    (Facts("namespace", EACCES, apparmor="1"), "AppArmor", "restrict_unprivileged_userns=0"),
    (Facts("map", EPERM, apparmor="1"), "AppArmor", "restrict_unprivileged_userns=0"),
    (Facts("mount", EACCES, apparmor="1", seccomp=True), "AppArmor", "restrict_unprivileged_userns=0"),
    (
        Facts("mount", EPERM, apparmor="0", seccomp=True),
        "seccomp filter around this process refuses mounts",
        "",
    ),
    (Facts("proc", EPERM, covered=("/proc/kcore",)), "covered (/proc/kcore)", "systempaths=unconfined"),
    (Facts("proc", EPERM, covered=("/proc/keys",), apparmor="1"), "covered (/proc/keys)", "systempaths"),
    (Facts("proc", EPERM, seccomp=True), "seccomp filter", "seccomp=unconfined"),
    (Facts("namespace", EPERM), "cannot be created: Operation not permitted", "landlock"),
    (Facts("map", EPERM), "ids cannot be mapped", "landlock"),
    (Facts("mount", EACCES), "nothing can be mounted in it: Permission denied", "landlock"),
    (Facts("proc", EPERM), "no new /proc", "landlock"),
]


@pytest.mark.parametrize(("facts", "why", "fix"), TABLE)
def test_the_cause_and_the_remedy(facts: Facts, why: str, fix: str) -> None:
    found = obstacle(facts)
    assert found is not None
    assert why in found.why
    assert fix.lower() in found.fix.lower()
    assert found.fix


def test_nothing_in_the_way() -> None:
    suspicious = Facts("", seccomp=True, userns_clone="0", apparmor="1", maximum="0", covered=("/proc/keys",))
    assert obstacle(suspicious) is None
