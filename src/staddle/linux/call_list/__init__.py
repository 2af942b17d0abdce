"""Lists of system calls: plain data, carried out between a clone and an exec without the interpreter.

    calls = CallList()
    status = Buffer(4096)
    length = calls.read(b"/proc/self/status", status, what="it cannot be verified")
    calls.check(status, length, b"\\nNoNewPrivs:\\t1\\n", "within", what="it could gain privileges")
    calls.prepare()
    calls.carry_out()

An interpreter writes to every object that it uses. In a process that shares its memory with others, the
kernel copies each such page. `carry_out.c` is half a kilobyte of machine code that makes the calls of a list.
Where it cannot be used, Python makes the same calls from the same list: on another architecture, or if the
host forbids to run code from our files. The code is in the memory of our own processes only, so no process
inside can reach it. It can do nothing that its caller could not do without it.
"""

from __future__ import annotations

import errno
import os
import struct

from .. import syscalls
from ..syscalls import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

    Argument: TypeAlias = "int | bytes | Slot | SlotMemory | Buffer"
    #: number, arguments, slot of the result, whether it may fail, description of its failure
    Row: TypeAlias = "tuple[int, tuple[Argument, ...], Slot, bool, str]"

#: Instead of the number of a system call, as in carry_out.c.
_FORK, _HOLD, _FIND, _WHOLE = -1, -2, -3, -4
_HOW = {"absent": 0, "within": 1, "whole": 2}
_ROW = struct.Struct("=7q8B")
_WORD = 8
#: The slots of the error of the call that failed, and of the place of a call that failed in a child.
_ERROR, _CHILD, _FIRST = 0, 1, 2
_MOST_SLOTS = 256
_PROT_READ, _PROT_WRITE, _PROT_EXEC, _MAP_PRIVATE, _MAP_ANONYMOUS = 1, 2, 4, 0x02, 0x20
_SIGCHLD = 17
AT_FDCWD = -100


class Slot(int):
    """The number of a value that is known when the list is carried out, such as the result of a call."""


class Buffer:
    """Memory of the list, for what a call writes."""

    def __init__(self, size: int) -> None:
        self.size = size


class SlotMemory(int):
    """The memory of a slot with this number, to `check` its value."""


class CallList:
    """Add the calls, `prepare` the list once, and carry it out in this process or in its forks."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._count = _FIRST
        self._kept: list[object] = []

    def slot(self) -> Slot:
        """Return a slot for a value that is set when the list is carried out."""
        self._count += 1
        return Slot(self._count - 1)

    def call(self, name: str, *args: Argument, what: str, may_fail: bool = False) -> Slot:
        """Add the system call `name`; return the slot of its result. Bytes are passed by address.

        `what` describes the failure, which ends the list unless the call `may_fail`.
        """
        number = syscalls.number(name)
        if number is None:
            raise OSError(errno.ENOSYS, f"{name} does not exist on {syscalls.architecture()}")
        return self._add(number, args, what, may_fail)

    def each(self, name: str, several: Iterable[tuple[Argument, ...]], *, what: str) -> None:
        """Add the system call `name` for each of these arguments; none may fail."""
        slot = self._count
        for args in several:
            self._count = slot
            self.call(name, *args, what=what)

    def fork(self, *, what: str) -> tuple[Slot, Callable[[], None]]:
        """Add a child that makes the calls from here on, until the returned function is called.

        We wait until its exec. Until then it uses our memory. Also returns the slot of its pid.
        """
        at = len(self._rows)
        pid = self._add(_FORK, (), what)

        def end() -> None:
            number, _, slot, may_fail, why = self._rows[at]
            self._rows[at] = (number, (len(self._rows) - at - 1,), slot, may_fail, why)

        return pid, end

    def hold(self, flags: int, *, what: str) -> Slot:
        """Add a child with the clone `flags`, which only waits to be killed; return the slot of its pid."""
        return self._add(_HOLD, (flags,), what)

    def read(self, path: bytes, room: Buffer, *, what: str) -> Slot:
        """Add the reading of a whole file; return the slot of its length."""
        file = self.call("openat", AT_FDCWD, path, os.O_RDONLY | os.O_CLOEXEC, 0, what=what)
        length = self._add(_WHOLE, (file, room, room.size), what)
        self.call("close", file, what=what)
        return length

    def check(self, room: Buffer | int, length: int, text: bytes, how: str, *, what: str) -> None:
        """Fail unless `text` is `within` the first `length` bytes of `room`, is `absent`, or is the `whole`.

        `room` may be an address.
        """
        self._add(_FIND, (room, length, text, len(text), _HOW[how]), what)

    def expect(self, slot: Slot, value: int, *, what: str) -> None:
        """Fail unless the value of a slot is this one."""
        self.check(SlotMemory(slot), _WORD, struct.pack("q", value), "whole", what=what)

    def address(self, data: bytes) -> int:
        """Return the address of a copy of `data` that lives as long as the list, for use in a structure."""
        copy = ctypes.create_string_buffer(data, len(data) + 1)
        self._kept.append(copy)
        return ctypes.addressof(copy)

    def _add(self, number: int, args: tuple[Argument, ...], what: str, may_fail: bool = False) -> Slot:
        slot = self.slot()
        self._rows.append((number, args, slot, may_fail, what))
        return slot

    def prepare(self) -> None:
        """Place everything in memory: what is written first, apart from what is only read."""
        if self._count > _MOST_SLOTS:
            raise ValueError(f"{self._count} slots are too many for a list")
        rooms: dict[Buffer, int] = {}
        texts: dict[bytes, int] = {}
        size = self._count * _WORD
        for arg in [arg for row in self._rows for arg in row[1]]:
            if isinstance(arg, bytes):
                texts[arg] = 0
            elif isinstance(arg, Buffer) and arg not in rooms:
                rooms[arg] = size
                size += arg.size + -arg.size % _WORD
        for text in texts:
            texts[text] = size
            size += len(text) + 1 + -(len(text) + 1) % _WORD
        whole = size + len(self._rows) * _ROW.size
        # Memory that nobody has touched yet: a large room takes some only once it is used.
        prot, flags = _PROT_READ | _PROT_WRITE, _MAP_PRIVATE | _MAP_ANONYMOUS
        self._base = base = syscalls.call("mmap", 0, whole, prot, flags, -1, 0)
        self._first = base + size
        block = self._block = (ctypes.c_char * whole).from_address(base)
        for text, place in texts.items():
            ctypes.memmove(base + place, text, len(text))

        def word(arg: Argument) -> int:
            if isinstance(arg, Buffer):
                return base + rooms[arg]
            if isinstance(arg, SlotMemory):
                return base + arg * _WORD
            return base + texts[arg] if isinstance(arg, bytes) else int(arg)

        for index, (number, given, slot, may_fail, _) in enumerate(self._rows):
            words = map(word, given)
            marks = [isinstance(a, Slot) for a in given]
            missing = 6 - len(given)
            packed = (number, *words, *[0] * missing, *marks, *[False] * missing, slot, may_fail)
            _ROW.pack_into(block, size + index * _ROW.size, *packed)
        self._slots = (ctypes.c_long * self._count).from_address(base)

    def carry_out(self, values: Mapping[Slot, int] | None = None) -> None:
        """Make the calls; OSError with the description of the one that failed."""
        slots = self._slots
        for slot, value in (values or {}).items():
            slots[slot] = value
        slots[_CHILD] = 0
        failed = 0
        carry_out = _native[0] if _native else self._carry_out
        failed = carry_out(self._first, len(self._rows), self._base)
        if failed or slots[_CHILD]:
            forks = [at for at, row in enumerate(self._rows, 1) if row[0] == _FORK]
            place = failed or max(forks) + slots[_CHILD]
            what = self._rows[place - 1][4]
            error = -slots[_ERROR]
            why = "" if error == errno.EILSEQ else f": {os.strerror(error)}"
            raise OSError(error, f"{what}{why}")

    def fill(self, address: int, data: bytes) -> None:
        """Write `data` to memory from `address`, before the list is carried out."""
        ctypes.memmove(address, data, len(data))

    def __getitem__(self, slot: Slot) -> int:
        """Return a result, once the list has been carried out."""
        return int(self._slots[slot])

    def text(self) -> str:
        """Return the list for people, a line for each call."""
        names = {
            numbers[syscalls.COLUMN[syscalls.architecture()]]: name
            for name, numbers in syscalls.NUMBERS.items()
        }
        names |= {_FORK: "fork", _HOLD: "hold", _FIND: "find", _WHOLE: "read_whole"}
        return "\n".join(
            f"{names[number]}({', '.join(map(_shown, args))}) -> ${slot}"
            for number, args, slot, _, _ in self._rows
        )

    # ---------------------------------------------------------------- in Python

    def _carry_out(self, first: int, count: int, slots: int) -> int:
        """Do the same as carry_out.c."""
        del slots
        start = (first - self._first) // _ROW.size
        at = start
        while at < start + count:
            row = _ROW.unpack_from(self._block, first - self._base + (at - start) * _ROW.size)
            number, words, marks, (slot, may_fail) = row[0], row[1:7], row[7:13], row[13:]
            args = [self._slots[word] if mark else word for word, mark in zip(words, marks, strict=True)]
            if number == _FORK:
                result = self._fork(at + 1, args[0])
                at += args[0]
            elif number == _HOLD:
                result = _held(args[0])
            elif number == _FIND:
                result = _find(args)
            elif number == _WHOLE:
                result = _whole(*args[:3])
            else:
                result = syscalls.plain(number, args)
            if result < 0 and not may_fail:
                self._slots[_ERROR] = result
                return at + 1 - start
            self._slots[slot] = result
            at += 1
        return 0

    def _fork(self, place: int, count: int) -> int:
        """Start the child, and wait until it has exec'd or ended. It reports a failure on a pipe."""
        report, report_to = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            try:
                failed = self._carry_out(self._first + place * _ROW.size, count, 0)
                os.write(report_to, struct.pack("ll", failed, self._slots[_ERROR]))
            finally:
                os._exit(1)
        os.close(report_to)
        said = os.read(report, 2 * _WORD)
        os.close(report)
        if said:
            self._slots[_CHILD], self._slots[_ERROR] = struct.unpack("ll", said)
        return pid


def _held(flags: int) -> int:
    pid = syscalls.call("clone", flags | _SIGCHLD, 0, 0, 0, 0)
    while pid == 0:
        syscalls.plain(syscalls.NUMBERS["ppoll"][syscalls.COLUMN[syscalls.architecture()]] or 0, [0] * 6)
    return pid


def _find(args: list[int]) -> int:
    text, wanted = ctypes.string_at(args[0], args[1]), ctypes.string_at(args[2], args[3])
    found = text == wanted if args[4] == _HOW["whole"] else (wanted in text) == bool(args[4])
    return 0 if found else -errno.EILSEQ


def _whole(descriptor: int, address: int, room: int) -> int:
    used = 0
    while used < room:
        data = os.read(descriptor, room - used)
        if not data:
            return used
        ctypes.memmove(address + used, data, len(data))
        used += len(data)
    return -errno.EILSEQ


def _shown(arg: Argument) -> str:
    if isinstance(arg, Slot | SlotMemory):
        return f"${int(arg)}" if isinstance(arg, Slot) else f"&${int(arg)}"
    return f"[{arg.size}]" if isinstance(arg, Buffer) else repr(arg)


# ---------------------------------------------------------------- in machine code


def code_path(machine: str) -> str:
    """Return the path of the machine code, which `make call-list` builds from carry_out.c."""
    return os.path.join(os.path.dirname(__file__), f"{machine}.bin")


def use_machine_code() -> bool:
    """Use the machine code from now on, in this process and its forks; False if that is impossible."""
    try:
        with open(code_path(syscalls.architecture()), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            flags = _PROT_READ | _PROT_EXEC, _MAP_PRIVATE
            address = syscalls.call("mmap", 0, size, *flags, file.fileno(), 0)
    except OSError:
        return False  # no file, another architecture, a file system without programs, or a policy
    word, pointer = ctypes.c_long, ctypes.c_void_p
    _native[:] = [ctypes.PYFUNCTYPE(word, pointer, word, pointer)(address)]
    return True


_native: list[Callable[[int, int, int], int]] = []
