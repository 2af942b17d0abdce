"""Ten real jobs: the policy learned from one run lets the next one through, and all of it was used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from staddle import Network, Policy, Sandbox
from staddle.paths import covers
from tests.support.package_indexes import Indexes

pytestmark = [pytest.mark.slow, pytest.mark.both_users]

MOST_LINES = 40


class Place(NamedTuple):
    """Where a job runs: its workspace, data outside of it, and indexes of packages."""

    workspace: Path
    data: Path
    indexes: Indexes


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    base = Path(os.path.realpath(tmp_path))
    for name in ("ws", "home", "home/data", "home/other"):
        (base / name).mkdir(mode=0o755)
    monkeypatch.setenv("HOME", str(base / "home"))
    with Indexes(base / "indexes") as indexes:
        yield Place(base / "ws", base / "home/data", indexes)


def pip_and_pytest(place: Place) -> str:
    place.indexes.wheel("adder", "1.0", {"adder.py": "def add(a, b): return a + b\n"})
    (place.workspace / "requirements.txt").write_text("adder\n")
    (place.workspace / "test_adder.py").write_text(
        "import unittest, adder\n\n\nclass T(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(adder.add(1, 2), 3)\n"
    )
    (place.data / "constraints.txt").write_text("adder<2\n")
    return (
        f"python3 -m venv env && env/bin/pip install -q -i {place.indexes.url}/simple -r requirements.txt"
        f" -c {place.data}/constraints.txt && env/bin/python -m unittest -q"
    )


def npm_and_build(place: Place) -> str:
    place.indexes.node_module("greeter", "1.0.0", {"index.js": "module.exports = () => 'hello';\n"})
    package = {"name": "app", "version": "1.0.0", "dependencies": {"greeter": "1.0.0"}}
    package["scripts"] = {"build": "node build.js"}
    (place.workspace / "package.json").write_text(json.dumps(package))
    (place.workspace / "build.js").write_text(
        "require('fs').writeFileSync('out.txt', require('greeter')());\n"
    )
    return f"npm install --registry {place.indexes.url} --no-audit --no-fund && npm run build && cat out.txt"


def git_clone(place: Place) -> str:
    origin = place.data / "origin"
    origin.mkdir()
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        (origin / "a.txt").write_text("a\n")
        subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@b", *words], cwd=origin, check=True)
    return f"git -c safe.directory='*' clone -q {origin} here && git -C here log --oneline && cat here/a.txt"


def make(place: Place) -> str:
    (place.data / "include").mkdir()
    (place.data / "include/answer.h").write_text("#define ANSWER 42\n")
    (place.workspace / "main.c").write_text(
        '#include <stdio.h>\n#include "answer.h"\nint main(void) { printf("%d\\n", ANSWER); return 0; }\n'
    )
    (place.workspace / "Makefile").write_text(
        f"run: main\n\t./main\nmain: main.c\n\tgcc -I{place.data}/include -o main main.c\n"
    )
    return "make -j2"


def web_server(place: Place) -> str:
    (place.data / "index.html").write_text("<p>hello</p>\n")
    return (
        f"python3 -m http.server 8123 --bind 127.0.0.1 -d {place.data} >log 2>&1 & "
        "for i in $(seq 100); do curl -sf http://127.0.0.1:8123/ && break; sleep 0.05; done; kill %1"
    )


def sqlite(place: Place) -> str:
    (place.data / "rows.csv").write_text("1,a\n2,b\n")
    (place.workspace / "load.py").write_text(
        "import csv, sqlite3, sys\nc = sqlite3.connect('d.db')\nc.execute('create table t (n, s)')\n"
        "c.executemany('insert into t values (?, ?)', csv.reader(open(sys.argv[1])))\nc.commit()\n"
    )
    return f"python3 load.py {place.data}/rows.csv"


def archives(place: Place) -> str:
    for name in "ab":
        (place.data / name).write_text(name)
    shutil.make_archive(str(place.data / "set"), "gztar", place.data, "a")
    return f"tar xzf {place.data}/set.tar.gz && tar czf out.tgz -C {place.data} b && tar tzf out.tgz && cat a"


def node(place: Place) -> str:
    (place.data / "in.json").write_text('{"n": 3}')
    return f"node -e \"console.log(JSON.parse(require('fs').readFileSync('{place.data}/in.json')).n)\""


def pipeline(place: Place) -> str:
    for number in range(6):
        (place.data / f"log{number}").write_text(f"GET /{number} 200\n")
    return f"cat {place.data}/log* | awk '{{print $3}}' | sed s/2/3/ | sort | uniq -c | tee counts"


def perl_and_find(place: Place) -> str:
    for number in range(3):
        (place.data / f"{number}.txt").write_text("x\n" * number)
    return f"find {place.data} -name '*.txt' | xargs wc -l | perl -ne 'print if /total/'"


JOBS = (
    *(pip_and_pytest, npm_and_build, git_clone, make, web_server, sqlite, archives, node, pipeline),
    perl_and_find,
)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_the_policy_of_a_job_passes_at_once_and_is_all_used(
    job: object, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    command = job(place)  # type: ignore[operator]
    policy = Policy.agent()
    if place.indexes.url in command:
        policy = policy.with_network(Network.loopback([place.indexes.port]))
    before = sorted(os.listdir(place.workspace))
    with Sandbox(place.workspace, policy, learn=True) as sb:
        first = sb.run(command, timeout=200)
        assert first.ok, first.stderr
        learned = sb.learned()
    text = learned.text()
    with Sandbox(place.workspace, learned.policy, learn="refuse") as sb:
        again = sb.run(command)
        assert again.ok, f"{text}\n{again.stderr}"
        assert sb.learned().policy.read == learned.policy.read
    assert not learned.warnings, text
    assert text.count("\n") <= MOST_LINES, text
    # Nothing outside of this job's own data, and nothing there that was not used.
    for grant in (*learned.policy.read, *learned.policy.write):
        assert covers(str(place.data), grant), text
        assert any(covers(grant, fact.path) for fact in learned.facts), text
    assert bool(learned.policy.read) == (str(place.data) in command or job is make), text
    assert not learned.policy.write
    assert sorted(os.listdir(place.workspace)) == before
