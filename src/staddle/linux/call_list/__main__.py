"""Build the machine code of call lists from carry_out.c: `make call-list`.

The files are bytes of one section, without headers, times or names. So the same compiler builds the same
bytes, and a test compares them where there is one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import code_path

_FLAGS = (
    *("-Os", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-ffreestanding", "-nostdlib", "-fno-ident"),
    *("-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-builtin"),
    *("-fno-tree-loop-distribute-patterns", "-fno-tree-vectorize", "-fomit-frame-pointer"),
)
#: By architecture: the prefix of its tools, and its own flags.
_TOOLS = {
    "x86_64": ("x86_64-linux-gnu-", ("-mno-red-zone", "-fcf-protection=branch")),
    "aarch64": ("aarch64-linux-gnu-", ("-mno-outline-atomics", "-mbranch-protection=bti")),
}
_SOURCE = Path(__file__).with_name("carry_out.c")


def compiler(machine: str) -> str | None:
    """Return the compiler for an architecture; None if it is not installed."""
    return shutil.which(f"{_TOOLS[machine][0]}gcc")


def build(machine: str) -> bytes:
    """Return the machine code for an architecture. CalledProcessError: the source does not compile."""
    prefix, flags = _TOOLS[machine]
    with tempfile.TemporaryDirectory() as place:
        built, code = os.path.join(place, "built.o"), os.path.join(place, "code")
        subprocess.run([f"{prefix}gcc", *_FLAGS, *flags, "-c", _SOURCE, "-o", built], check=True)
        symbols = subprocess.run([f"{prefix}nm", built], check=True, capture_output=True).stdout.split()
        if any(int(address, 16) for address in symbols[::3]) or b"carry_out" not in symbols:
            raise ValueError(f"the code does not begin with carry_out alone: {symbols}")
        subprocess.run([f"{prefix}objcopy", "-O", "binary", "-j", ".text", built, code], check=True)
        return Path(code).read_bytes()


def main() -> None:
    """Write the code for every architecture."""
    for machine, (prefix, _) in _TOOLS.items():
        if compiler(machine) is None:
            sys.exit(f"{prefix}gcc is missing: apt-get install gcc-{prefix.rstrip('-')}")
        Path(code_path(machine)).write_bytes(build(machine))


if __name__ == "__main__":
    main()
