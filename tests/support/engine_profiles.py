"""The default system call filters of container engines, as tables: who refuses what.

Written from what the engines document and from trying each call under them. An OCI runtime loads them; calls
that are not named here are allowed, which a test that must not depend on the newest call can live with.
"""

from __future__ import annotations

import errno
import os
from typing import Any

#: Refused by Docker unless the container has the capability.
DOCKER = {
    "CAP_SYS_ADMIN": (
        *("bpf", "fanotify_init", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr"),
        *("move_mount", "open_tree", "perf_event_open", "quotactl", "quotactl_fd", "setdomainname"),
        *("sethostname", "setns", "syslog", "umount", "umount2", "unshare"),
    ),
    "CAP_SYS_PTRACE": ("kcmp", "pidfd_getfd", "process_madvise"),
    "CAP_SYS_NICE": ("get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node"),
    "CAP_SYS_BOOT": ("reboot",),
    "CAP_SYS_MODULE": ("init_module", "finit_module", "delete_module"),
    "CAP_SYS_PACCT": ("acct",),
    "CAP_SYS_RAWIO": ("iopl", "ioperm"),
    "CAP_SYS_TIME": ("settimeofday", "clock_settime"),
    "CAP_SYS_TTY_CONFIG": ("vhangup",),
    "CAP_DAC_READ_SEARCH": ("open_by_handle_at",),
}
#: Refused by it whatever the container has.
NEVER = (
    *("add_key", "keyctl", "request_key", "io_uring_enter", "io_uring_register", "io_uring_setup"),
    *("kexec_file_load", "kexec_load", "migrate_pages", "move_pages", "pivot_root", "swapoff", "swapon"),
    *("userfaultfd", "nfsservctl", "uselib", "ustat", "sysfs", "lookup_dcookie"),
)
#: Podman allows these to everybody, and with them a sandbox in a user namespace of its own.
PODMAN_ALLOWS = (
    *(
        "fsconfig",
        "fsmount",
        "fsopen",
        "fspick",
        "mount",
        "mount_setattr",
        "move_mount",
        "open_tree",
        "setns",
    ),
    *("umount", "umount2", "unshare", "pivot_root", "pidfd_getfd", "keyctl", "process_madvise"),
)
_NAMESPACES = 0x7E020000
_X86 = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]


def docker(capabilities: tuple[str, ...], architecture: str) -> dict[str, Any]:
    """Docker's default, for a container with these capabilities."""
    refused = set(NEVER)
    for capability, names in DOCKER.items():
        if capability not in capabilities:
            refused.update(names)
    rows = [_refusal(sorted(refused), errno.EPERM)]
    if "CAP_SYS_ADMIN" not in capabilities:
        # Its arguments cannot be seen by a filter, so callers are told to use clone.
        rows.append(_refusal(["clone3"], errno.ENOSYS))
        for bit in (1 << shift for shift in range(32) if _NAMESPACES >> shift & 1):
            row = _refusal(["clone"], errno.EPERM)
            row["args"] = [{"index": 0, "value": bit, "valueTwo": bit, "op": "SCMP_CMP_MASKED_EQ"}]
            rows.append(row)
    return _profile(rows, architecture)


def podman(capabilities: tuple[str, ...], architecture: str) -> dict[str, Any]:
    """Podman's default: namespaces and mounts are left to the kernel to decide about."""
    refused = set(NEVER)
    for capability, names in DOCKER.items():
        if capability not in capabilities:
            refused.update(names)
    return _profile([_refusal(sorted(refused - set(PODMAN_ALLOWS)), errno.EPERM)], architecture)


def _refusal(names: list[str], number: int) -> dict[str, Any]:
    return {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": number}


def _profile(rows: list[dict[str, Any]], architecture: str) -> dict[str, Any]:
    known = _X86 if architecture == "x86_64" else ["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"]
    return {"defaultAction": "SCMP_ACT_ALLOW", "architectures": known, "syscalls": rows}


def resolved(profile: dict[str, Any], capabilities: tuple[str, ...]) -> dict[str, Any]:
    """A profile in the engines' format as a runtime takes it: an engine does this for each container."""
    rows = []
    for row in profile["syscalls"]:
        with_, without = row.get("includes") or {}, row.get("excludes") or {}
        if not set(with_.get("caps") or ()) <= set(capabilities) or set(without.get("caps") or ()) & set(
            capabilities
        ):
            continue
        rows.append({key: row[key] for key in ("names", "action", "args", "errnoRet") if key in row})
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile.get("defaultErrnoRet", errno.EPERM),
        "architectures": [
            name
            for entry in profile["archMap"]
            for name in (entry["architecture"], *(entry["subArchitectures"] or ()))
            if os.uname().machine.upper() == entry["architecture"].removeprefix("SCMP_ARCH_")
        ],
        "syscalls": rows,
    }
