"""Sandboxes of each kind, opened, used once and closed, one after the other."""

from __future__ import annotations

import socket
import threading
from typing import Any

from part import Part, Run

from staddle import Network, Policy, Pool, Reason, Sandbox, wrap

_MANY = 10_000


def _cycle(run: Run, **settings: Any) -> None:
    for number in run.steps():
        with run.step(), Sandbox(**settings) as sandbox:
            run.expect(sandbox.run(f"echo {number} | tee mine").stdout, f"{number}\n", "output")


def plain(run: Run) -> None:
    _cycle(run)


def workspace(run: Run) -> None:
    (run.place / "file").write_text("as it was\n")
    for number in run.steps():
        with run.step(), Sandbox(run.place) as sandbox:
            sandbox.run(f"echo {number} >> file; echo new > added", check=True)
            run.expect([change.kind for change in sandbox.diff()], ["added", "modified"], "changes")
    run.expect((run.place / "file").read_text(), "as it was\n", "the host's file")
    run.expect(sorted(path.name for path in run.place.iterdir()), ["file"], "the host's directory")


def allow_list(run: Run) -> None:
    """Each sandbox reaches the one address that it may, on this machine's loopback, and no other."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=_greet, args=(server,), daemon=True).start()
        policy = Policy.agent().with_network(Network.allow(f"127.0.0.1:{port}"))
        text = (
            f"exec 3<>/dev/tcp/127.0.0.1/{port} && cat <&3; exec 3>&-; (: <>/dev/tcp/192.0.2.1/80) || echo no"
        )
        for _ in run.steps():
            with run.step(), Sandbox(policy=policy) as sandbox:
                run.expect(sandbox.run(text).stdout, "hello\nno\n", "what was reached")
        server.shutdown(socket.SHUT_RDWR)


def _greet(server: socket.socket) -> None:
    while True:
        try:
            caller, _ = server.accept()
        except OSError:
            return
        with caller:
            caller.sendall(b"hello\n")


def limits(run: Run) -> None:
    """With limits on memory, processes and disk, of which the last is reached."""
    policy = Policy.agent().with_limits(memory="256M", processes=64, disk="8M")
    for number in run.steps():
        with run.step(), Sandbox(policy=policy, best_effort=True) as sandbox:
            run.expect(sandbox.run(f"echo {number}").stdout, f"{number}\n", "output")
            if number % 20 == 0:
                # The layers are measured while something is written: it is ended a little later.
                full = sandbox.run("for i in $(seq 200); do head -c 1M /dev/zero >> big; sleep 0.01; done")
                run.expect(full.reason, Reason.disk, "200 MB on a disk of 8")


def pool(run: Run) -> None:
    with Pool(4) as sandboxes:
        for number in run.steps():
            with run.step(), sandboxes.sandbox(timeout=60) as sandbox:
                run.expect(sandbox.run(f"ls /tmp; echo {number} > /tmp/mine").stdout, "", "what was found")


def single(run: Run) -> None:
    """Single commands, without a session, on the backend that is chosen."""
    for _ in run.steps():
        with run.step():
            done = wrap(["echo", "hello"], Policy.agent()).run(capture_output=True, text=True)
            run.expect(done.stdout, "hello\n", "output")


PARTS = (
    Part("cycles-plain", _MANY, "open, one command, close", plain),
    Part("cycles-workspace", _MANY, "the same with a workspace, changes and a diff", workspace),
    Part(
        "cycles-allow-list",
        _MANY,
        "the same with an allow list, one connection made, one refused",
        allow_list,
    ),
    Part("cycles-limits", _MANY, "the same with limits; every twentieth fills its disk", limits),
    Part("cycles-pool", _MANY, "taken from a pool of four and given back", pool, descriptors=48),
    Part("cycles-single", _MANY, "a single command by `wrap`", single),
)
