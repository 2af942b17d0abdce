"""Command rules against bash itself: whatever a random script really starts, the rules had seen."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staddle import LocalEnvironment, Policy
from staddle.environment import CommandRules
from staddle.errors import CommandNotUnderstood, CommandRefused

#: Programs that write down that they ran. Nothing on the system is called so.
NAMES = ("alpha", "beta", "gamma", "delta")
#: How a name can be spelled so that bash still runs it.
SPELLINGS = (
    "{0}",
    "'{0}'",
    '"{0}"',
    "\\{0}",
    "{1}''{2}",
    '{1}"{2}"',
    "$'{0}'",
    "$'\\x{3:02x}'{4}",
    "{1}\\\n{2}",
    '"$HERE"/{0}',
    '"$HERE/{0}"',
)
PREFIXES = (
    "env ",
    "env -i PATH=$PATH HERE=$HERE ",
    "env -u X A=1 ",
    "nice -n 1 ",
    "timeout 5 ",
    "timeout -k 1 --signal=TERM 5 ",
    "nohup ",
    "echo x | xargs ",
    "echo x | xargs -n 1 -P 2 ",
    "echo x | xargs -I % ",
    "find /dev/null -exec ",
)
#: {0} and {1} are scripts that were made before.
FRAMES = (
    "{0}; {1}",
    "{0} && {1}",
    "{0} || {1}",
    "{0} | {1}",
    "({0}); {1}",
    "{{ {0}; }}; {1}",
    "echo $({0}) `{1}`",
    'x="$({0})"; {1}',
    "cat <({0}) > /dev/null; {1}",
    "if {0}; then {1}; fi",
    "while {0}; do {1}; break; done",
    "for x in $({0}); do :; done; {1}",
    "case $({0}) in *) {1} ;; esac",
    "f() {{ {0}; }}; f; {1}",
    "[[ -z $({0}) ]] && {1}",
    "echo $((1 + $({0} > /dev/null; echo 1))); {1}",
    'echo "${{none:-$({0})}}"; {1}',
    "cat > /dev/null <<END\n$({0})\nEND\n{1}",
    "cat > /dev/null <<'END'; {0}\n{1}\nEND\n",
    "{0} & wait; {1}",
    "! {0}; {1}",
    "time {0}; {1}",
    "bash -c '{0}'; {1}",
    "sh -c '{0}' x; {1}",
    "bash -euo pipefail -c '{0}'; {1}",
    "bash <<'END'\n{0}\nEND\n{1}",
    "bash -s <<< '{0}'; {1}",
    "# {0}\n{1}",
    "echo '{0}' > /dev/null; {1}",
)


def _spelled(name: str, spelling: str) -> str:
    return spelling.format(name, name[:2], name[2:], ord(name[0]), name[1:])


def _prefixed(prefix: str, word: str) -> str:
    return f"{prefix}{word}" + (" \\;" if prefix.startswith("find") else "")


def _framed(frame: str, first: str, second: str) -> str:
    # Where a frame has single quotes, the first script must have none. It is its own affair otherwise.
    quoted = "'{0}'" in frame
    return frame.format(first.replace("'", "'\\''") if quoted else first, second)


leaves = st.one_of(
    st.builds(_spelled, st.sampled_from(NAMES), st.sampled_from(SPELLINGS)),
    st.builds(
        _prefixed,
        st.sampled_from(PREFIXES),
        st.builds(_spelled, st.sampled_from(NAMES), st.sampled_from(SPELLINGS)),
    ),
)
texts = st.recursive(
    leaves, lambda inner: st.builds(_framed, st.sampled_from(FRAMES), inner, inner), max_leaves=6
)

STUB = """#!/bin/sh
echo "${0##*/}" >> "${0%/*}/log"
"""


@pytest.fixture(scope="module")
def room() -> Iterator[LocalEnvironment]:
    with tempfile.TemporaryDirectory() as place:
        for name in NAMES:
            Path(place, name).write_text(STUB)
            Path(place, name).chmod(0o755)
        variables = {"PATH": f"{place}:/usr/bin:/bin", "HERE": place}
        with LocalEnvironment(place, policy=Policy.agent().with_env(**variables), backend="bwrap") as made:
            yield made


ran: set[str] = set()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_whatever_bash_starts_had_been_seen(room: LocalEnvironment, text: str) -> None:
    log = Path(room.working_dir, "log")
    log.unlink(missing_ok=True)
    try:
        room.exec_command("bash", ["-c", text], 20)
        started = set(log.read_text().split())
    except FileNotFoundError:
        started = set()
    ran.update(started)
    for name in started:
        with pytest.raises((CommandRefused, CommandNotUnderstood)):
            CommandRules(deny=[name]).check(["bash", "-c", text])


@pytest.mark.slow
def test_the_scripts_were_run() -> None:
    """The control for the one above: every program was really started by some of them."""
    assert ran == set(NAMES)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(text=st.text("abg $(){}[]'\"`\\;|&<>=*?!#~\n-x\udcff", max_size=40))
def test_any_text_is_judged_one_way_or_the_other(text: str) -> None:
    for rules in (CommandRules(deny=["a"]), CommandRules(allow=["b"], unknown="allow")):
        with contextlib.suppress(CommandNotUnderstood, CommandRefused):
            rules.check_script(text)
