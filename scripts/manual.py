"""The manual pages and completions that the wheel installs, made from the option tables.

`hatch_build.py` calls `write` for a wheel. `python scripts/manual.py DIRECTORY` writes them to read.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from staddle import __version__, cli  # noqa: E402
from staddle.cli.completion import tables  # noqa: E402
from staddle.cli.options import Option  # noqa: E402

#: The file of each shell's completion, below the prefix of the installation.
COMPLETIONS = {
    "bash": "share/bash-completion/completions/staddle",
    "zsh": "share/zsh/site-functions/_staddle",
    "fish": "share/fish/vendor_completions.d/staddle.fish",
}
_AGENT = cli.AGENTS[0]


def files() -> Iterator[tuple[str, str]]:
    """Yield the path below the installation's prefix and the text of each file."""
    for shell, path in COMPLETIONS.items():
        yield path, _printed("completion", shell)
    yield "share/man/man1/staddle.1", _overview()
    options = tables()
    for name, text in cli._COMMANDS.items():
        if name in cli.AGENTS[1:]:
            yield f"share/man/man1/staddle-{name}.1", f".so man1/staddle-{_AGENT}.1\n"
            continue
        verbs = {key: table for key, table in options.items() if key == name or key.startswith(f"{name} ")}
        yield f"share/man/man1/staddle-{name}.1", _page(name, text, verbs)


def write(directory: Path) -> dict[str, str]:
    """Write the files below `directory`, and return where each belongs, by its path."""
    placed = {}
    for path, text in files():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        placed[str(target)] = path
    return placed


def _printed(*words: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        if cli.main(words) != 0:
            raise RuntimeError(f"staddle {' '.join(words)} failed")
    return out.getvalue()


def _overview() -> str:
    text = _printed("--help")
    about, _, rest = text.partition("\n\nusage: ")
    examples = [line for line in rest.splitlines() if line.startswith("  staddle ")]
    commands = (
        f".TP\n.BR staddle\\-{_plain(name)} (1)\n{_line(text[0].upper() + text[1:])}."
        for name, text in cli._COMMANDS.items()
    )
    return _joined(
        _head("staddle"),
        [".SH NAME", "staddle \\- run the commands of an AI agent confined"],
        [".SH SYNOPSIS", ".B staddle", "COMMAND [options] ..."],
        [".SH DESCRIPTION", _line(about), ".PP", "The documentation is printed by", '.BR "staddle docs" .'],
        [".SH COMMANDS", *commands],
        [".SH EXAMPLES", *_verbatim(examples)],
        [".SH EXIT STATUS", "That of the command; 124 if it timed out, 125 if staddle could not run it."],
    )


def _page(name: str, text: str, options: dict[str, Sequence[Option]]) -> str:
    helps = {key: _printed(*key.split(), "--help") for key in options}
    usage, about, examples = [], [], []
    for key, said in helps.items():
        paragraphs = said.strip("\n").split("\n\n")
        for paragraph in paragraphs:
            lines = paragraph.splitlines()
            if lines[0].startswith("usage: "):
                usage += [lines[0][7:], *(line.strip() for line in lines[1:])]
            elif any(line.lstrip().startswith("-") for line in lines):
                # The table of options has these, but examples may follow it without an empty line.
                examples += [line for line in lines if line.startswith("  staddle ")]
            elif lines[0].startswith(" "):
                examples += lines
            elif key == name:
                about += [".PP", *map(_line, lines)]
    listed: list[str] = []
    for key, table in options.items():
        if len(options) > 1:
            listed.append(f'.SS "staddle {key}"')
        listed += [row for option in table for row in _option(option)]
    return _joined(
        _head(f"staddle-{name}"),
        [".SH NAME", f"staddle\\-{_plain(name)} \\- {_line(text)}"],
        [".SH SYNOPSIS", *_verbatim(usage or [f"staddle {name}"])],
        [".SH DESCRIPTION", *about[1:]],
        [".SH OPTIONS", *listed],
        [".SH EXAMPLES", *_verbatim(examples)] if examples else [],
        [".SH SEE ALSO", ".BR staddle (1)"],
    )


def _head(title: str) -> list[str]:
    return [f'.TH "{title.upper()}" 1 "" "staddle {__version__}" "User Commands"']


def _option(option: Option) -> list[str]:
    short = f"\\fB\\-{option.short}\\fR, " if option.short else ""
    value = f" \\fI{_plain(option.value)}\\fR" if option.value else ""
    return [".TP", f"{short}\\fB\\-\\-{_plain(option.name)}\\fR{value}", _line(option.help)]


def _verbatim(lines: Iterable[str]) -> list[str]:
    return [".nf", *map(_line, lines), ".fi"]


def _plain(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


def _line(text: str) -> str:
    """Return a line of text that roff takes as text."""
    plain = _plain(text)
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


def _joined(*sections: list[str]) -> str:
    return "\n".join(line for section in sections for line in section) + "\n"


if __name__ == "__main__":
    for made in write(Path(sys.argv[1])):
        print(made)
