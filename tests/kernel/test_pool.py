"""A pool hands out sandboxes that nobody has used, at once when they are warm, and never too many."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from staddle import Pool, Sandbox
from staddle.errors import InvalidCall, PolicyError, PoolExhausted, SandboxClosed
from tests.support.sandboxes import children, descriptors, every_backend
from tests.support.waiting import run_together, unique_seconds, until, with_argument


@every_backend
def test_it_is_warm_and_a_release_leaves_nothing_for_the_next(backend: str) -> None:
    mark = unique_seconds()
    path = f"/tmp/staddle-pool-{mark}"
    with Pool(2, backend=backend) as pool:
        assert until(lambda: pool.warm == 2)
        first = pool.acquire()
        first.run(f"x=1; cd /usr; echo mine > {path}; sleep {mark} &")
        pool.release(first)
        assert until(lambda: pool.warm == 2 and not with_argument(mark))
        with pytest.raises(SandboxClosed):
            first.run("true")
        for _ in range(3):
            with pool.sandbox() as sb:
                got = sb.run(f'echo "${{x-unset}}"; ls {path}; pwd')
                assert got.stdout.startswith("unset\n")
                assert (backend == "native") == (path in got.stdout)  # /tmp is the host's there
                assert "/usr" not in got.stdout
    if backend == "native":
        os.unlink(path)


def test_no_more_than_its_size_and_who_waits_gets_the_next() -> None:
    with Pool(2, backend="native") as pool:
        taken = [pool.acquire(), pool.acquire()]
        assert pool.in_use == 2
        began = time.monotonic()
        with pytest.raises(PoolExhausted, match="all 2 are in use"):
            pool.acquire(timeout=0.2)
        assert time.monotonic() - began < 60
        with pytest.raises(TimeoutError):
            pool.acquire(timeout=0)
        timer = threading.Timer(0.2, pool.release, [taken[0]])
        timer.start()
        third = pool.acquire(timeout=10)
        assert third not in taken
        assert third.run("echo fine").ok
        timer.join()


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_many_threads_share_it() -> None:
    used: list[str] = []

    def work(number: int) -> None:
        with pool.sandbox(timeout=30) as sb:
            sb.run(f"x={number}")
            time.sleep(0.02)
            used.append(sb.run("echo $x").stdout.strip())

    with Pool(3, backend="native") as pool:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
        run_together(threads)
    assert sorted(used, key=int) == [str(number) for number in range(12)]


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_idle_ones_are_closed_down_to_the_minimum() -> None:
    with Pool(4, minimum=1, idle=600.0, backend="native") as pool:
        assert until(lambda: pool.warm == 1)
        taken = [pool.acquire() for _ in range(4)]
        for sandbox in taken:
            pool.release(sandbox)
        assert until(lambda: pool.warm == 4)
        with pool._lock:
            pool._idle = 0.2
            pool._changed.notify_all()
        assert until(lambda: pool.warm == 1)
        time.sleep(0.7)
        assert pool.warm == 1
        assert pool.acquire(timeout=60).run("echo fine").ok


def test_nothing_is_kept_warm_when_the_minimum_is_none() -> None:
    with Pool(2, minimum=0, idle=0.2, backend="native") as pool:
        assert pool.warm == 0
        with pool.sandbox() as sb:
            assert sb.run("echo fine").ok
        assert until(lambda: pool.warm == 0 and pool.in_use == 0)


def test_one_that_died_while_it_waited_is_not_handed_out() -> None:
    with Pool(1, backend="native") as pool:
        assert until(lambda: pool.warm == 1)
        victim = pool._warm[0][0]
        agent = int(victim.run("echo $PPID").stdout)
        os.kill(agent, signal.SIGKILL)
        assert until(lambda: not victim.alive)
        with pool.sandbox(timeout=10) as sb:
            assert sb is not victim
            assert sb.run("echo fine").ok


def test_after_close_everything_says_so_and_nothing_is_left() -> None:
    with Sandbox(backend="native") as sb:
        sb.run("true")
    before = descriptors(), len(children())
    pool = Pool(2, backend="native")
    taken = pool.acquire()
    pool.acquire()
    errors: list[Exception] = []

    def wait() -> None:
        try:
            pool.acquire()
        except SandboxClosed as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)
    pool.close()
    pool.close()
    waiting.join(60)
    assert len(errors) == 1
    with pytest.raises(SandboxClosed, match="pool is closed"):
        pool.acquire()
    with pytest.raises(SandboxClosed):
        taken.run("true")
    pool.release(taken)  # late, but harmless
    assert until(lambda: descriptors() <= before[0] and len(children()) <= before[1])
    assert "closed" in repr(pool)


def test_a_sandbox_is_released_once_and_to_its_own_pool() -> None:
    with Pool(1, backend="native") as pool, Sandbox(backend="native") as stranger:
        with pytest.raises(InvalidCall):
            pool.release(stranger)
        mine = pool.acquire()
        pool.release(mine)
        with pytest.raises(InvalidCall):
            pool.release(mine)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"size": 0}, InvalidCall),
        ({"size": -1}, InvalidCall),
        ({"size": True}, InvalidCall),
        ({"size": 1.5}, InvalidCall),
        ({"size": 2, "minimum": 3}, InvalidCall),
        ({"size": 2, "minimum": -1}, InvalidCall),
        ({"size": 2, "idle": 0}, InvalidCall),
        ({"size": 2, "idle": True}, InvalidCall),
        ({"size": 2, "idle": float("nan")}, InvalidCall),
        ({"size": 2, "idle": 10**400}, InvalidCall),
        ({"size": 2, "mode": "nonsense"}, InvalidCall),
        ({"size": 2, "policy": "agent"}, PolicyError),
        ({"size": 2, "no_such_option": 1}, TypeError),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(
    arguments: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        Pool(**{"backend": "native", **arguments})  # type: ignore[arg-type]


def test_a_timeout_must_be_one() -> None:
    with Pool(1, backend="native") as pool, pytest.raises(InvalidCall):
        pool.acquire(timeout=-1)


def test_what_the_first_commands_use_is_told_of_each() -> None:
    """The shell was looked at before anybody had it."""
    with Pool(1, backend="namespaces") as pool, pool.sandbox() as sb:
        first = sb.run("head -c 3000000 /dev/zero > x")
        assert first.usage.written is not None
        assert 3_000_000 <= first.usage.written < 4_000_000
        assert sb.run("true").usage.processes == 0
        later = sb.run("sleep 0.02")
        assert later.usage.written is not None
        assert later.usage.written < 1_000_000
