"""The protections of the bwrap backend, one by one. Most of its view is that of others, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .base import SOCKETS_IN_GRANTS, Edit, Patch, Switch, allow_everything, nothing, together


def _trust_bwrap() -> None:
    """Its self-test notices most of this by itself, and would not start anything.

    A session's, of namespaces, starts before anybody asks for it.
    """
    from staddle.backends.bwrap import Bwrap
    from staddle.backends.namespaces import Namespaces
    from staddle.enforcement import Probe

    Namespaces.begin_self_test = lambda self: None  # type: ignore[method-assign]
    Bwrap._begin = lambda self, found: None  # type: ignore[method-assign]
    Bwrap._probed = lambda self, found: Probe("bwrap", usable=True)  # type: ignore[method-assign]


def _words(change: Callable[[list[str]], list[str]]) -> Patch:
    """Change the words for namespaces, ids, capabilities and session."""

    def off() -> None:
        from staddle.backends.bwrap import arguments

        original = arguments.confinement
        arguments.confinement = lambda plan: tuple(change(list(original(plan))))
        _trust_bwrap()

    return off


def _without(*words: str) -> Patch:
    def change(all_words: list[str]) -> list[str]:
        for start in range(len(all_words)):
            if tuple(all_words[start : start + len(words)]) == words:
                return all_words[:start] + all_words[start + len(words) :]
        raise AssertionError(f"bwrap is not told {words}")

    return _words(change)


_SPACES = ("ipc", "pid", "net", "uts", "cgroup")


def _without_namespace(name: str) -> Patch:
    def change(words: list[str]) -> list[str]:
        words.remove("--unshare-all")
        if name == "uts":
            at = words.index("--hostname")
            del words[at : at + 2]
        return [*(f"--unshare-{space}" for space in _SPACES if space != name), *words]

    return _words(change)


def _operations(change: Callable[[Any], list[Any]]) -> Patch:
    """Replace each operation of the layout by what `change` makes of it."""

    def off() -> None:
        from staddle import backends
        from staddle.backends import bwrap
        from staddle.mounts import from_plan

        original = from_plan.lay_out

        def lay_out(plan: Any, view: Any) -> Any:
            made = original(plan, view)
            changed = [new for operation in made.operations for new in change(operation)]
            assert tuple(changed) != made.operations, "this switch takes nothing away any more"
            return made.replace(operations=tuple(changed))

        bwrap.lay_out = from_plan.lay_out = from_plan.lay_out = lay_out
        backends._made.clear()
        _trust_bwrap()

    return off


def _leave_out(chosen: Callable[[Any], bool]) -> Patch:
    return _operations(lambda operation: [] if chosen(operation) else [operation])


def _kind(operation: Any) -> str:
    return type(operation).__name__


def _host_directory(path: str) -> Patch:
    """The host's own directory in place of a private one."""
    from staddle.mounts.operations import Bind

    return _operations(
        lambda operation: (
            [Bind(path, True, "switch")]
            if operation.path == path and _kind(operation) in ("Empty", "Devices")
            else [operation]
        )
    )


def _granted(operation: Any) -> bool:
    """Whether it is about a path of the canaries' world, and not one of the system."""
    return "/staddle-world-" in operation.path


def _writable(operation: Any) -> list[Any]:
    readable = _kind(operation) == "Bind" and not operation.writable and not operation.again
    # The system directories belong to root in any case; what the user granted need not.
    return [operation.replace(writable=True)] if readable and _granted(operation) else [operation]


def _filter(program: Callable[..., bytes]) -> Patch:
    def off() -> None:
        from staddle.backends.bwrap import launching

        launching.program = program
        _trust_bwrap()

    return off


def _filter_profile(profile: str) -> Patch:
    def off() -> None:
        from staddle.backends.bwrap import launching

        launching.filter_profile = lambda plan: profile
        _trust_bwrap()

    return off


def _starting_as_root() -> None:
    from staddle.backends import bwrap

    original = bwrap.launch
    bwrap.launch = lambda starter, *rest: original(starter.replace(unprivileged_uid=None), *rest)
    _trust_bwrap()


def _launcher_environment() -> None:
    import os

    from staddle.backends.bwrap import launching

    launching._ENVIRONMENT = dict(os.environ)
    _trust_bwrap()


def _keep_variables() -> None:
    from staddle.backends.bwrap import arguments

    original = arguments.environment
    arguments.environment = lambda plan: iter(word for word in original(plan) if word != "--clearenv")
    _trust_bwrap()


def _no_limits() -> None:
    from staddle.backends.bwrap import arguments

    arguments.ALWAYS = {"memlock": 65536}
    _trust_bwrap()


def _not_the_first_process(operation: Any) -> bool:
    return operation.path == "/proc/1"


SWITCHES: dict[str, Switch] = {
    "covers of sockets in grants": SOCKETS_IN_GRANTS,
    "network namespace": Switch(_without_namespace("net"), ("connect-to-loopback", "send-a-datagram")),
    "network namespace of our own": Switch(
        nothing,
        ("connect-to-loopback", "start"),  # an ordinary user cannot prepare a network that is another's
        edits=(
            Edit(
                "inside/bwrap_prelude.py", '        call("unshare", userns.CLONE_NEWNET)\n', "        pass\n"
            ),
            Edit(
                "inside/bwrap_prelude.py",
                "userns.CLONE_NEWUSER | userns.CLONE_NEWNET",
                "userns.CLONE_NEWUSER",
            ),
        ),
        network="allow",
    ),
    "another user than root behind the gateway": Switch(
        together(nothing, _trust_bwrap),
        ("uids", "start"),  # what it is shown belongs to the other user: root has no rights over it
        only="root",
        edits=(
            Edit(
                "inside/bwrap_prelude.py",
                "        process.become(spec.unprivileged_uid, spec.unprivileged_uid)\n",
                "        pass\n",
            ),
        ),
        network="allow",
    ),
    "process namespace": Switch(_without_namespace("pid"), ("see-a-process-of-the-host",)),
    "ipc namespace": Switch(_without_namespace("ipc"), ("attach-shared-memory", "open-a-message-queue")),
    "capability drop": Switch(
        _words(lambda words: ["--cap-add" if word == "--cap-drop" else word for word in words]),
        ("have-a-capability",),
    ),
    "no nested user namespaces, filter": Switch(
        together(_without("--disable-userns"), _filter(allow_everything)), ("unshare-user",)
    ),
    "system call filter": Switch(
        _filter(allow_everything),
        ("call-io_uring_setup", "socket-vsock", "read-a-key", "make-a-whiteout"),
        same_for_everyone=True,
    ),
    "filter of set-user-id files": Switch(
        _filter_profile("namespaces"), ("set-the-user-id-bit",), same_for_everyone=True
    ),
    "new session": Switch(_without("--new-session"), ("terminal",), same_for_everyone=True),
    "death with the parent, lifeline": Switch(
        _without("--die-with-parent"),
        ("parent",),
        edits=(Edit("wrapping.py", "            if launch.is_monitored:\n", "            if False:\n"),),
    ),
    "clean environment": Switch(
        together(_launcher_environment, _keep_variables),
        ("find-variables-of-the-host",),
        same_for_everyone=True,
    ),
    "clean launcher, mask of the first process": Switch(
        together(_launcher_environment, _leave_out(_not_the_first_process)),
        ("find-the-secret-in-any-environment",),
    ),
    "mask of the first process": Switch(
        _leave_out(_not_the_first_process),
        ("read-environment-of-the-first-process", "enter-the-root-of-the-first-process"),
    ),
    "mask of the list of keys": Switch(
        _leave_out(lambda operation: operation.path in ("/proc/keys", "/proc/key-users")),
        ("list-keys", "count-keys"),
        only="user",  # the keys of root belong to nobody in root's sandbox, and are not listed
    ),
    "read-only grants": Switch(
        _operations(_writable), ("append-readable", "create-readable"), same_for_everyone=True
    ),
    "guards": Switch(
        _leave_out(lambda o: _kind(o) == "Bind" and o.again and not o.writable),
        ("append-to-git-config", "plant-a-git-hook"),
        same_for_everyone=True,
    ),
    "pins above guards and denied paths": Switch(
        _leave_out(lambda o: _kind(o) == "Bind" and o.again and o.writable),
        ("replace-git-directory", "rename-parent-of-denied"),
        same_for_everyone=True,
    ),
    "masks of denied files": Switch(
        _leave_out(lambda o: _kind(o) == "Mask" and _granted(o)),
        ("read-denied-file",),
        same_for_everyone=True,
    ),
    "covers of denied directories": Switch(
        _leave_out(lambda o: _kind(o) == "Empty" and o.mode == 0 and _granted(o)),
        ("read-in-denied-directory", "list-denied-directory"),
        same_for_everyone=True,
    ),
    "rebuilding for denied names that are missing": Switch(
        _leave_out(lambda o: _kind(o) in ("Empty", "Seal") and o.path.endswith("/late")),
        ("read-denied-name-that-appears",),
        same_for_everyone=True,
    ),
    "private /tmp": Switch(
        _host_directory("/tmp"), ("read-host-tmp", "leave-something-in-tmp"), same_for_everyone=True
    ),
    "private /dev/shm": Switch(_host_directory("/dev/shm"), ("read-host-shm",), same_for_everyone=True),
    "sealed root": Switch(
        _leave_out(lambda o: _kind(o) == "Seal" and o.path == "/"), ("create-in-system-directories",)
    ),
    "sealed /dev": Switch(
        _leave_out(lambda o: _kind(o) == "Seal" and o.path == "/dev"), ("create-in-system-directories",)
    ),
    "core limit": Switch(_no_limits, ("dump-core",), same_for_everyone=True),
    "another user than root": Switch(_starting_as_root, ("uids", "open-setting-core-pattern"), only="root"),
}

#: Those that every backend with a fresh root has in common, whoever builds it.
VIEW = (
    "read-only grants",
    "guards",
    "pins above guards and denied paths",
    "masks of denied files",
    "covers of denied directories",
    "rebuilding for denied names that are missing",
    "private /tmp",
    "private /dev/shm",
)

#: Protections that are not switched off by themselves, and why no attack could notice.
ALONE = {
    "no rights before bwrap": "it drops every capability again, and has an empty set of them to gain",
    "--unshare-user": "bwrap needs a user namespace to make any other; without it nothing starts",
    "--unshare-uts": "it hides the host's name only; setting one takes a capability and passes no filter",
    "--unshare-cgroup": "it hides names of control groups only; none of their files is mounted inside",
    "--disable-userns": "the filter refuses new user namespaces as well: switched off together",
    "--clearenv": "the launcher itself starts with PATH only: switched off together",
    "mask of /proc/timer_list": "only root may read it, and root of the host is nobody inside",
    "mask of /proc/kallsyms": "without capabilities the kernel shows every address as zero",
    "RLIMIT_NICE, RLIMIT_RTPRIO": "they are zero already where nobody raised them",
}
