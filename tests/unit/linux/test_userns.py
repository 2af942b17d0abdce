"""From what was seen to the true cause: a table, and no kernel."""

from __future__ import annotations

from errno import EACCES, EINVAL, ENOSPC, ENOSYS, EPERM

import pytest

from staddle.linux.userns import UsernsFacts, obstacle

TABLE = [
    (
        UsernsFacts("namespace", ENOSPC, maximum="0"),
        "user.max_user_namespaces is 0",
        "user.max_user_namespaces=",
    ),
    (UsernsFacts("namespace", ENOSPC, maximum="9"), "a sandbox around us", "outside that sandbox"),
    (UsernsFacts("namespace", EINVAL), "CONFIG_USER_NS", "landlock"),
    (UsernsFacts("namespace", ENOSYS), "CONFIG_USER_NS", "landlock"),
    (UsernsFacts("namespace", EPERM, userns_clone="0"), "unprivileged_userns_clone is 0", "userns_clone=1"),
    (UsernsFacts("namespace", EPERM, userns_clone="0", seccomp=True), "unprivileged_userns_clone is 0", "=1"),
    (UsernsFacts("namespace", EPERM, userns_clone="1", seccomp=True), "seccomp filter", "doctor --container"),
    (
        UsernsFacts("namespace", EPERM, seccomp=True),
        "seccomp filter around this process refuses new namesp",
        "docker",
    ),
    (UsernsFacts("namespace", EACCES, apparmor="1"), "AppArmor", "restrict_unprivileged_userns=0"),
    (UsernsFacts("map", EPERM, apparmor="1"), "AppArmor", "restrict_unprivileged_userns=0"),
    (UsernsFacts("mount", EACCES, apparmor="1", seccomp=True), "AppArmor", "restrict_unprivileged_userns=0"),
    (
        UsernsFacts("mount", EPERM, apparmor="0", seccomp=True),
        "seccomp filter around this process refuses mounts",
        "",
    ),
    (UsernsFacts("proc", EPERM, covered=("/proc/kcore",)), "covered (/proc/kcore)", "systempaths=unconfined"),
    (
        UsernsFacts("proc", EPERM, covered=("/proc/keys",), apparmor="1"),
        "covered (/proc/keys)",
        "systempaths",
    ),
    (UsernsFacts("proc", EPERM, seccomp=True), "seccomp filter", "doctor --container"),
    (UsernsFacts("namespace", EPERM), "as the kernel answers in a chroot", "pivot_root"),
    (UsernsFacts("map", EPERM), "ids cannot be mapped", "landlock"),
    (UsernsFacts("mount", EACCES), "nothing can be mounted in it: Permission denied", "landlock"),
    (UsernsFacts("proc", EPERM), "no new /proc", "landlock"),
]


@pytest.mark.parametrize(("facts", "why", "fix"), TABLE)
def test_the_cause_and_the_remedy(facts: UsernsFacts, why: str, fix: str) -> None:
    found = obstacle(facts)
    assert found is not None
    assert why in found.why
    assert fix.lower() in found.fix.lower()
    assert found.fix


def test_nothing_in_the_way() -> None:
    suspicious = UsernsFacts(
        "", seccomp=True, userns_clone="0", apparmor="1", maximum="0", covered=("/proc/keys",)
    )
    assert obstacle(suspicious) is None
