"""Programs that run another one, as a table: which options take a value, and where the other stands."""

from __future__ import annotations

from .._value import Value

SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "ksh93", "mksh", "rbash"})


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
    "builtin": Prefix(),
    "busybox": Prefix(),
    "chroot": Prefix(long=("userspec", "groups"), operands=1, plain=False),
    "chrt": Prefix("TPD", ("sched-runtime", "sched-period", "sched-deadline"), operands=1),
    "command": Prefix(),
    "doas": Prefix("uCa", plain=False),
    "env": Prefix("uCS", ("unset", "chdir", "split-string"), assigns=True),
    "exec": Prefix("a"),
    "fakeroot": Prefix("lfsib", ("lib", "faked")),
    "flock": Prefix("wE", ("timeout", "wait", "conflict-exit-code"), operands=1),
    "ionice": Prefix("cnpPu", ("class", "classdata", "pid", "pgid", "uid")),
    "linux32": Prefix(),
    "linux64": Prefix(),
    "nice": Prefix("n", ("adjustment",)),
    "nohup": Prefix(),
    "nsenter": Prefix("tSG", ("target", "setuid", "setgid"), plain=False),
    "prlimit": Prefix("po", ("pid", "output")),
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
    "toybox": Prefix(),
    "unbuffer": Prefix(),
    "unshare": Prefix(
        "SGRw",
        ("setuid", "setgid", "root", "wd", "propagation", "map-user", "map-group", "setgroups"),
        plain=False,
    ),
    "xargs": Prefix(
        "IaLnPsdE", ("arg-file", "max-args", "max-procs", "max-chars", "delimiter", "process-slot-var")
    ),
}
