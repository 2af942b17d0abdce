"""What a snapshot has frozen stays as it is: no descriptor that a payload kept leads to it, or beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from staddle import Policy, Sandbox

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


@pytest.mark.slow
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


#: By directories that are open as 20, 21, …: what is denied, and what may not be changed.
_PEEK = """
for fd in 20 21 22 23; do
    cat /proc/self/fd/$fd/secret /proc/self/fd/$fd/d/secret /proc/self/fd/$fd/vault/secret 2>/dev/null
    for hooks in /proc/self/fd/$fd/.git/hooks /proc/self/fd/$fd/d/.git/hooks; do
        [ -d $hooks ] && (echo EVIL > $hooks/pre-commit) 2>/dev/null && echo "written: $fd"
    done
done
true
"""


def test_what_is_denied_stays_so_in_a_directory_that_was_kept_open(tmp_path: Path) -> None:
    """Also when its tree has been taken away: masks, and what is mounted read-only, go with it."""
    work, read, write = (tmp_path / name for name in ("work", "read", "write"))
    for place in (work, read, write):
        (place / "d/vault").mkdir(parents=True)
        (place / "d/secret").write_text(f"SECRET of {place.name}\n")
        (place / "d/vault/secret").write_text(f"SECRET of {place.name}'s vault\n")
        (place / "d/.git/hooks").mkdir(parents=True)
        for name in ("objects", "refs"):
            (place / "d/.git" / name).mkdir()
        (place / "d/.git/HEAD").write_text("ref: refs/heads/main\n")
        for each in (place, *place.rglob("*")):
            each.chmod(0o777 if each.is_dir() else 0o666)
    denied = [f"{place}/d/{name}" for place in (work, read, write) for name in ("secret", "vault")]
    policy = Policy.agent().with_read(str(read)).with_write(str(write)).with_deny(*denied)
    with Sandbox(work, policy=policy) as sb:
        for fd, place in enumerate(("/workspace/d", "/workspace", f"{read}/d", f"{write}/d"), start=20):
            sb.run(f"exec {fd}<{place}", check=True)
        assert sb.run(_PEEK).stdout == "written: 20\nwritten: 21\n"  # in a layer, which the host reviews
        for step in range(3):
            before = sb.snapshot()
            assert before.method == "swap"
            sb.run(f"echo {step} > /tmp/n; echo {step} > /workspace/n", check=True)
            assert sb.run(_PEEK).stdout == ""  # of the tree of before, which is read-only
        sb.restore(before)
        assert sb.run(_PEEK).stdout == ""
        sb.snapshot()  # at the latest now, what was there before is taken away
        assert sb.run(_PEEK).stdout == ""
        assert sb.run("cat /workspace/n /tmp/n").stdout == "1\n1\n"
    assert not [*tmp_path.rglob("pre-commit")]
