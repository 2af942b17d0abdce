"""Through the gateway, bytes, ends and resets pass as they are, and bounds hold."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import sys
from pathlib import Path

import pytest

from staddle.network.host.gateway_process import GatewayBounds
from tests.support.in_a_child import ROOT
from tests.support.network_servers import echo, http_server, listening
from tests.support.network_world import PUBLIC, apart, at, in_a_world, sandbox, status
from tests.support.waiting import until

HOSTS = {"api.example.com": PUBLIC}
READ = """
try:
    while s.recv(65536): pass
    print("end")
except OSError as error:
    print(type(error).__name__)
"""
CONNECT = "import socket, sys, time; s = socket.create_connection(('api.example.com', 9000), 10)\n"


# Bytes.


@pytest.mark.slow
@pytest.mark.same_for_everyone
@in_a_world
def test_a_large_transfer_arrives_whole_in_both_directions() -> None:
    size = 64 << 20
    block = os.urandom(1 << 20)
    expected = hashlib.sha256(block * 64).hexdigest()

    def serve(connection: socket.socket) -> None:
        digest, left = hashlib.sha256(), size
        while left:
            data = connection.recv(min(left, 1 << 20))
            digest.update(data)
            left -= len(data)
        connection.sendall(digest.hexdigest().encode())
        for _ in range(64):
            connection.sendall(block)
        connection.close()

    listening(PUBLIC, 9000, serve)
    path = Path(f"/dev/shm/staddle-test-{os.getpid()}")
    path.write_bytes(block)
    try:
        with sandbox("api.example.com:9000", hosts=HOSTS) as inside:
            code = (
                CONNECT
                + f"""
import hashlib
block = open({str(path)!r}, "rb").read()
s.sendall(b"".join([block] * 64))
print(s.recv(64, socket.MSG_WAITALL).decode())
digest = hashlib.sha256()
while data := s.recv(1 << 20): digest.update(data)
print(digest.hexdigest())
"""
            )
            assert inside.python(code).split() == [expected, expected]
    finally:
        path.unlink()


@pytest.mark.same_for_everyone
@in_a_world
def test_half_a_connection_can_end() -> None:
    def serve(connection: socket.socket) -> None:
        said = b""
        while data := connection.recv(100):
            said += data
        connection.sendall(b"got " + said)
        connection.close()

    listening(PUBLIC, 9000, serve)
    with sandbox("api.example.com:9000", hosts=HOSTS) as inside:
        code = CONNECT + "s.sendall(b'\\0half'); s.shutdown(1); print(s.recv(100)); print(s.recv(100))"
        assert inside.python(code).split("\n") == ["b'got \\x00half'", "b''"]
        # and the same with not one byte before the end
        assert inside.python(CONNECT + "s.shutdown(1); print(s.recv(100))") == "b'got '"


@pytest.mark.same_for_everyone
@in_a_world
def test_the_end_of_a_server_that_speaks_and_leaves_at_once_arrives() -> None:
    with at(PUBLIC):
        listener = socket.create_server((PUBLIC, 9000), backlog=128)

    def greet() -> None:
        while True:
            connection, _ = listener.accept()
            connection.sendall(b"bye")
            connection.close()

    apart(greet)
    with sandbox(f"{PUBLIC}:9000") as inside:
        # Whether the end comes together with the connection is a matter of chance, each time.
        code = f"""
import socket
for _ in range(60):
    with socket.create_connection(("{PUBLIC}", 9000), 10) as s:
        s.settimeout(10)
        text = b""
        while data := s.recv(9): text += data
        assert text == b"bye"
print("all")
"""
        assert inside.python(code) == "all"


@pytest.mark.same_for_everyone
@in_a_world
def test_a_server_that_ends_first_still_hears_the_rest() -> None:
    heard = Path(f"/dev/shm/staddle-heard-{os.getpid()}")

    def serve(connection: socket.socket) -> None:
        connection.sendall(b"bye")
        connection.shutdown(socket.SHUT_WR)
        said = b""
        while data := connection.recv(100):
            said += data
        heard.write_bytes(said)

    listening(PUBLIC, 9000, serve)
    try:
        with sandbox("api.example.com:9000", hosts=HOSTS) as inside:
            code = CONNECT + "print(s.recv(9), s.recv(9)); time.sleep(.2); s.sendall(b'\\0late'); s.close()"
            assert inside.python(code) == "b'bye' b''"
            assert until(lambda: heard.exists() and heard.read_bytes() == b"\0late")
    finally:
        heard.unlink(missing_ok=True)


@pytest.mark.same_for_everyone
@in_a_world
def test_a_reset_is_a_reset_on_the_other_side() -> None:
    told = Path(f"/dev/shm/staddle-told-{os.getpid()}")

    def serve(connection: socket.socket) -> None:
        if connection.recv(10) == b"\0reset me":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            return
        try:
            connection.recv(10)
            told.write_text("end")
        except ConnectionResetError:
            told.write_text("reset")

    listening(PUBLIC, 9000, serve)
    try:
        with sandbox("api.example.com:9000", hosts=HOSTS) as inside:
            code = CONNECT + "s.sendall(b'\\0reset me')" + READ
            assert inside.python(code) == "ConnectionResetError"
            linger = "s.setsockopt(1, 13, b'\\1\\0\\0\\0\\0\\0\\0\\0')"
            inside.python(CONNECT + f"s.sendall(b'\\0x'); time.sleep(.2); {linger}; s.close()")
            assert until(told.exists)
            assert until(lambda: told.read_text() == "reset")
    finally:
        told.unlink(missing_ok=True)


@pytest.mark.same_for_everyone
@in_a_world
def test_a_server_that_is_not_there_is_a_reset_and_a_word() -> None:
    with sandbox("api.example.com:9000", hosts=HOSTS) as inside:
        code = (
            CONNECT + "s.sendall(b'x')\ntry: print(s.recv(9))\nexcept OSError as e: print(type(e).__name__)"
        )
        _, out, err = inside.run(sys.executable, "-I", "-c", code)
        assert "Reset" in out or "Refused" in err or "Reset" in err
        failed = [a for a in inside.attempts() if a.outcome == "failed"]
        assert [(a.host, a.port, a.why) for a in failed] == [("api.example.com", 9000, "Connection refused")]


@pytest.mark.same_for_everyone
@in_a_world
def test_an_idle_connection_stays() -> None:
    echo(PUBLIC, 9000)
    with sandbox("api.example.com", hosts={"api.example.com": PUBLIC}) as inside:
        code = """
import socket, time
s = socket.create_connection(("api.example.com", 9000)); s.sendall(b"\\0one"); print(s.recv(9))
t = socket.create_connection(("api.example.com", 9000))
time.sleep(6)
s.sendall(b"two"); print(s.recv(9))
t.sendall(b"\\0late"); print(t.recv(9))
"""
        assert inside.python(code).split("\n") == ["b'\\x00one'", "b'two'", "b'\\x00late'"]


# GatewayBounds.


@pytest.mark.slow
@pytest.mark.same_for_everyone
@in_a_world
def test_a_reader_that_does_not_read_does_not_grow_the_gateway() -> None:
    def serve(connection: socket.socket) -> None:
        try:
            while True:
                connection.sendall(bytes(1 << 20))
        except OSError:
            pass

    listening(PUBLIC, 9000, serve)
    with sandbox("api.example.com:9000", hosts=HOSTS) as inside:
        assert inside.gateway is not None
        before = int(status(inside.gateway.pid)["VmRSS"].split()[0])
        connect = "socket.create_connection(('api.example.com', 9000))"
        inside.python(f"import socket, time\nall = [{connect} for _ in range(60)]\ntime.sleep(1)")
        grown = int(status(inside.gateway.pid)["VmHWM"].split()[0]) - before
        assert grown < 64 << 10, f"{grown} KiB"


@pytest.mark.same_for_everyone
@in_a_world
def test_no_more_than_so_many_connections_at_once_and_the_rest_waits() -> None:
    echo(PUBLIC, 9000)
    with sandbox("api.example.com:9000", hosts=HOSTS, bounds=GatewayBounds(connections=4)) as inside:
        code = """
import socket
def open_one():
    s = socket.create_connection(("api.example.com", 9000), 5); s.settimeout(1); s.sendall(b"\\0hi"); return s
first = [open_one() for _ in range(4)]
print([s.recv(9) for s in first] == [b"\\0hi"] * 4)
late = open_one()
try: print(late.recv(9))
except TimeoutError: print("waits")
first[0].close()
late.settimeout(5)
print(late.recv(9))
"""
        assert inside.python(code).split("\n") == ["True", "waits", "b'\\x00hi'"]


@pytest.mark.slow
@in_a_world
def test_thousands_of_connections_leave_nothing_behind() -> None:
    echo(PUBLIC, 9000)
    with sandbox("api.example.com:9000", hosts=HOSTS, bounds=GatewayBounds(connections=32)) as inside:
        assert inside.gateway is not None
        code = """
import socket
for _ in range(40):
    many = []
    for _ in range(25):
        s = socket.socket(); s.setblocking(False)
        try: s.connect(("198.18.1.0", 9000))
        except BlockingIOError: pass
        many.append(s)
    for s in many: s.close()
s = socket.create_connection(("api.example.com", 9000), 10); s.sendall(b"\\0still"); print(s.recv(9))
"""
        assert inside.python(code) == "b'\\x00still'"
        directory = Path(f"/proc/{inside.gateway.pid}/fd")
        if ROOT:
            assert until(lambda: len(list(directory.iterdir())) < 20)


@pytest.mark.slow
@pytest.mark.same_for_everyone
@in_a_world
def test_bytes_and_idle_time_have_bounds() -> None:
    echo(PUBLIC, 9000)
    with sandbox("api.example.com:9000", hosts=HOSTS, bounds=GatewayBounds(most_bytes=1 << 20)) as inside:
        assert inside.python(CONNECT + "s.sendall(b'\\0' * 1000); print(len(s.recv(2000)))") == "1000"
        code = (
            CONNECT
            + "s.setblocking(False)\ntry: s.send(bytes(4 << 20))\nexcept OSError: pass\ns.setblocking(True)"
            + READ
        )
        assert inside.python(code) == "ConnectionResetError"
        told = inside.attempts()
        assert any("no more bytes" in a.why for a in told), told
    with sandbox("api.example.com:9000", hosts=HOSTS, bounds=GatewayBounds(idle=1)) as inside:
        assert inside.python(CONNECT + "s.sendall(b'\\0')" + READ) == "ConnectionResetError"


@pytest.mark.slow
@pytest.mark.same_for_everyone
@in_a_world
def test_an_opening_that_never_ends_holds_nothing_up() -> None:
    http_server(PUBLIC, 80)
    with sandbox("api.example.com:80", hosts=HOSTS) as inside:
        code = """
import socket, urllib.request
trickle = [socket.create_connection(("api.example.com", 80)) for _ in range(50)]
for s in trickle: s.sendall(b"GET / HT")
print(urllib.request.urlopen("http://api.example.com/", timeout=5).read().decode())
s = trickle[0]; s.settimeout(20)
try: print(s.recv(9))
except ConnectionResetError: print("reset")
"""
        assert inside.python(code).split("\n") == ["hello from api.example.com", "reset"]
        assert any("did not come to an end" in a.why for a in inside.attempts())


@pytest.mark.slow
@pytest.mark.same_for_everyone
@in_a_world
def test_a_trickle_in_hundreds_of_connections_neither_stalls_nor_grows_it() -> None:
    echo(PUBLIC, 9000)
    with sandbox("api.example.com:9000", hosts=HOSTS) as inside:
        assert inside.gateway is not None
        before = int(status(inside.gateway.pid)["VmRSS"].split()[0])
        code = """
import socket
def connect(): return socket.create_connection(("api.example.com", 9000), 30)
def rest(s):
    got = 0
    while data := s.recv(65536): got += len(data)
    return got
many = [connect() for _ in range(100)]
for turn in range(20):
    for s in many: s.sendall(b"\\0")
    if turn % 5 == 0:
        with connect() as s:  # a large one in between has its turn
            s.sendall(b"\\0" * 300000); s.shutdown(1)
            assert rest(s) == 300000
for s in many: s.shutdown(1)
print({rest(s) for s in many})
"""
        assert inside.python(code) == "{20}"
        grown = int(status(inside.gateway.pid)["VmHWM"].split()[0]) - before
        assert grown < 16 << 10, f"{grown} KiB"


@pytest.mark.slow
@pytest.mark.same_for_everyone
@in_a_world
def test_who_is_not_accepted_waits_in_a_queue_that_is_short() -> None:
    echo(PUBLIC, 9000)
    with sandbox("api.example.com:9000", hosts=HOSTS, bounds=GatewayBounds(connections=2)) as inside:
        code = """
import select, socket, time
many = []
for _ in range(400):
    s = socket.socket(); s.setblocking(False)
    try: s.connect(("198.18.1.0", 9000))
    except BlockingIOError: pass
    many.append(s)
def connected(): return sum(bool(select.select([], [s], [], 0)[1]) for s in many)
found, again = 0, connected()
while found != again or found < 100:
    time.sleep(0.1); found, again = again, connected()
print(found < 200)
for s in many: s.close()
s = socket.create_connection(("api.example.com", 9000), 30); s.sendall(b"\\0after"); print(s.recv(9))
"""
        assert inside.python(code).split("\n") == ["True", "b'\\x00after'"]
