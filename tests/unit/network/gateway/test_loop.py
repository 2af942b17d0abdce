"""The loop tells whoever waits, gives everybody a turn, and sleeps when there is nothing to do."""

from __future__ import annotations

import os
import time

from staddle.network.gateway.loop import INPUT, Loop


def test_whoever_watches_is_told_until_forgotten() -> None:
    loop, heard = Loop(), []
    reading, writing = os.pipe()

    def told(_: int) -> None:
        heard.append(os.read(reading, 1))
        if len(heard) == 3:
            loop.forget(reading)
            loop.stop()

    loop.watch(reading, told, INPUT)
    os.write(writing, b"abcd")
    loop.run()
    assert heard == [b"a", b"b", b"c"]
    loop.forget(reading)  # twice is fine
    os.close(reading)
    os.close(writing)


def test_one_that_was_forgotten_in_the_same_turn_is_not_told() -> None:
    loop, heard = Loop(), []
    pipes = [os.pipe() for _ in range(2)]

    def told(number: int) -> None:
        heard.append(number)
        loop.forget(pipes[1 - number][0])
        loop.stop()

    for number, (reading, writing) in enumerate(pipes):
        loop.watch(reading, lambda _, number=number: told(number), INPUT)
        os.write(writing, b"x")
    loop.run()
    assert len(heard) == 1
    for pair in pipes:
        for fd in pair:
            os.close(fd)


def test_work_that_queues_itself_does_not_keep_others_waiting() -> None:
    loop, order = Loop(), []
    reading, writing = os.pipe()

    def busy() -> None:
        order.append("busy")
        loop.soon(busy)

    def told(_: int) -> None:
        order.append("told")
        loop.stop()

    loop.watch(reading, told, INPUT)
    loop.soon(busy)
    os.write(writing, b"x")
    loop.run()
    assert "told" in order
    assert len(order) < 10
    os.close(reading)
    os.close(writing)


def test_the_clock_is_looked_at_while_somebody_waits() -> None:
    loop, looks = Loop(), []

    def look(now: float) -> bool:
        looks.append(now)
        if len(looks) == 3:
            loop.stop()
        return True

    loop.sweep(look)
    loop.soon(lambda: None)
    began = time.monotonic()
    loop.run()
    assert time.monotonic() - began >= 0.9  # twice a second, not all the time


def test_work_for_an_idle_loop_waits_until_nothing_comes_and_is_called_once() -> None:
    loop, order = Loop(), []

    def busy() -> None:
        order.append("busy")
        if order.count("busy") < 5:
            loop.soon(busy)

    def idle() -> None:
        order.append("idle")

    def look(_: float) -> bool:
        if "idle" in order:
            loop.stop()
        return True

    loop.sweep(look)
    loop.idle(idle)
    loop.idle(idle)
    loop.soon(busy)
    loop.run()
    assert order == [*["busy"] * 5, "idle"]
