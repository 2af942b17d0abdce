"""Many sandboxes in a process that may have few open files: they wait for room, or say that there is none."""

from __future__ import annotations

import resource

import pytest

from tests.support.in_a_child import python

LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def limited(soft: int, hard: int, code: str) -> str:
    """What `code` prints in a process with these limits of open files."""
    return python(LIMIT.format(soft=soft, hard=hard) + code, timeout=110)


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_more_sandboxes_at_once_than_have_room_wait_for_each_other() -> None:
    said = limited(
        *(256, 256),
        """
import asyncio
from staddle import AsyncSandbox

async def one(number):
    async with AsyncSandbox() as sb:
        printed = [(await sb.run(f"echo {number}; sleep 0.01")).stdout for _ in range(3)]
        return printed == [f"{number}\\n"] * 3

async def main():
    return await asyncio.gather(*map(one, range(60)))

print(sum(asyncio.run(main())))
""",
    )
    assert said == "60"


@pytest.mark.slow
def test_the_soft_limit_is_raised_when_it_is_used_up_but_not_for_commands() -> None:
    assert HARD >= 1024, "this machine's hard limit of open files is too low for this test"
    said = limited(
        *(200, 1024),
        """
from staddle import Policy, Sandbox

first = Sandbox()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
sandboxes = [first, *(Sandbox() for _ in range(60))]
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
another_fork_server = Sandbox(policy=Policy.agent().replace(read=("/usr",)))
sandboxes += [another_fork_server, Sandbox(backend="landlock", best_effort=True)]
print({sb.run("ulimit -Sn").stdout.strip() for sb in sandboxes})
""",
    )
    assert said.split("\n") == ["200", "1024", "{'200'}"]


@pytest.mark.slow
def test_a_full_process_says_so_and_its_sandboxes_go_on() -> None:
    """What runs in the background keeps its files."""
    said = limited(
        *(200, 200),
        """
from staddle import Sandbox
from staddle.errors import LaunchFailed
from staddle.linux import file_room

file_room._SHORT_PATIENCE = file_room.PATIENCE = 0.2
sandboxes = []
try:
    while len(sandboxes) < 100:
        sandboxes.append(Sandbox())
        sandboxes[-1].start("sleep 1000")
except LaunchFailed as error:
    print(error)
print(len(sandboxes) > 8, {sb.run("echo $((6 * 7))").stdout for sb in sandboxes})
for sb in sandboxes[4:]:
    sb.close()
print(Sandbox().run("echo again").stdout)
""",
    )
    first, rest = said.split("\n", 1)
    assert first.startswith("there is no room for more open files: ")
    assert first.endswith(
        "this process may have 200; raise the limit (ulimit -n), or close sandboxes that are not used"
    )
    assert rest.split("\n") == ["True {'42\\n'}", "again"]


@pytest.mark.slow
def test_the_least_limit_is_enough_for_several_sandboxes() -> None:
    said = limited(
        *(80, 80),
        """
from staddle import Sandbox
sandboxes = [Sandbox() for _ in range(5)]
print({sb.run("echo $((6 * 7))").stdout for sb in sandboxes})
""",
    )
    assert said == "{'42\\n'}"


def test_too_low_a_limit_is_refused_at_once() -> None:
    said = limited(
        *(79, HARD),
        """
from staddle import Sandbox
from staddle.errors import LaunchFailed
try:
    Sandbox()
except LaunchFailed as error:
    print(error)
""",
    )
    assert said == (
        "a sandbox cannot be opened: this process may have 79 open files, and 80 are needed; "
        "raise the limit: ulimit -n 1024"
    )
