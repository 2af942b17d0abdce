"""What a shell is told first does nothing that a command could notice."""

from __future__ import annotations

import subprocess
from pathlib import Path

from staddle.inside.agent.shell_files import NAMES, SHELL_OPTIONS, greeting


def places(directory: Path) -> tuple[bytes, ...]:
    for name in NAMES:
        (directory / name).touch()
    return (*(bytes(directory / name) for name in NAMES), bytes(directory / "nowhere"))


def test_the_file_for_texts_is_not_read(tmp_path: Path) -> None:
    where = places(tmp_path)
    assert where[NAMES.index("text")] not in greeting(where)


def test_a_shell_says_which_it_is_and_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    where = places(tmp_path)
    asked = b'echo "$? [$_] $# ${OLDPWD-unset} $- ${#BASH_SOURCE[@]}" >answer\n'
    subprocess.run(
        [b"bash", *SHELL_OPTIONS],
        input=greeting(where) + asked,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin"},
        check=True,
        timeout=20,
    )
    status, last, count, oldpwd, flags, depth = (tmp_path / "answer").read_text().split()
    assert (status, last, count, oldpwd, depth) == ("0", "[]", "0", "unset", "0")
    assert set(flags) - {"m"} == set("hiBs")
    assert (
        b"/hello.5." in (tmp_path / "done").read_bytes() or b"/hello.4." in (tmp_path / "done").read_bytes()
    )
    assert (tmp_path / "output").read_bytes() == (tmp_path / "errors").read_bytes() == b""
