"""Plain words in the documentation, in every --help and in every message: each word below has a plainer one.

Code, names in backticks and the pages that are made from docstrings are left out. A message is every text in
the source with a space in it that is not a docstring: error constructors, reports of doctor and explain,
violations, what commands print, descriptions of tools, scripts that run inside.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path

import pytest

from staddle.cli import _COMMANDS, main
from staddle.cli.jail import _COMMANDS as _JAIL_COMMANDS
from staddle.cli.jail import _INSIDE

pytestmark = pytest.mark.same_for_everyone

TREE = Path(__file__).parents[2]
SOURCE = TREE / "src" / "staddle"
PAGES = [
    *(TREE / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")),
    *(page for page in sorted((TREE / "docs").rglob("*.md")) if not page.name.startswith("api")),
]
HELPS = [
    [],
    *([name] for name in _COMMANDS),
    *(["jail", name] for name in (*_JAIL_COMMANDS, *_INSIDE)),
]

#: A pattern, and what to write instead.
WORDS = {
    r"nobody|somebody|anybody|everybody|whoever|whomever|no one": "the process or user that is meant",
    r"hold|holds|held|holding": "enforce, apply, contain, keep",
    r"tell|tells|told|telling": "report, print, list, return; distinguish",
    r"say|says|said|saying": "contain, specify, print, name",
    r"(?<!there )is none|(?<!there )is no (?!longer|larger|more|such|other|limit|timeout)\w+": "is not a …",
    r"not there": "does not exist, is hidden",
    r"(?:its|their) (?:own )?end": "exits, stops, is killed",
    r"ended(?! with| by| after)": "exited, stopped, was killed",
    r"(?:go|goes|went|gone|going) on": "continue, resume",
    r"(?:take|takes|took|taken|taking) over": "commit, apply, copy",
    r"(?:lead|leads|led|leading) (?:to|out|in|into|nowhere|elsewhere|somewhere)": "point to, escape",
    r"ours|ourselves|of our own": "staddle's",
    r"of yours": "your …",
    r"(?:look|looks|looked|looking) at": "inspect, check, read",
    r"first process": "PID 1",
    r"anew|for good|meanwhile|at hand|but for": "again, permanently, at the same time, this, except",
    r"led astray|means? harm|strangers?|doors|plant|plants|planted": "malicious, untrusted, created",
    r"half a character|that no byte stands for": "a lone surrogate; not encodable as UTF-8",
    r"processors?": "CPU",
    r"for ever": "forever",
    r"(?:can|could|to) be had": "is available",
    r"gone": "deleted, closed, killed",
    r"begins? with|begun": "start with, started",
}
PATTERN = re.compile(
    r"\b(?:" + "|".join(f"(?:{pattern})" for pattern in WORDS) + r")\b|, too(?=[.,;:)\s]*$|[.,;:)])",
    re.IGNORECASE | re.MULTILINE,
)
#: Left out: blocks of code, what other programs write, names in backticks, targets of links.
CODE = re.compile(
    r"^```.*?^```$|^    .*?$|<!-- soak: begin.*?soak: end -->|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)",
    re.MULTILINE | re.DOTALL,
)


def found_in(text: str) -> list[str]:
    """Each listed word, with its line and what to write instead."""
    blank = CODE.sub(lambda match: re.sub(r"[^\n]", "\0", match[0]), text)
    found = []
    for match in PATTERN.finditer(blank):
        better = next(
            (words for pattern, words in WORDS.items() if re.fullmatch(pattern, match[0], re.IGNORECASE)),
            "also, as well",
        )
        found.append(f"{blank.count(chr(10), 0, match.start()) + 1}: {match[0]!r}; write: {better}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TREE)))
def test_page_has_plain_words(page: Path) -> None:
    found = found_in(page.read_text())
    assert not found, "\n".join(found)


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_help_has_plain_words(words: list[str]) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main([*words, "--help"]) == 0
    found = found_in(re.sub(r"^ +", "", printed.getvalue(), flags=re.MULTILINE))
    assert not found, f"{printed.getvalue()}\n" + "\n".join(found)


def messages(source: str) -> list[tuple[int, str]]:
    """(line, text) of every text in this source that a user may read. Values of an f-string are {}."""
    nodes = list(ast.walk(ast.parse(source)))
    left_out = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
    found = []
    for node in nodes:
        if id(node) in left_out:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            found.append((node.lineno, "".join(map(str, parts))))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append((node.lineno, node.value))
    return [(line, text) for line, text in found if " " in text.strip()]


#: A variable of a script that no user reads, and words of E2B that its programs look for.
ALLOWED = {"launch/running.py: 'said'", "compat/e2b/commands.py: 'its end'"}


def test_messages_have_plain_words() -> None:
    found, count = [], 0
    for file in sorted(SOURCE.rglob("*.py")):
        for line, text in messages(file.read_text()):
            count += 1
            for word in found_in(re.sub(r"^ +", "", text, flags=re.MULTILINE)):
                name = file.relative_to(SOURCE).as_posix()
                if f"{name}: {word.partition(': ')[2].partition(';')[0]}" not in ALLOWED:
                    found.append(f"{name}:{line}: {word.partition(': ')[2]}: {text[:120]!r}")
    assert count > 3000
    assert not found, "\n".join(found)


def test_messages_of_a_source_are_found() -> None:
    source = '''"""It is told."""\nraise E(f"{x!r} is no name", why="it " "ended")  # nobody\n'''
    assert messages(source) == [(2, "{} is no name"), (2, "it ended")]


def test_listed_words_are_found() -> None:
    assert found_in("It is told so, too.\n\n```\nnobody\n```\n`held`\n") == [
        "1: 'told'; write: report, print, list, return; distinguish",
        "1: ', too'; write: also, as well",
    ]
