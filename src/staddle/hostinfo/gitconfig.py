"""Paths in a repository's own configuration: other hook directories, other config files.

The files are only parsed, because `git config` could run commands from them. A sandbox may have written them,
so parsing is bounded and can only add protections.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_FILE = 1 << 20
MOST_FILES = 20
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", '"': '"', "\\": "\\"}


def leads_to(git: str) -> Iterator[tuple[str, str]]:
    """Yield (path, protected name) of each configured hooks directory and included config file.

    `git` is a git directory, or the `.git` file that points to one.
    """
    directory, top = git, os.path.dirname(git)
    if not os.path.isdir(git):
        said = _read(git)
        if not said.startswith("gitdir:"):
            return
        directory = _joined(top, said.removeprefix("gitdir:").strip())
    elif os.path.basename(git).lower() != ".git":
        top = git  # a bare repository, unless core.worktree is set
    common = _read(f"{directory}/commondir").strip()
    shared = _joined(directory, common) if common else directory
    todo = [f"{shared}/config", f"{directory}/config.worktree"]
    hooks: list[str] = []
    for count, config in enumerate(todo):
        if count >= MOST_FILES:
            break
        for section, key, value in parse(_read(config)):
            if section == "core" and key == "hookspath":
                hooks.append(value)
            elif section == "core" and key == "worktree":
                top = _joined(directory, value)
            elif section in ("include", "includeif") and key == "path":
                included = _joined(os.path.dirname(config), value)
                if included not in todo:
                    todo.append(included)
                    yield included, ".git/config"
    for value in hooks:
        yield _joined(top, value), ".git/hooks"


def parse(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (section, key, value) of a git config file, in lower case, without subsections."""
    return ((section, key, value) for section, _, key, value in parse_subsections(text))


def parse_subsections(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield (section, subsection, key, value). The subsection is unquoted, its case unchanged."""
    section = subsection = ""
    lines = iter(text.splitlines())
    for raw in lines:
        line = raw.strip()
        if line.startswith("["):
            heading, _, line = line[1:].partition("]")
            section = heading.partition(" ")[0].partition(".")[0].strip().lower()
            subsection = _unquoted(heading.partition(" ")[2].strip())
            line = line.strip()
        if not line or line[0] in "#;":
            continue
        while line.endswith("\\") and not line.endswith("\\\\"):
            line = line[:-1] + next(lines, "")
        key, equals, value = line.partition("=")
        if equals:
            yield section, subsection, key.strip().lower(), _unquoted(value.strip())


def _unquoted(value: str) -> str:
    out = []
    quoted = False
    letters = iter(value)
    for letter in letters:
        if letter == "\\":
            escaped = next(letters, "")
            out.append(_ESCAPES.get(escaped, escaped))
        elif letter == '"':
            quoted = not quoted
        elif letter in "#;" and not quoted:
            break
        else:
            out.append(letter)
    return "".join(out).rstrip()


def _joined(directory: str, value: str) -> str:
    return os.path.normpath(os.path.join(directory, os.path.expanduser(value.replace("\0", "")) or "."))


def _read(path: str) -> str:
    """Return the text of a regular file, or "" if it cannot be read. A FIFO does not block."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, LONGEST_FILE).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
