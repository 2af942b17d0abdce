"""Real programs that must work inside every confining backend, each with its own check.

A script runs with bash in an empty writable directory. `@python@` is an interpreter with
pytest; `@wheel@` is a wheel file on a local index.
"""

# ruff: noqa: E501 - scripts read better unbroken

from __future__ import annotations

import zipfile
from pathlib import Path

IDENTITY = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@x GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@x"

SCRIPTS = {
    "git-clone": f"""
        {IDENTITY}
        git init -q origin && cd origin && echo 1 > f && git add f && git commit -qm first && cd ..
        git clone -q origin clone && cd clone && echo 2 >> f && git commit -qam second
        git gc -q && git fsck && test "$(git log --oneline | wc -l)" = 2 && git status --porcelain | wc -l | grep -qx 0
    """,
    "git-worktree": f"""
        {IDENTITY}
        git init -q repo && cd repo && echo 1 > f && git add f && git commit -qm first
        git worktree add -q ../tree -b branch && cd ../tree && echo 2 >> f && git commit -qam second
        test "$(git log --oneline | wc -l)" = 2
    """,
    "python-multiprocessing": """
        cat > m.py <<'X'
import multiprocessing as mp
def double(n): return 2 * n
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with mp.get_context(method).Pool(2) as pool:
            assert pool.map(double, range(20)) == [2 * n for n in range(20)], method
    queue = mp.Queue(); queue.put(1); assert queue.get() == 1
    with mp.Manager() as manager:
        shared = manager.dict(a=1); assert shared["a"] == 1
    print("ok")
X
        python3 m.py | grep -qx ok
    """,
    "python-shared-memory": """
        python3 -c 'from multiprocessing import shared_memory as s
m = s.SharedMemory(create=True, size=100); m.buf[0] = 7; n = s.SharedMemory(m.name); assert n.buf[0] == 7; n.close(); m.close(); m.unlink()'
    """,
    "python-asyncio-subprocess": """
        python3 -c 'import asyncio
async def main():
    p = await asyncio.create_subprocess_exec("echo", "hi", stdout=-1); assert (await p.communicate())[0] == b"hi\\n"
asyncio.run(main())'
    """,
    "pip-local-index": """
        mkdir -p index/staddle-sample && cp @wheel@ index/staddle-sample/
        echo "<a href='$(basename @wheel@)'>x</a>" > index/staddle-sample/index.html
        python3 -m venv --without-pip env
        @pip@
        @serve@
        $pip --disable-pip-version-check install -q --index-url "$index" --target site staddle-sample
        PYTHONPATH=site python3 -c 'import staddle_sample; assert staddle_sample.answer == 42'
    """,
    "node": """
        node -e 'const fs=require("fs"), cp=require("child_process"), assert=require("assert");
fs.writeFileSync("a.json", JSON.stringify({n: 1})); assert.equal(JSON.parse(fs.readFileSync("a.json")).n, 1);
assert.equal(cp.execFileSync("echo", ["hi"]).toString(), "hi\\n"); fs.mkdtempSync(require("os").tmpdir() + "/x");'
    """,
    "make-gcc": """
        printf '#include <stdio.h>\\nint main(void){puts("built");return 0;}\\n' > a.c
        printf 'all: a b\\na: a.c\\n\\t$(CC) -o a a.c\\nb: a.c\\n\\t$(CC) -O2 -o b a.c\\n' > Makefile
        make -s -j2 && ./a | grep -qx built && ./b | grep -qx built
    """,
    "gcc-sanitizer": """
        printf 'int main(void){return 0;}\\n' > a.c && gcc -fsanitize=address -o a a.c && ./a
    """,
    "pytest": """
        mkdir t && printf 'def test_a(tmp_path):\\n    (tmp_path / "x").write_text("1")\\n' > t/test_a.py
        @python@ -m pytest -q -p no:cacheprovider t | grep -q '1 passed'
    """,
    "tools": """
        echo b > x; echo a >> x; sort x | head -1 | grep -qx a; find . -name x | grep -q x; tar cf x.tar x && tar tf x.tar | grep -qx x
        test "$(mktemp)" && echo > /dev/null && head -c 4 /dev/urandom | wc -c | grep -qx 4 && mkfifo p && sleep 0.01
    """,
    "tmux": """
        tmux -S "$TMPDIR/s" new-session -d 'echo from-tmux > t; sleep 5' && for i in $(seq 50); do test -s t && break; sleep 0.1; done
        grep -qx from-tmux t && tmux -S "$TMPDIR/s" kill-server
    """,
    # ssh refuses a user without an account, inside and outside alike: the second, unprivileged run is one.
    "ssh-agent": """
        getent passwd "$(id -u)" >/dev/null || exit 0
        ssh-keygen -q -t ed25519 -N '' -f key && test -f key.pub
        eval "$(ssh-agent)" >/dev/null && ssh-add -q key && ssh-add -l > listed
        kill $SSH_AGENT_PID
        grep -q ED25519 listed
    """,
}

#: Where the network is loopback, a real server; where it is nothing at all, files.
SERVE = {
    True: "python3 -m http.server -b 127.0.0.1 -d index 8123 >/dev/null 2>&1 & sleep 1; index=http://127.0.0.1:8123",
    False: "index=file://${PWD// /%20}/index",
}
#: A pip of its own, which takes seconds to install; or the host's.
PIP = {True: "python3 -m venv tool; pip=tool/bin/pip", False: "pip='python3 -m pip'"}


def script(name: str, **values: str) -> str:
    """The script `name` with its @placeholders@ filled in."""
    text = SCRIPTS[name]
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def sample_wheel(directory: Path) -> Path:
    """A wheel with one module, made by hand."""
    wheel = directory / "staddle_sample-1.0-py3-none-any.whl"
    info = "staddle_sample-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("staddle_sample.py", "answer = 42\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: staddle-sample\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(
            f"{info}/RECORD", f"staddle_sample.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
        )
    return wheel
