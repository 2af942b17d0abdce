"""What a process can do to itself really happens, in a child."""

from __future__ import annotations

import os
import textwrap

import pytest

from staddle.linux import process
from tests.support.in_a_child import python


def status(code: str) -> str:
    """What `code` prints; it can ask for a line of its own /proc/self/status."""
    ask = """
        def status(name):
            with open("/proc/self/status") as file:
                return next(line.split(":", 1)[1].strip() for line in file if line.startswith(name + ":"))
        from staddle.linux import process
    """
    return python(textwrap.dedent(ask) + textwrap.dedent(code))


@pytest.mark.needs_root
def test_becoming_somebody_is_for_ever() -> None:
    code = """
        from staddle.linux import process
        process.become(8300001, 8300002)
        print(os.getresuid(), os.getresgid(), os.getgroups())
        for attempt in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0])):
            try:
                attempt()
                print("came back")
            except PermissionError:
                pass
        process.drop_capabilities()
    """
    assert python(code) == "(8300001, 8300001, 8300001) (8300002, 8300002, 8300002) []"


def test_becoming_somebody_takes_root() -> None:
    code = """
        from staddle.linux import process
        if os.geteuid() == 0:
            process.drop_capabilities()
        try:
            process.become(8300001, 8300001)
            print("became")
        except PermissionError:
            print("refused")
    """
    assert python(code) == "refused"


@pytest.mark.both_users
@pytest.mark.parametrize(
    ("without", "left"),
    [("", "0"), ("secure bits", "0"), ("bounding set", "0"), ("secure bits, bounding set", "all")],
)
def test_the_secure_bits_and_the_empty_bounding_set_each_keep_a_root_from_gaining_rights(
    without: str, left: str
) -> None:
    code = f"""
        from staddle.linux import process
        real = process._prctl
        left_out = {{"secure bits": process.PR_SET_SECUREBITS, "bounding set": process.PR_CAPBSET_DROP}}
        process._prctl = lambda option, *more: (
            0 if any(name in {without!r} and option == each for name, each in left_out.items())
            else real(option, *more)
        )
        process.empty_bounding_set()
        bits = real(27)  # PR_GET_SECUREBITS
        print(bits == process.SECUREBITS, flush=True)
        os.execv("/bin/sh", ["sh", "-c", "sed -n 's/^CapEff:.//p' /proc/self/status"])
    """
    said, rights = python(textwrap.dedent(code), around=["unshare", "--user", "--map-root-user"]).split()
    assert said == str("secure bits" not in without)
    assert (int(rights, 16) == 0) == (left == "0")


def test_orphans_come_to_a_subreaper() -> None:
    code = """
        from staddle.linux import process
        process.subreaper()
        middle = os.fork()
        if middle == 0:
            if os.fork() == 0:
                time.sleep(0.2)
                os._exit(7)
            os._exit(0)
        os.waitpid(middle, 0)
        print(os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]))
    """
    assert python(code) == "7"


def test_descriptors_are_closed_but_for_those_kept() -> None:
    code = """
        from staddle.linux import process
        kept = [os.dup(0), os.dup(0), os.dup(0), os.dup(0), os.dup(0)]
        os.dup2(0, 900)
        process.close_from(3, keep=(kept[1], kept[3], 1, -1, 900))
        left = []
        for fd in range(1024):
            try:
                os.fstat(fd)
                left.append(fd)
            except OSError:
                pass
        print(left == [0, 1, 2, kept[1], kept[3], 900])
    """
    assert python(code) == "True"


def test_a_signal_by_descriptor_hits_only_that_process() -> None:
    pid = os.fork()
    if pid == 0:
        import time

        time.sleep(60)
        os._exit(0)
    descriptor = process.pidfd_open(pid)
    try:
        process.pidfd_send_signal(descriptor, process.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -15
        with pytest.raises(ProcessLookupError):
            process.pidfd_send_signal(descriptor, process.SIGTERM)
    finally:
        os.close(descriptor)


def test_a_descriptor_can_be_taken_from_a_child() -> None:
    code = """
        from staddle.linux import process
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            read, write = os.pipe()
            os.write(write, b"from inside")
            os.write(tell, b"%d" % read)
            time.sleep(60)
        pidfd = process.pidfd_open(child)
        fd = process.pidfd_getfd(pidfd, int(os.read(told, 10)))
        print(os.read(fd, 20).decode())
        os.kill(child, 9)
    """
    assert python(code) == "from inside"


def test_limits_are_set_and_never_raised() -> None:
    code = """
        import resource
        from staddle.linux import process
        process.set_rlimits({process.RLIMIT_CORE: (1, 1), process.RLIMIT_NOFILE: (64, 64)})
        process.set_rlimits({process.RLIMIT_NOFILE: (process.UNLIMITED, process.UNLIMITED)})
        print(resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_NOFILE))
    """
    assert python(code) == "(1, 1) (64, 64)"


def test_signals_are_as_a_new_program_expects_them() -> None:
    code = """
        import signal
        for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1, signal.SIGRTMAX):
            signal.signal(number, signal.SIG_IGN)
        process.block_signals([process.SIGTERM, 64])
        process.default_signals()
        print(status("SigIgn"), status("SigBlk"))
    """
    assert set(status(code).split()) == {"0" * 16}


def test_blocked_signals_are_read_from_a_descriptor() -> None:
    code = """
        from staddle.linux import process
        numbers = [process.SIGTERM, process.SIGINT, 64]
        process.block_signals(numbers)
        descriptor = process.signal_descriptor(numbers)
        assert process.read_signals(descriptor) == []
        for number in numbers:
            os.kill(os.getpid(), number)
        print(sorted(process.read_signals(descriptor)))
    """
    assert python(code) == "[2, 15, 64]"


def test_a_fresh_keyring_holds_nothing_of_the_old_one() -> None:
    code = """
        import ctypes
        from staddle.linux import process
        from staddle.linux.syscalls import call
        old = call("keyctl", 0, -3, 0)  # which session keyring
        process.new_session_keyring()
        print(call("keyctl", 0, -3, 0) != old)
    """
    assert python(code) == "True"


def test_nobody_of_the_same_user_looks_into_a_process_that_is_not_dumpable() -> None:
    code = """
        from staddle.linux import process
        if os.geteuid() == 0:
            process.become(8300001, 8300001)
        process.dumpable(True)
        told, tell = os.pipe()
        go, let_go = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(go, 1)
            process.dumpable(False)
            os.write(tell, b"x")
            time.sleep(60)
        open(f"/proc/{child}/environ", "rb").read()  # the control
        os.write(let_go, b"x")
        os.read(told, 1)
        try:
            open(f"/proc/{child}/environ", "rb").read()
            print("read")
        except PermissionError:
            print("refused")
        os.kill(child, 9)
    """
    assert python(code) == "refused"
