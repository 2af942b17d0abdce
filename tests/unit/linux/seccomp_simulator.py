"""Runs classic BPF as the kernel does for seccomp, and notes which way every jump went."""

from __future__ import annotations

import struct

ALL = 0xFFFF_FFFF


class Simulator:
    """One program. `seen` holds (instruction, jump taken) for all that ran."""

    def __init__(self, program: bytes) -> None:
        self.code = list(struct.iter_unpack("<HBBI", program))
        self.seen: set[tuple[int, bool]] = set()

    def run(self, architecture: int, number: int, arguments: tuple[int, ...]) -> int:
        """The 32-bit answer of the filter, as SECCOMP_RET_* and its data."""
        words = [number & ALL, architecture, 0, 0]
        for argument in arguments:
            words += (argument & ALL, argument >> 32 & ALL)
        at = accumulator = 0
        while True:
            code, if_true, if_false, constant = self.code[at]
            here, at = at, at + 1
            if code == 0x20:
                assert constant % 4 == 0, f"the kernel refuses a load from {constant}"
                accumulator = words[constant // 4]
                jumped = False
            elif code == 0x54:
                accumulator &= constant
                jumped = False
            elif code == 0x06:
                self.seen.add((here, False))
                return constant
            elif code == 0x05:
                at += constant
                jumped = False
            else:
                if code == 0x15:
                    jumped = accumulator == constant
                elif code == 0x35:
                    jumped = accumulator >= constant
                elif code == 0x25:
                    jumped = accumulator > constant
                elif code == 0x45:
                    jumped = bool(accumulator & constant)
                else:
                    raise AssertionError(f"instruction {here} has the unknown code {code:#x}")
                at += if_true if jumped else if_false
            self.seen.add((here, jumped))

    def unseen(self) -> list[tuple[int, bool]]:
        """Instructions that never ran, and outcomes that no comparison ever had."""
        every = {(at, False) for at in range(len(self.code))}
        every |= {(at, True) for at, (code, *_) in enumerate(self.code) if code & 7 == 5 and code != 5}
        return sorted(every - self.seen)
