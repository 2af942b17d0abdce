"""What the host program makes of a file_client's answers: nothing that comes from inside is believed."""

from __future__ import annotations

import _socket
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from staddle.errors import ArchiveRefused, InvalidCall, PathEscape, SandboxLost, SessionError
from staddle.files.tar import END, Member, padding, write
from staddle.inside.agent.tar import plain_name
from staddle.ipc import file_messages
from staddle.ipc.wire import Malformed
from staddle.sandbox import file_client, files
from staddle.sandbox.file_client import FileClient

Answers = Callable[[_socket.socket, file_messages.Said], None]


class Process:
    """Stands for the process that the agent would have started."""

    pid, failure = 7, ""

    def poll(self) -> None:
        return None

    def signal(self, number: int) -> None:
        assert number == 18

    def close(self) -> None:
        pass


class Link:
    """Stands for the line to an agent; a thread answers as `answers` does."""

    alive = True

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.started = 0
        self.threads: list[threading.Thread] = []

    def start_file_server(self, line: int, code: int, who: object) -> Process:
        assert who is None
        assert os.fstat(code).st_size > 0
        self.started += 1
        process = Process()
        theirs = _socket.socket(fileno=os.dup(line))
        thread = threading.Thread(target=self._serve, args=(theirs,))
        thread.start()
        self.threads.append(thread)
        return process

    def _serve(self, line: _socket.socket) -> None:
        try:
            while (said := file_messages.receive_message(line)) is not None:
                self._answers(line, said)
                said.close()
        except (OSError, Malformed):
            pass
        finally:
            line.close()


@contextmanager
def client_of(answers: Answers) -> Iterator[FileClient]:
    link = Link(answers)
    made = FileClient(link)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()
        for thread in link.threads:
            thread.join(60)


def row(name: bytes) -> tuple[bytes, int, int, int, int, int, bytes]:
    return name, 0o100644, 1, 0, 1000, 1000, b"user"


def test_an_answer_comes_in_as_many_messages_as_it_takes() -> None:
    def answers(line: _socket.socket, said: file_messages.Said) -> None:
        file_messages.send_message(line, file_messages.MORE, (row(b"a"), row(b"b")))
        file_messages.send_message(line, file_messages.MORE, ())
        file_messages.send_message(line, file_messages.LAST, (row(b"c"),))

    with client_of(answers) as made:
        assert [name for name, *_ in made.ask(file_messages.LIST, b"/").rows] == [b"a", b"b", b"c"]
        assert [name for name, *_ in made.ask(file_messages.LIST, b"/").rows] == [b"a", b"b", b"c"]


def test_only_a_regular_file_is_taken(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

        def answers(line: _socket.socket, said: file_messages.Said, fd: int = fd) -> None:
            file_messages.send_message(line, file_messages.LAST, (), descriptors=(fd,))

        try:
            with client_of(answers) as made, pytest.raises(SessionError, match="something else than a file"):
                made.open(file_messages.OPEN, b"/x")
        finally:
            os.close(fd)
    nothing: Answers = lambda line, said: file_messages.send_message(line, file_messages.LAST, ())  # noqa: E731
    with client_of(nothing) as made, pytest.raises(SessionError, match="none came"):
        made.open(file_messages.OPEN, b"/x")


def test_no_descriptor_is_left_open() -> None:
    fd = os.open("/dev/null", os.O_RDONLY)

    def answers(line: _socket.socket, said: file_messages.Said) -> None:
        file_messages.send_message(line, file_messages.MORE, (), descriptors=(fd,))
        file_messages.send_message(
            line, file_messages.ERROR, file_messages.OF_KERNEL, 2, b"", b"", b"", descriptors=(fd,)
        )

    before = len(os.listdir("/proc/self/fd"))
    with client_of(answers) as made:
        for _ in range(3):
            with pytest.raises(FileNotFoundError):
                made.ask(file_messages.LIST, b"/")
    assert len(os.listdir("/proc/self/fd")) <= before
    os.close(fd)


@pytest.mark.parametrize(
    "data",
    [
        b"garbage",
        b"=",
        b"=l\xff\xff\xff\xff",
        b"?" + b"x" * 100,
        b"Z",
        b"+l\x01\0\0\0l\x01\0\0\0l\x01\0\0\0i" + bytes(8),
    ],
)
def test_what_is_no_answer_ends_it(data: bytes) -> None:
    with client_of(lambda line, said: line.sendall(data)) as made:
        with pytest.raises(SessionError):
            made.ask(file_messages.LIST, b"/")
        with pytest.raises(SessionError):  # another one was started, which is no better
            made.ask(file_messages.LIST, b"/")


def test_a_question_for_an_answer_ends_it() -> None:
    def answers(line: _socket.socket, said: file_messages.Said) -> None:
        file_messages.send_message(line, file_messages.QUESTION, file_messages.LIST, (b"/",), ())

    with client_of(answers) as made, pytest.raises(SessionError, match="asks instead"):
        made.ask(file_messages.LIST, b"/")


def test_no_answer_is_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_client, "MOST_ROWS", 1000)

    def answers(line: _socket.socket, said: file_messages.Said) -> None:
        while True:
            file_messages.send_message(line, file_messages.MORE, tuple(row(b"x") for _ in range(100)))

    with client_of(answers) as made, pytest.raises(OSError, match="more than 1,000 names"):
        made.ask(file_messages.LIST, b"/")


def test_silence_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_client, "PATIENCE", 0.1)
    pipes: list[int] = []

    def answers(line: _socket.socket, said: file_messages.Said) -> None:
        if said.descriptor >= 0:  # kept open, and nothing is done with it
            pipes.append(said.descriptor)
            said.descriptor = -1

    with client_of(answers) as made:
        with pytest.raises(SessionError, match="not answered for"):
            made.ask(file_messages.LIST, b"/")
        with made.turn:
            sending = made.send(file_messages.WRITE, b"/x", numbers=(0,))
            with pytest.raises(SessionError, match="does not take"):
                sending.write(b"x" * (8 << 20))
            sending.drop()
            receiving = made.receive(file_messages.PACK, b"/x")
            with pytest.raises(SessionError, match="sends nothing"):
                receiving.read(1)
            receiving.close()
    for fd in pipes:
        os.close(fd)


def test_one_that_was_killed_while_it_waited_is_replaced() -> None:
    calls = []

    def answers(line: _socket.socket, said: file_messages.Said) -> None:
        calls.append(said.fields[0])
        file_messages.send_message(line, file_messages.LAST, ())
        if len(calls) == 1:
            raise OSError  # it ends

    with client_of(answers) as made:
        made.ask(file_messages.LIST, b"/")
        made._agent.threads[0].join(60)  # type: ignore[attr-defined]
        made._process.close()  # type: ignore[union-attr]
        made.ask(file_messages.LIST, b"/")
        assert made._agent.started == 2  # type: ignore[attr-defined]
        made._agent.alive = False  # type: ignore[misc]
        with pytest.raises(SandboxLost):
            raise made._lost("")


@pytest.mark.parametrize(
    ("operation", "reads", "asked"),
    [
        (file_messages.LIST, True, 2),
        (file_messages.LIST, False, 2),
        (file_messages.REMOVE, False, 2),
        (file_messages.REMOVE, True, 1),
    ],
)
def test_what_can_have_been_done_is_not_asked_twice(operation: bytes, reads: bool, asked: int) -> None:
    class Dying(Link):
        def _serve(self, line: _socket.socket) -> None:
            import select

            select.select([line], (), ())
            if reads:
                file_messages.receive_message(line)
            line.close()

    link = Dying(lambda line, said: None)
    made = FileClient(link)  # type: ignore[arg-type]
    try:
        with pytest.raises(SessionError, match="was lost"):
            made.ask(operation, b"/x")
        assert link.started == asked
    finally:
        made.close()
        for thread in link.threads:
            thread.join(60)


def test_errors_are_built_here() -> None:
    said: list[tuple[bytes, int, bytes, bytes, bytes]] = []
    with client_of(lambda line, _: file_messages.send_message(line, file_messages.ERROR, *said[0])) as made:
        for error, kind in (
            ((file_messages.OF_KERNEL, 13, b"/x", b"", b""), PermissionError),
            ((file_messages.OF_KERNEL, 21, b"", b"why", b""), IsADirectoryError),
            ((file_messages.OF_KERNEL, -5, b"", b"", b""), OSError),
            ((file_messages.OF_KERNEL, 1 << 40, b"", b"", b""), OSError),
            ((b"PathEscape", 0, b"what\x1b[2J", b"why", b"fix"), PathEscape),
            ((b"ArchiveRefused", 0, b"what", b"", b""), ArchiveRefused),
            ((b"SystemExit", 1, b"", b"", b""), OSError),
        ):
            said[:] = [error]
            with pytest.raises(kind) as raised:
                made.ask(file_messages.LIST, b"/")
            assert "\x1b" not in str(raised.value)


def test_names_that_lead_elsewhere_are_left_out() -> None:
    rows = [row(name) for name in (b"a", b"../b", b"/c", b"d/e", b".", b"", b"f//g", b"h\0i", b"a")]
    assert files.checked_names(rows) == ["a", "d/e"]
    assert files.checked_names([row(b"etc")], "/") == ["/etc"]


def test_a_file_is_read_within_its_limit(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    with open(tmp_path / "x", "rb") as file:
        assert files.within(file, 5, "x") == b"12345"
        file.seek(0)
        with pytest.raises(OSError, match="more than 4 bytes"):
            files.within(file, 4, "x")


def test_content_is_text_bytes_or_a_binary_file() -> None:
    with client_of(lambda line, said: file_messages.send_message(line, file_messages.LAST, ())) as made:
        for content in ("text", b"bytes", bytearray(b"x")):
            files.put(made, content, file_messages.WRITE, b"/x")
        for content in (5, None, ["a"], "\ud800"):
            with pytest.raises(InvalidCall):
                files.put(made, content, file_messages.WRITE, b"/x")  # type: ignore[arg-type]


# ---------------------------------------------------------------- tar


def tar(*members: Member, content: bytes = b"") -> io.BytesIO:
    out = io.BytesIO()
    for member in members:
        write(member, out.write)
        out.write(content[: member.size] + padding(member.size))
    out.write(END)
    return io.BytesIO(out.getvalue())


def test_a_tar_from_inside_is_written_anew() -> None:
    out = io.BytesIO()
    source = tar(
        Member("directory", "d", 0o40755 & 0o7777),
        Member("file", "d/f", 0o4755, size=3, attributes=(("user.x", b"y"),)),
        Member("symlink", "l", target="/etc/passwd"),
        content=b"abc",
    )
    files.relay(source, out.write)
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as made:
        assert [(item.name, item.mode) for item in made] == [("d", 0o755), ("d/f", 0o755), ("l", 0o644)]
        content = made.extractfile("d/f")
        assert content is not None
        assert content.read() == b"abc"


@pytest.mark.parametrize(
    "member",
    [
        Member("file", "/etc/passwd"),
        Member("file", "../x"),
        Member("file", "a/../../x"),
        Member("link", "a", target="../x"),
        Member("link", "a", target="/etc/passwd"),
        Member("whiteout", "a"),
        Member("file", "./a"),
    ],
)
def test_a_tar_from_inside_that_leads_out_is_refused(member: Member) -> None:
    with pytest.raises(ArchiveRefused):
        files.relay(tar(member), io.BytesIO().write)


def test_a_tar_from_inside_that_goes_on_is_refused() -> None:
    source = tar(Member("file", "a"))
    with pytest.raises(ArchiveRefused, match="after the end"):
        files.relay(io.BytesIO(source.getvalue() + b"x"), io.BytesIO().write)
    with pytest.raises(ArchiveRefused, match="early"):
        files.relay(io.BytesIO(source.getvalue()[:-600]), io.BytesIO().write)


def test_member_names_have_one_spelling() -> None:
    assert plain_name("./a//b/.") == "a/b"
    assert plain_name("./") == ""
    for bad in ("/a", "..", "a/../b", "a/.."):
        with pytest.raises(ArchiveRefused):
            plain_name(bad)


def test_nothing_is_read_of_a_file_that_says_it_is_too_large(tmp_path: Path) -> None:
    class Unread:
        def __init__(self, fd: int) -> None:
            self.fd = fd

        def fileno(self) -> int:
            return self.fd

        def read(self, size: int) -> bytes:
            raise AssertionError(f"{size} bytes are read")

    with open(tmp_path / "large", "wb+") as file:
        file.truncate(1001)
        with pytest.raises(OSError, match="more than 1000 bytes"):
            files.within(Unread(file.fileno()), 1000, "large")  # type: ignore[arg-type]
        assert files.within(file, 1001, "large") == bytes(1001)
