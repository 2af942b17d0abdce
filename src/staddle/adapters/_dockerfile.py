"""Parse the part of a Dockerfile that a sandbox supports: pure, nothing is run.

Supported are FROM, RUN, COPY (including from an earlier stage, and ADD of local files), WORKDIR, ENV, ARG and
USER. LABEL, EXPOSE, CMD, ENTRYPOINT, STOPSIGNAL, HEALTHCHECK and MAINTAINER have no effect here. Everything
else is refused with its line.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from dataclasses import dataclass, field

_IGNORED = {"LABEL", "EXPOSE", "CMD", "ENTRYPOINT", "STOPSIGNAL", "HEALTHCHECK", "MAINTAINER"}
_VARIABLE = re.compile(r"\\\$|\$(?:(\w+)|\{(\w+)(?::([-+])([^}]*))?\})")


class DockerfileRefused(ValueError):
    """An unsupported line; `line` is its number."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"Dockerfile line {line}: {what}")
        self.line = line


@dataclass(frozen=True)
class RunStep:
    """A command: shell text, or the arguments of a program."""

    line: int
    command: str | tuple[str, ...]
    cwd: str
    env: dict[str, str]
    user: str | None


@dataclass(frozen=True)
class CopyStep:
    """Files of the build context, or of an earlier stage, to copy to `target`.

    If `target` ends with a slash, they go below it.
    """

    line: int
    sources: tuple[str, ...]
    target: str
    user: str | None
    stage: Recipe | None = None


@dataclass
class Recipe:
    """A stage: its base image, its steps, and the settings for commands afterwards."""

    image: str = ""
    line: int = 0
    steps: list[RunStep | CopyStep] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str | None = None

    def stages(self) -> list[Recipe]:
        """The stages that it copies from, directly or indirectly, each once, in build order."""
        found: list[Recipe] = []
        for step in self.steps:
            if isinstance(step, CopyStep) and step.stage is not None:
                needed = [*step.stage.stages(), step.stage]
                found += [each for each in needed if not any(each is known for known in found)]
        return found


def read(text: str, arguments: dict[str, str] | None = None) -> Recipe:
    """The recipe of the last stage, with the stages that it copies from; others are left out."""
    stages: dict[str, Recipe] = {}
    count = 0
    given: dict[str, str] = dict(arguments or {})
    current: Recipe | None = None
    scope: dict[str, str] = {}
    for line, instruction in _instructions(text):
        word, _, rest = instruction.partition(" ")
        word, rest = word.upper(), rest.strip()
        if word == "ARG":
            name, _, default = rest.partition("=")
            scope.setdefault(name, given.get(name, default.strip("\"'")))
            continue
        if word == "FROM":
            current = _stage(line, _substituted(rest, {**given, **scope}), stages)
            stages[str(count)], count = current, count + 1
            continue
        if current is None:
            raise DockerfileRefused(line, f"{word} comes before FROM")
        _apply(current, line, word, rest, scope, stages)
    if current is None:
        raise DockerfileRefused(1, "there is no FROM")
    return current


def _stage(line: int, rest: str, stages: dict[str, Recipe]) -> Recipe:
    words = [each for each in rest.split() if not each.startswith("--platform")]
    if not words or len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
        raise DockerfileRefused(line, f"FROM {rest!r} is not read")
    known = stages.get(words[0].lower())
    if known is None:
        made = Recipe(words[0], line)
    else:
        made = Recipe(known.image, known.line, list(known.steps), dict(known.env), known.workdir, known.user)
    if len(words) == 3:
        stages[words[2].lower()] = made
    return made


def _apply(
    recipe: Recipe, line: int, word: str, rest: str, scope: dict[str, str], stages: dict[str, Recipe]
) -> None:
    known = {**scope, **recipe.env}
    if word == "RUN":
        if rest.startswith("--"):
            raise DockerfileRefused(line, f"options of RUN are not read: {rest.split(maxsplit=1)[0]}")
        command: str | tuple[str, ...] = _list(rest) or rest
        recipe.steps.append(RunStep(line, command, recipe.workdir, {**scope, **recipe.env}, recipe.user))
    elif word in ("COPY", "ADD"):
        recipe.steps.append(_copy(recipe, line, word, _substituted(rest, known), stages))
    elif word == "WORKDIR":
        recipe.workdir = posixpath.normpath(posixpath.join(recipe.workdir, _substituted(rest, known)))
        make = RunStep(line, ("mkdir", "-p", recipe.workdir), "/", {}, "root")
        recipe.steps.append(make)
    elif word == "ENV":
        recipe.env.update(_pairs(line, rest, known))
    elif word == "USER":
        recipe.user = _substituted(rest, known).partition(":")[0]
    elif word not in _IGNORED:
        raise DockerfileRefused(line, f"{word} is not read")


def _copy(recipe: Recipe, line: int, word: str, rest: str, stages: dict[str, Recipe]) -> CopyStep:
    # Copied files belong to root, whatever USER says.
    user, stage = None, None
    while rest.startswith("--"):
        option, _, rest = rest.partition(" ")
        if word == "COPY" and option.startswith("--from="):
            stage = stages.get(option.removeprefix("--from=").lower())
            if stage is None or stage is recipe:
                raise DockerfileRefused(
                    line, f"COPY with {option} is not read: no earlier stage has this name"
                )
        elif not option.startswith(("--chown=", "--link")):
            raise DockerfileRefused(line, f"{word} with {option} is not read")
        user = option.removeprefix("--chown=").partition(":")[0] if option.startswith("--chown=") else user
        rest = rest.strip()
    words = _list(rest) or tuple(rest.split())
    if len(words) < 2 or "<<" in rest:
        raise DockerfileRefused(line, f"{word} {rest!r} is not read")
    *sources, target = words
    for source in sources:
        if "://" in source or source.startswith("git@"):
            raise DockerfileRefused(line, f"{word} of {source} is not read: only files of the build context")
        if ".." in posixpath.normpath(source.lstrip("/")).split("/"):
            raise DockerfileRefused(line, f"{word} of {source} leaves the build context")
        if stage is not None and re.search(r"[*?\[]", source):
            raise DockerfileRefused(line, f"COPY of {source} is not read: no patterns with --from")
        if word == "ADD" and re.search(r"\.(tar|tgz|gz|bz2|xz|zst)$", source):
            raise DockerfileRefused(line, f"ADD of the archive {source} is not read")
    where = posixpath.join(recipe.workdir, target)
    if target.endswith(("/", "/.")) or target == "." or len(sources) > 1:
        where = posixpath.normpath(where) + "/"
    return CopyStep(line, tuple(sources), where, user, stage)


def _instructions(text: str) -> list[tuple[int, str]]:
    """Each instruction with the number of its first line; continued lines are joined."""
    found: list[tuple[int, str]] = []
    parts: list[str] = []
    start = 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith("#") or (not line and not parts):
            continue
        start = start if parts else number
        if re.match(r"(RUN|COPY)\s+.*<<-?['\"]?\w+", line, re.IGNORECASE) and not parts:
            raise DockerfileRefused(number, "here-documents are not read")
        parts.append(line[:-1].rstrip() if line.endswith("\\") else line)
        if not line.endswith("\\"):
            found.append((start, " ".join(parts).strip()))
            parts = []
    if parts:
        found.append((start, " ".join(parts).strip()))
    return found


def _pairs(line: int, rest: str, known: dict[str, str]) -> dict[str, str]:
    try:
        words = shlex.split(_substituted(rest, known))
    except ValueError as error:
        raise DockerfileRefused(line, f"ENV {rest!r} is not read: {error}") from None
    if words and "=" not in words[0]:  # the old form: ENV NAME the rest
        name, _, value = rest.partition(" ")
        return {name: _substituted(value.strip(), known)}
    if not all("=" in word for word in words):
        raise DockerfileRefused(line, f"ENV {rest!r} is not read")
    return dict(word.split("=", 1) for word in words)


def _list(rest: str) -> tuple[str, ...] | None:
    """The words of the JSON form; None for any other form."""
    try:
        words = json.loads(rest)
    except ValueError:
        return None
    return tuple(words) if isinstance(words, list) and all(isinstance(each, str) for each in words) else None


def _substituted(text: str, known: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name is None:
            return "$"
        if match[3] == "-":
            return known.get(name) or match[4]
        if match[3] == "+":
            return match[4] if known.get(name) else ""
        return known.get(name, "")

    return _VARIABLE.sub(value, text)
