"""The table of results in docs/internals/soak.md: one row for each part and user, the latest run of each."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ledger import Figure
from part import Part

PAGE = Path(__file__).parents[2] / "docs/internals/soak.md"
_BEGIN, _END = "<!-- soak: begin -->", "<!-- soak: end -->"
_HEAD = ("part", "as", "steps", "errors", "left", "host memory", "descriptors", "threads", "helpers", "on")
USERS = ("root", "user")


@dataclass(frozen=True)
class Outcome:
    """What became of one run of a part."""

    part: str
    user: str
    done: int
    asked: int
    errors: tuple[str, ...]
    left: tuple[str, ...]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def uneven(self) -> tuple[Figure, ...]:
        return tuple(figure for figure in self.figures if not figure.is_flat)

    @property
    def is_good(self) -> bool:
        return not (self.errors or self.left or self.uneven)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Outcome:
        figures = tuple(Figure(**figure) for figure in given.pop("figures"))
        lists = {name: tuple(given.pop(name)) for name in ("errors", "left", "notes")}
        return cls(figures=figures, **lists, **given)

    def cells(self) -> tuple[str, ...]:
        figures = {figure.name: figure for figure in self.figures}

        def shown(name: str, unit: int = 1) -> str:
            if name not in figures:
                return "-"
            one = figures[name]
            digits = 1 if unit > 1 else 0
            text = f"{one.first / unit:.{digits}f} → {one.last / unit:.{digits}f}"
            return text if one.is_flat else f"**{text}**"

        helpers = f"{shown('helper_memory', 1 << 20)} MB, {shown('helper_descriptors')}" if figures else "-"
        kernel = ".".join(platform.release().split(".")[:2])
        where = f"{time.strftime('%Y-%m-%d')}, Linux {kernel}, {self.seconds:.0f} s"
        return (
            f"`{self.part}`",
            self.user,
            f"{self.done:,}",
            str(len(self.errors)),
            str(len(self.left)),
            f"{shown('memory', 1 << 20)} MB" if figures else "-",
            shown("descriptors"),
            shown("threads"),
            helpers,
            "; ".join((where, *self.notes)).replace("|", "/"),
        )


def write(outcomes: list[Outcome], parts: tuple[Part, ...]) -> None:
    """Put these results into the page, in place of earlier ones of the same parts."""
    text = PAGE.read_text()
    before, _, rest = text.partition(_BEGIN)
    inside, _, after = rest.partition(_END)
    rows = _rows(inside)
    for outcome in outcomes:
        rows[outcome.part, outcome.user] = outcome.cells()
    made = "\n".join((_BEGIN, *_table(rows, parts), _END))
    PAGE.write_text(f"{before}{made}{after}")


def _rows(text: str) -> dict[tuple[str, str], tuple[str, ...]]:
    rows = {}
    for line in text.splitlines():
        cells = tuple(cell.strip() for cell in line.strip("|").split(" | "))
        cells = tuple(cell.strip("| ") for cell in cells)
        if len(cells) == len(_HEAD) and cells[0].startswith("`"):
            rows[cells[0].strip("`"), cells[1]] = cells
    return rows


def _table(rows: dict[tuple[str, str], tuple[str, ...]], parts: tuple[Part, ...]) -> list[str]:
    lines = ["", f"| {' | '.join(_HEAD)} |", f"|{' --- |' * len(_HEAD)}"]
    missing, scaled = [], []
    for part in parts:
        for user in USERS:
            cells = rows.get((part.name, user))
            if cells is None or cells[2] == "0":
                why = cells[-1].rpartition("not run: ")[2] if cells else ""
                missing.append(f"`{part.name}` as {user}{why and f' ({why})'}")
                continue
            lines.append(f"| {' | '.join(cells)} |")
            done = int(cells[2].replace(",", ""))
            if done < part.count:
                scaled.append(f"`{part.name}` as {user} ({done:,} of {part.count:,})")
    lines.append("")
    if scaled:
        lines += [f"Run with fewer steps than a full run has: {', '.join(scaled)}.", ""]
    lines += [f"Not run: {', '.join(missing)}." if missing else "Every part was run.", ""]
    return lines


def who() -> str:
    return "root" if os.geteuid() == 0 else "user"
