"""A host program that has no descriptors left: each call says so, none harms the sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.in_a_child import python

_CALLS = {
    "open": "Sandbox().close()",
    "open with a workspace": "Sandbox(place).close()",
    "run": "sb.run('echo x', check=True)",
    "exec": "sb.exec(['true'])",
    "start": "sb.start('true').wait(5)",
    "another session": "sb.session(os.urandom(3).hex()).run('true')",
    "snapshot": "(sb.run('echo 1 >> a'), sb.snapshot().close())",
    "fork": "[other.close() for other in sb.fork()]",
    "write": "sb.files.write('f', 'text')",
    "read": "sb.files.read('g')",
    "commit": "(sb.run('echo 1 >> b'), sb.commit())",
}
#: From none at all to more than any of the calls needs.
_IN_A_PROGRAM = """
import resource
from staddle import Sandbox
from staddle.errors import StaddleError

resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
place = {place!r}
refused = done = 0
sb = Sandbox(place)
sb.run("x=kept; echo g > g", check=True)
for free in (0, 1, 3, 5, 8, 12, 200):
    held, failed = [], 0
    while failed < 20:  # in a row: work in the background gives back some meanwhile
        try:
            held.append(os.open("/dev/null", os.O_RDONLY))
            failed = 0
        except OSError:
            failed += 1
            time.sleep(0.01)
    for fd in held[:free]:
        os.close(fd)
    try:
        {call}
        done += 1
    except (OSError, StaddleError) as error:
        assert "open files" in str(error) or "ulimit -n" in str(error), error
        refused += 1
    for fd in held[free:]:
        os.close(fd)
    assert sb.run("echo $x; cat g").stdout == "kept\\ng\\n"
sb.close()
print(refused > 0, done > 0)
"""


@pytest.mark.slow
@pytest.mark.same_for_everyone
@pytest.mark.parametrize("what", _CALLS)
def test_a_call_says_so_and_the_sandbox_goes_on(what: str, tmp_path: Path) -> None:
    assert python(_IN_A_PROGRAM.format(place=str(tmp_path), call=_CALLS[what])) == "True True"
