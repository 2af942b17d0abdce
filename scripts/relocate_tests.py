"""Give the compiled tests in a copy of the tree the paths that they have there: `relocate_tests.py OLD NEW`.

pytest compiles tests by itself, for the messages of `assert`, which takes as long as running a thousand of
them. Unlike the interpreter, it believes the path in a compiled file: without this, a traceback would lead to
the tree that was copied.
"""

from __future__ import annotations

import importlib.util
import marshal
import sys
from pathlib import Path
from types import CodeType

#: What comes before the code: magic number, flags, time and size of the source.
_HEADER = 16


def relocated(code: CodeType, old: str, new: str) -> CodeType:
    """The same code, and all code in it, with a path below `new` for each below `old`."""
    path = code.co_filename
    return code.replace(
        co_filename=f"{new}/{path.removeprefix(f'{old}/')}" if path.startswith(f"{old}/") else path,
        co_consts=tuple(
            relocated(each, old, new) if isinstance(each, CodeType) else each for each in code.co_consts
        ),
    )


def main(old: str, new: str) -> None:
    for file in Path(new, "tests").rglob(f"*.{sys.implementation.cache_tag}-pytest-*.pyc"):
        data = file.read_bytes()
        if data[:4] != importlib.util.MAGIC_NUMBER:
            continue
        code = relocated(marshal.loads(data[_HEADER:]), old, new)  # noqa: S302 - we have just copied it
        file.write_bytes(data[:_HEADER] + marshal.dumps(code))


if __name__ == "__main__":
    main(*sys.argv[1:])
