"""Programs that only run another one, as data: which options take a value, and where the other stands."""

from __future__ import annotations

from ..._value import Value


class Prefix(Value):
    """The options of a program that runs another one, to find that one in its arguments.

    `short` and `long` are the options that take the next word; `operands` stand between the
    options and the program. `plain` ones change nothing but how it is run, so an allow list
    need not name them.
    """

    short: str = ""
    long: tuple[str, ...] = ()
    operands: int = 0
    assigns: bool = False
    plain: bool = True


PREFIXES: dict[str, Prefix] = {
    "aa-exec": Prefix("pn", ("profile", "namespace"), plain=False),
    "builtin": Prefix(),
    "busybox": Prefix(),
    "chroot": Prefix(long=("userspec", "groups"), operands=1, plain=False),
    "chrt": Prefix("TPD", ("sched-runtime", "sched-period", "sched-deadline"), operands=1),
    "command": Prefix(),
    "doas": Prefix("uCa", plain=False),
    "env": Prefix("uCS", ("unset", "chdir", "split-string"), assigns=True),
    "exec": Prefix("a"),
    "catatonit": Prefix(),
    "catchsegv": Prefix(),
    "chronic": Prefix(),
    "chpst": Prefix("uUen/bmdoprtfcP", plain=False),
    "cpulimit": Prefix("lp", ("limit", "pid")),
    "dbus-run-session": Prefix(long=("config-file", "dbus-daemon")),
    "dumb-init": Prefix("r", ("rewrite",)),
    "eatmydata": Prefix(),
    "entr": Prefix(),
    "fakechroot": Prefix("sdecb", ("lib", "elfloader", "environment", "config-dir", "bindir"), plain=False),
    "fakeroot-ng": Prefix("pl"),
    "fakeroot": Prefix("lfsib", ("lib", "faked")),
    "firejail": Prefix(plain=False),
    "flock": Prefix("wE", ("timeout", "wait", "conflict-exit-code"), operands=1),
    "gosu": Prefix(operands=1, plain=False),
    "ionice": Prefix("cnpPu", ("class", "classdata", "pid", "pgid", "uid")),
    "linux32": Prefix(),
    "linux64": Prefix(),
    "ltrace": Prefix("aAeFlnopsuxX", ("output", "library", "config", "where")),
    "nice": Prefix("n", ("adjustment",)),
    "nohup": Prefix(),
    "nsenter": Prefix("tSG", ("target", "setuid", "setgid"), plain=False),
    "numactl": Prefix("ipPmNCl", ("interleave", "preferred", "membind", "cpunodebind", "physcpubind")),
    "parallel": Prefix(
        "jNLnsSIaPdCE",
        (
            *("jobs", "max-args", "max-lines", "max-replace-args", "sshlogin", "arg-file", "delimiter"),
            *("colsep", "joblog", "results", "retries", "timeout", "delay", "workdir", "env", "load"),
        ),
        plain=False,
    ),
    "pkexec": Prefix("u", ("user",), plain=False),
    "proot": Prefix(
        "rbmwqkRSi",
        (
            *("rootfs", "bind", "mount", "cwd", "pwd", "qemu", "kernel-release", "change-id"),
            *("verbose", "kill-on-exit"),
        ),
        plain=False,
    ),
    "prlimit": Prefix("po", ("pid", "output")),
    "proxychains": Prefix("f", plain=False),
    "proxychains4": Prefix("f", plain=False),
    "rlwrap": Prefix("bCDeDfHlOpPqsSwz"),
    "run0": Prefix("ugDp", ("user", "group", "chdir", "property", "setenv", "slice", "unit"), plain=False),
    "setarch": Prefix(operands=1),
    "setpriv": Prefix(
        long=(
            *("reuid", "regid", "ruid", "euid", "rgid", "egid", "groups", "inh-caps", "ambient-caps"),
            *("bounding-set", "securebits", "pdeathsig", "selinux-label", "apparmor-profile"),
            *("landlock-access", "landlock-rule", "seccomp-filter"),
        ),
        plain=False,
    ),
    "setsid": Prefix(),
    "setuidgid": Prefix(operands=1, plain=False),
    "stdbuf": Prefix("ioe", ("input", "output", "error")),
    "strace": Prefix("abeEIoOpPsSuUX"),
    "sudo": Prefix(
        "ughpCDRTUrta",
        (
            *("user", "group", "host", "prompt", "close-from", "chdir", "chroot", "command-timeout"),
            *("other-user", "role", "type", "auth-type", "login-class"),
        ),
        assigns=True,
        plain=False,
    ),
    "su-exec": Prefix(operands=1, plain=False),
    "systemd-nspawn": Prefix(
        "DMiuSpEL",
        (
            *("directory", "machine", "image", "user", "slice", "property", "setenv", "bind", "bind-ro"),
            *("tmpfs", "overlay", "template", "uuid", "chdir", "hostname", "capability", "network-veth"),
        ),
        plain=False,
    ),
    "systemd-run": Prefix(
        "HMCpuE",
        (
            *("host", "machine", "property", "unit", "slice", "description", "service-type", "uid", "gid"),
            *("nice", "working-directory", "setenv", "on-active", "on-boot", "on-startup", "on-calendar"),
            *("on-unit-active", "on-unit-inactive", "timer-property", "path-property", "background"),
        ),
        plain=False,
    ),
    "taskset": Prefix(operands=1),
    "time": Prefix("fo", ("format", "output")),
    "timeout": Prefix("ks", ("kill-after", "signal"), operands=1),
    "tini": Prefix("pe"),
    "torify": Prefix(plain=False),
    "torsocks": Prefix("uaP", ("user", "pass", "address", "port"), plain=False),
    "toybox": Prefix(),
    "unbuffer": Prefix(),
    "unshare": Prefix(
        "SGRw",
        ("setuid", "setgid", "root", "wd", "propagation", "map-user", "map-group", "setgroups"),
        plain=False,
    ),
    "valgrind": Prefix(),
    "xvfb-run": Prefix(
        "efnpsw", ("error-file", "auth-file", "server-num", "xauth-protocol", "server-args", "wait")
    ),
    "xargs": Prefix(
        "IaLnPsdE", ("arg-file", "max-args", "max-procs", "max-chars", "delimiter", "process-slot-var")
    ),
}
