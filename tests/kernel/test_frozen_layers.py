"""What a snapshot has frozen stays as it is: no descriptor that a payload kept leads to it, or beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from staddle import Sandbox

#: From a directory that was open before a snapshot: everything that ".." leads to, and what is in it.
_WALK = """
for here in /proc/self/fd/9 /proc/self/fd/9/.. /proc/self/fd/9/../.. /proc/self/fd/9/../../..; do
    for there in $here $here/* $here/*/*; do
        for name in t rc tmp/t home/*/rc; do
            if [ -e "$there/$name" ]; then (echo EVIL > "$there/$name") 2>/dev/null; fi
        done
        [ -d "$there" ] && (echo left > "$there/left-behind") 2>/dev/null && echo "written: $there"
    done
done
true
"""
_KEEP = """
n=20
for there in /proc/self/fd/9/../* /proc/self/fd/9/../../* /proc/self/fd/9/../*/*; do
    if [ -d "$there" ] && [ $n -lt 60 ]; then eval "exec $n<\\"$there\\"" 2>/dev/null && n=$((n+1)); fi
done
exec 9</tmp
true
"""
_WRITE = """
for fd in $(ls /proc/$$/fd); do
    for name in t rc tmp/t home/user/rc; do (echo EVIL > /proc/$$/fd/$fd/$name) 2>/dev/null; done
done
true
"""


@pytest.mark.parametrize("user", [None, "root"])
@pytest.mark.parametrize("directory", ["/tmp", "/home/user", "/workspace", "/var/tmp"])
def test_a_kept_directory_leads_to_no_frozen_layer(tmp_path: Path, directory: str, user: str | None) -> None:
    options = {} if user is None else {"user": user}
    with Sandbox(tmp_path) as sb:
        sb.run(f"exec 9<{directory}; echo good > /tmp/t; echo good > ~/rc; echo good > t", check=True)
        clean = sb.snapshot()
        for _ in range(2):  # at once: what is set aside is not there for long
            assert sb.run(_WALK, **options).stdout == ""
            sb.run(_KEEP)
            sb.run("echo good > /tmp/t; echo good > ~/rc; echo good > t")
            clean = sb.snapshot()
        left, right = sb.fork(2)
        # What the first sandbox kept open, and what it can reach from there, is not the others'.
        sb.run(_WRITE)
        sb.run(_WALK, **options)
        for other in (left, right):
            assert other.run("cat /tmp/t ~/rc t").stdout == "good\ngood\ngood\n"
            other.close()
        sb.restore(clean)
        assert sb.run("cat /tmp/t ~/rc t").stdout == "good\ngood\ngood\n"
