"""Sandboxes opened one after the other: each is made of a spare, or on landlock of an agent that waits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from staddle import Identity, Network, Policy, Reason, Sandbox
from staddle.background import wait_for_jobs
from staddle.forkserver import client
from staddle.forkserver.connection import ForkServerClient
from staddle.layers import trash
from staddle.limits.prewarm import PrewarmedCgroups
from staddle.linux.fileio import read_if_there
from staddle.linux.process import has_ended
from staddle.sandbox.open.spare_agents import SPARES, SpareAgent
from staddle.sandbox.workspace import stores
from tests.support.waiting import run_together, until


def take(place: Path | None, said: str = "true", **options: object) -> str:
    with Sandbox(place, backend="namespaces", **options) as sb:  # type: ignore[arg-type]
        return sb.run(said).stdout


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory for which sandboxes were opened before."""
    (tmp_path / "file").write_text("old")
    (tmp_path / "sub").mkdir()
    for _ in range(3):
        take(tmp_path)
    return tmp_path


def test_it_shows_the_directory_as_it_is_now(place: Path) -> None:
    with open(place / "file", "r+") as file:
        file.write("new and longer")
    (place / "sub" / "later").write_text("x")
    assert take(place, "cat file; ls sub") == "new and longerlater\n"
    place.chmod(0o750)
    assert take(place, "stat -c %a /workspace") == "750\n"


def test_another_directory_of_that_name_is_another_one(place: Path) -> None:
    status = place.stat()
    place.rename(place.with_name("away"))
    place.mkdir()
    place.chmod(status.st_mode & 0o777)
    os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert take(place, "ls") == ""


@pytest.mark.slow
def test_who_wants_something_else_gets_it(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "here").touch()
    assert take(other, "ls") == "here\n"
    assert take(place, "touch x; ls", mode="bind") == "file\nsub\nx\n"
    assert take(place, "id -u", identity=Identity(uid=0)) == "0\n"
    assert take(None, "ls -A; pwd") == "/workspace\n"


def test_what_is_denied_and_comes_later_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    policy = Policy.agent().with_deny(tmp_path / "sub" / "secret")
    for _ in range(3):
        take(tmp_path, policy=policy)
    (tmp_path / "sub" / "secret").write_text("hush")  # the directory itself looks as before
    assert "hush" not in take(tmp_path, "cat sub/secret; cat sub/*", policy=policy)


@pytest.mark.parametrize("name", ["a b", "it's", 'quo"te', "new\nline", "é文", "\udcff"])
def test_a_directory_may_have_any_name(name: str, tmp_path: Path) -> None:
    place = tmp_path / name
    place.mkdir()
    (place / "file").write_text("here")
    for _ in range(3):
        assert take(place, "cat file; echo new > new") == "here"
    assert sorted(os.listdir(place)) == ["file"]


@pytest.mark.slow
def test_limits_are_put_on_it(tmp_path: Path) -> None:
    policy = Policy.agent().with_limits(processes=20, memory=200 << 20, disk=1 << 20)
    for _ in range(3):
        take(tmp_path, policy=policy)
    with Sandbox(tmp_path, policy, backend="namespaces") as sb:
        assert sb.run("cat /dev/zero > big", timeout=20).reason is Reason.disk
        sb.run("rm -f big; for i in {1..40}; do sleep 5 & done", timeout=10)
        assert int(sb.run("jobs -pr | wc -l").stdout) < 20


def test_when_all_spares_were_killed_another_one_is_made(place: Path) -> None:
    # As when memory is needed.
    servers = [server for server in client._servers.values() if not server.ended]
    assert until(lambda: all(_is_entered(server.cgroups) for server in servers if server.cgroups is not None))
    before = {pid for server in servers for pid in _spares(server)}
    assert before
    _kill(before)
    for server in servers:
        if server.cgroups is not None:  # it sees that they are empty, and removes them
            assert until(partial(_is_tidied, server.cgroups))
    for _ in range(3):
        assert take(place, "cat file") == "old"

    def is_full(server: ForkServerClient) -> bool:
        return len(set(_spares(server)) - before) == server._config.spares

    assert until(lambda: any(map(is_full, servers))), "the one that was asked has as many as before"


def _spares(server: ForkServerClient) -> list[int]:
    return [pid for cloner in _children(server._process.pid) for pid in _children(cloner)]


def _is_entered(cgroups: PrewarmedCgroups) -> bool:
    cgroups.restock()  # sees who is there
    return all(group.members() for group in cgroups._waiting)


def _is_tidied(cgroups: PrewarmedCgroups) -> bool:
    cgroups.restock()
    return not any(group.members() for group in cgroups._waiting)


def test_when_the_shell_of_a_spare_was_killed_another_one_is_taken(place: Path) -> None:
    # As when memory is needed: PID 1 of the sandbox lives, and its shell does not.
    servers = [server for server in client._servers.values() if not server.ended]

    def shells() -> list[int]:
        found = [pid for server in servers for spare in _spares(server) for pid in _children(spare)]
        return [pid for pid in found if read_if_there(f"/proc/{pid}/comm") == b"bash\n"]

    assert until(shells)
    _kill(shells())
    assert take(place, "cat file") == "old"


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # one that was not wanted any more
            os.kill(pid, signal.SIGKILL)
    assert until(lambda: all(map(has_ended, pids)))


def _children(pid: int) -> list[int]:
    return [int(word) for word in read_if_there(f"/proc/{pid}/task/{pid}/children").split()]


@pytest.mark.slow
def test_many_at_once_have_each_their_own(place: Path) -> None:
    said: list[str] = []

    def work(number: int) -> None:
        for turn in range(5):
            said.append(take(place, f"echo {number}.{turn} > mine; sleep 0.02; cat mine"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    run_together(threads)
    assert sorted(said) == sorted(f"{number}.{turn}\n" for number in range(4) for turn in range(5))
    assert sorted(os.listdir(place)) == ["file", "sub"]


@pytest.mark.slow
def test_layers_that_nobody_uses_go(place: Path) -> None:
    store = stores.store_for(str(place))

    def count() -> int:
        trash.wait()
        return sum(name.isdigit() for name in os.listdir(store.path))

    before = count()
    for _ in range(8):
        take(place)
    assert until(lambda: count() <= before), os.listdir(store.path)


# ---------------------------------------------------------------- agents that wait, on landlock


AGENT = Policy.agent()


def opened(workspace: str | None = None, policy: Policy = AGENT) -> Sandbox:
    return Sandbox(workspace, policy=policy, backend="landlock")


def waiting() -> SpareAgent:
    assert until(lambda: SPARES._spare is not None), "no spare was started"
    found = SPARES._spare
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def none_before() -> Iterator[None]:
    wait_for_jobs()  # one may be in the making
    SPARES.close()
    SPARES._opened = 1
    yield
    wait_for_jobs()
    SPARES.close()


def test_the_next_sandbox_takes_the_one_that_waits() -> None:
    with opened() as first:
        home = first.run("echo left > ~/file; echo $HOME").stdout
        spare = waiting()
        with opened() as second:
            assert second._now().agent is spare.opened[0]
            assert second.run("echo $HOME; ls ~").stdout.splitlines()[0] != home.strip()
            assert not second.run("cat ~/file").ok
            assert second.run("x=1; echo $x").stdout == "1\n"
    place = os.path.dirname(home.strip())
    assert until(lambda: not os.path.exists(place))


def test_a_program_that_opens_one_starts_no_other() -> None:
    SPARES._opened = 0
    with opened() as only:
        only.run(":")
    wait_for_jobs()
    assert SPARES._spare is None


@pytest.mark.slow
def test_another_policy_ends_it() -> None:
    with opened():
        spare = waiting()
    with opened(policy=AGENT.with_network(Network.open())) as other:
        assert other._now().agent is not spare.opened[0]
        assert other.run("echo works").stdout == "works\n"
    assert until(lambda: spare.opened[0]._closed)


def test_one_that_was_killed_is_not_handed_out() -> None:
    with opened():
        spare = waiting()
    spare.opened[0].kill()
    with opened() as next_one:
        assert next_one._now().agent is not spare.opened[0]
        assert next_one.run("echo works").stdout == "works\n"


def test_a_copy_of_the_workspace_is_as_new(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    with opened(str(tmp_path)) as first:
        first.run("echo changed > a")
        spare = waiting()
        before = first.snapshot()  # a copy as well, which is not in the directory of the next sandbox
        first.restore(before)
        (tmp_path / "b").write_text("two\n")
        with opened(str(tmp_path)) as second:
            assert second._now().agent is spare.opened[0]
            assert second.run("cat a b").stdout == "one\ntwo\n"
            second.run("echo more >> b")
            assert [change.kind for change in second.diff()] == ["modified"]
            second.commit()
    assert (tmp_path / "b").read_text() == "two\nmore\n"
    assert (tmp_path / "a").read_text() == "one\n"
