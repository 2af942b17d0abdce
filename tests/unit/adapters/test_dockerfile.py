"""A Dockerfile is read as far as a sandbox can follow it; what is not read is refused with its line."""

from __future__ import annotations

import pytest

from staddle.adapters._dockerfile import CopyStep, DockerfileRefused, RunStep, read

pytestmark = pytest.mark.same_for_everyone

SIMPLE = """
# syntax=docker/dockerfile:1
ARG VERSION=3.12
FROM python:${VERSION}-slim
ENV A=1 B="two words" C=${A:-x}
WORKDIR /app
RUN apt-get update && \\
    # a comment between
    apt-get install -y git
COPY --chown=1000:1000 src/ setup.py ./
RUN ["echo", "$A"]
USER agent
WORKDIR sub
CMD ["sleep", "infinity"]
"""


def test_the_steps_of_a_simple_one() -> None:
    recipe = read(SIMPLE)
    assert (recipe.image, recipe.line) == ("python:3.12-slim", 4)
    assert recipe.env == {"A": "1", "B": "two words", "C": "x"}
    assert (recipe.workdir, recipe.user) == ("/app/sub", "agent")
    runs = [step for step in recipe.steps if isinstance(step, RunStep)]
    assert [step.command for step in runs] == [
        ("mkdir", "-p", "/app"),
        "apt-get update && apt-get install -y git",
        ("echo", "$A"),
        ("mkdir", "-p", "/app/sub"),
    ]
    assert (runs[1].cwd, runs[1].line, runs[1].env["A"]) == ("/app", 7, "1")
    (copied,) = [step for step in recipe.steps if isinstance(step, CopyStep)]
    assert (copied.sources, copied.target, copied.user) == (("src/", "setup.py"), "/app/", "1000")


def test_a_stage_on_another_one_has_its_steps() -> None:
    recipe = read("FROM debian AS base\nRUN one\nFROM alpine AS unused\nRUN two\nFROM base\nRUN three\n")
    assert recipe.image == "debian"
    assert [step.command for step in recipe.steps if isinstance(step, RunStep)] == ["one", "three"]


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("FROM a AS b\nRUN x\nFROM c\nCOPY --from=d /x /y\n", 4, "--from"),
        ("FROM a\nRUN --mount=type=cache,target=/x pip install y\n", 2, "--mount"),
        ("FROM a\nADD https://example.com/x /x\n", 2, "example.com"),
        ("FROM a\nADD x.tar.gz /x\n", 2, "archive"),
        ("FROM a\nCOPY ../secret /x\n", 2, "leaves"),
        ("FROM a\nRUN <<EOF\necho\nEOF\n", 2, "here-documents"),
        ("FROM a\nVOLUME /data\n", 2, "VOLUME"),
        ('FROM a\n\nSHELL ["bash"]\n', 3, "SHELL"),
        ("RUN x\n", 1, "before FROM"),
        ("# nothing\n", 1, "no FROM"),
    ],
)
def test_what_is_not_read_is_refused_by_its_line(text: str, line: int, word: str) -> None:
    with pytest.raises(DockerfileRefused, match=word) as raised:
        read(text)
    assert raised.value.line == line
    assert f"line {line}" in str(raised.value)


def test_stages_that_are_copied_from_are_needed_in_this_order() -> None:
    text = "FROM a AS one\nRUN x\nFROM b\nRUN never\n"
    text += "FROM c AS two\nCOPY --from=ONE /x /y\nFROM d\nCOPY --from=two a b /z\n"
    recipe = read(text)
    assert [stage.image for stage in recipe.stages()] == ["a", "c"]
    (copy,) = recipe.steps
    assert isinstance(copy, CopyStep)
    assert (copy.target, copy.stage) == ("/z/", recipe.stages()[1])
    assert read("FROM a\nFROM b\nCOPY --from=0 /x /y\n").stages()[0].image == "a"
    with pytest.raises(DockerfileRefused, match="patterns"):
        read("FROM a AS b\nFROM c\nCOPY --from=b /x* /y/\n")
    with pytest.raises(DockerfileRefused, match="no earlier stage"):
        read("FROM a AS b\nCOPY --from=b /x /y\n")
