"""What an agent's tools cost, against the plain ones."""

from __future__ import annotations

import os
import tempfile

from measure import Claim, interleaved, ms, timed
from staddle import LocalEnvironment, Policy, wrap
from staddle.files.globs import Glob, GlobSet


def file_tools() -> list[Claim]:
    content, times = "x" * 4096, 200
    with tempfile.TemporaryDirectory() as place, LocalEnvironment(place, ["docs/**", "*.md"]) as env:
        os.mkdir(os.path.join(place, "docs"))

        def plain() -> None:
            for number in range(times):
                with open(f"{place}/docs/plain{number % 20}", "w") as file:
                    file.write(content)

        def safe() -> None:
            for number in range(times):
                env.write_file(f"docs/safe{number % 20}", content)

        took = interleaved({"plain": plain, "safe": safe}, rounds=15)
    detail = f"{ms(took['safe'] / times)} against {ms(took['plain'] / times)}"
    return [Claim("a safe write of 4 KB / open().write()", took["safe"] / took["plain"], 4, detail)]


def globs() -> list[Claim]:
    many = GlobSet(
        Glob(text)
        for n in range(2500)
        for text in (f"d{n}/out.md", f"d{n}/**", f"x{n}*.md", f"e{n}/**/*.t{n}")
    )
    paths = [f"e{n}/a/b{n}/file{n}.py" for n in range(10_000)]
    # The hardest: nothing to tell them apart by before they are tried, and stars in every place.
    alike = GlobSet(Glob(text) for n in range(5000) for text in (f"*/a/*n{n}*/*", f"**/*[a-f]*{n}*z*"))
    star = Glob("*a" * 40 + "b")
    long, longer = (timed(lambda text="a" * size: star.matches(text)) for size in (20_000, 40_000))
    return [
        Claim("10,000 globs x 10,000 paths, seconds", timed(lambda: [many.matches(p) for p in paths]), 2, ""),
        Claim("the same, all alike", timed(lambda: [alike.matches(p) for p in paths]), 2, ""),
        Claim("forty stars, a name twice as long", longer / long, 3, f"{ms(longer)} against {ms(long)}"),
    ]


def commands() -> list[Claim]:
    found = [_command(backend, None) for backend in ("namespaces", "bwrap", "landlock")]
    # Globs for which a command works in a layer, which is made and looked through each time.
    return [*found, _command("namespaces", ["out.md", "*.txt", "docs/**/*.md"])]


def _command(backend: str, globs: list[str] | None) -> Claim:
    with tempfile.TemporaryDirectory() as place, LocalEnvironment(place, globs, backend=backend) as env:
        policy = Policy.agent().with_read(place).with_write(place)

        def wrapped() -> None:
            wrap(["true"], policy, backend=backend, cwd=place).run(capture_output=True)

        took = interleaved({"wrap": wrapped, "tool": lambda: env.exec_command("true")}, rounds=20)
    how = backend if globs is None else f"{backend}, in a layer"
    detail = f"{ms(took['tool'])} against {ms(took['wrap'])}"
    return Claim(f'exec_command("true") / wrap, {how}', took["tool"] / took["wrap"], 1.2, detail)


CLAIMS = (file_tools, globs, commands)
