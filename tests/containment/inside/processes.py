"""Processes of the host: seeing, signalling, tracing, slowing them; and PID 1 of the sandbox."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import threading

from .kit import Refused, World, address, attack, call, checked, libc, twin

NOT_THERE = "ESRCH EPERM EACCES ENOENT"
TWIN = "signal-and-trace-own-child"


@attack("processes", "nothing", twin=TWIN)
def see_a_process_of_the_host(world: World) -> str:
    for pid in (name for name in os.listdir("/proc") if name.isdigit()):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if world["marker"].encode() in file.read():
                    return pid
        except OSError:
            continue
    raise Refused("only our own")


@attack("processes", NOT_THERE + " nothing", twin=TWIN)
def find_a_process_by_number(world: World) -> str:
    with open(f"/proc/{_victim(world)}/cmdline") as file:
        if world["marker"] not in file.read():
            raise Refused("another process has that number here")
    return "found"


def _victim(world: World) -> int:
    return _of_the_host(world["victims"][world["name"]])


def _of_the_host(pid: int) -> int:
    """`pid`, unless a process of our own sandbox has that number here."""
    try:
        with open(f"/proc/{pid}/cmdline") as file, open("/proc/self/cmdline") as own:
            if own.read().split("\0")[4] in file.read():
                raise ProcessLookupError(errno.ESRCH, "another process has that number here")
    except (FileNotFoundError, PermissionError):
        pass
    return pid


@attack("signals", NOT_THERE, twin=TWIN)
def kill_a_process(world: World) -> str:
    os.kill(_victim(world), signal.SIGTERM)
    return "sent"


@attack("signals", NOT_THERE, twin=TWIN)
def kill_a_thread(world: World) -> str:
    call("tgkill", _victim(world), _victim(world), signal.SIGTERM)
    return "sent"


@attack("signals", NOT_THERE, twin=TWIN)
def queue_a_signal(world: World) -> str:
    info = ctypes.create_string_buffer(128)
    ctypes.c_int.from_buffer(info, 0).value = signal.SIGTERM
    ctypes.c_int.from_buffer(info, 8).value = -1  # SI_QUEUE
    call("rt_sigqueueinfo", _victim(world), signal.SIGTERM, address(info))
    return "sent"


@attack("signals", NOT_THERE, twin=TWIN)
def kill_by_descriptor(world: World) -> str:
    fd = os.pidfd_open(_victim(world))
    signal.pidfd_send_signal(fd, signal.SIGTERM)
    return "sent"


@attack("signals", NOT_THERE, twin=TWIN)
def kill_the_parent_of_the_sandbox(world: World) -> str:
    """Whoever started the launcher, by the number that it has on the host."""
    os.kill(_of_the_host(world["starter"]), 0)
    return "could be signalled"


@attack("signals", NOT_THERE, twin=TWIN)
def trace_a_process(world: World) -> str:
    call("ptrace", 0x4206, _victim(world), 0, 0)  # PTRACE_SEIZE: attaches without stopping it
    return "attached"


@attack("signals", NOT_THERE, twin=TWIN)
def read_memory_of_a_process(world: World) -> str:
    with open(f"/proc/{_victim(world)}/maps") as file:
        first = int(file.readline().split("-")[0], 16)
    target = ctypes.create_string_buffer(16)
    local = (ctypes.c_ulong * 2)(ctypes.addressof(target), 16)
    remote = (ctypes.c_ulong * 2)(first, 16)
    call("process_vm_readv", _victim(world), address(local), 1, address(remote), 1, 0)
    return target.raw.hex()


@attack("signals", NOT_THERE, twin=TWIN)
def open_memory_of_a_process(world: World) -> str:
    with open(f"/proc/{_victim(world)}/mem", "rb"):
        return "opened"


@attack("signals", NOT_THERE, twin=TWIN)
def take_a_descriptor_of_a_process(world: World) -> int:
    return call("pidfd_getfd", os.pidfd_open(_victim(world)), 0, 0)


@attack("signals", NOT_THERE, twin=TWIN)
def slow_a_process_down(world: World) -> str:
    os.setpriority(os.PRIO_PROCESS, _victim(world), 19)
    return "slowed"


@attack("signals", NOT_THERE, twin=TWIN)
def pin_a_process(world: World) -> str:
    os.sched_setaffinity(_victim(world), {min(os.sched_getaffinity(_victim(world)))})
    return "pinned"


@attack("signals", NOT_THERE, twin=TWIN)
def limit_a_process(world: World) -> str:
    resource.prlimit(_victim(world), resource.RLIMIT_NOFILE, (64, 64))
    return "limited"


@attack("signals", NOT_THERE + " EROFS", twin=TWIN)
def offer_a_process_to_the_oom_killer(world: World) -> str:
    with open(f"/proc/{_victim(world)}/oom_score_adj", "w") as file:
        file.write("1000")
    return "offered"


@attack("signals", "EPERM EACCES ESRCH", twin=TWIN, silent=True, solo=True)
def kill_everything(world: World) -> str:
    """kill(-1): inside it may end the whole sandbox, and nothing else."""
    os.kill(-1, signal.SIGKILL)
    return "killed"


# ------------------------------------------------------------------ PID 1 of the sandbox
# With the same user id it would be a way around every protection that was set up after it.


@attack("signals", "EPERM ESRCH EACCES", control="", twin=TWIN)
def kill_the_first_process(world: World) -> str:
    """No control: unconfined this is the machine's own PID 1."""
    os.kill(1, 0)
    return "could be signalled"


@attack("signals", "EPERM ESRCH EACCES", control="", twin=TWIN)
def trace_the_first_process(world: World) -> str:
    call("ptrace", 0x4206, 1, 0, 0)
    return "attached"


@attack("signals", "ENOENT EACCES EPERM", control="", twin=TWIN)
def open_memory_of_the_first_process(world: World) -> str:
    with open("/proc/1/mem", "r+b"):
        return "opened"


@attack("processes", "ENOENT EACCES EPERM nothing", twin=TWIN)
def read_a_path_of_the_host_in_the_command_line_of_the_first_process(world: World) -> str:
    with open("/proc/1/cmdline") as file:
        text = file.read()
    if "/" not in text:
        raise Refused(f"it is {text!r}")
    return text


@attack("environment", "ENOENT EACCES EPERM", control="", twin=TWIN)
def read_environment_of_the_first_process(world: World) -> str:
    with open("/proc/1/environ") as file:
        return file.read()


@attack("read", "ENOENT EACCES EPERM", control="", twin=TWIN)
def enter_the_root_of_the_first_process(world: World) -> list[str]:
    return os.listdir("/proc/1/root")


# ------------------------------------------------------------------ priorities


@attack("capabilities", "EPERM EACCES", control="root", twin=TWIN)
def become_more_important(world: World) -> str:
    os.setpriority(os.PRIO_PROCESS, 0, -5)
    return "more important"


@attack("capabilities", "EPERM", control="root", twin=TWIN)
def become_a_real_time_process(world: World) -> str:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return "real time"


# ------------------------------------------------------------------ twins


@twin
def forks_and_threads(world: World) -> str:
    seen = []
    threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    child = os.fork()
    if child == 0:
        os._exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert sorted(seen) == [0, 1, 2, 3]
    return "forked"


@twin
def signal_and_trace_own_child(world: World) -> str:
    child = os.fork()
    if child == 0:
        checked(libc.ptrace(0, 0, None, None))  # PTRACE_TRACEME
        os.kill(os.getpid(), signal.SIGSTOP)
        signal.pause()
    _, status = os.waitpid(child, 0)
    assert os.WIFSTOPPED(status)
    checked(libc.ptrace(17, child, None, None))  # PTRACE_DETACH
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    return "traced"


@twin
def locks_between_processes(world: World) -> str:
    import multiprocessing

    lock = multiprocessing.get_context("fork").Lock()
    with lock:
        pass
    return "locked"
