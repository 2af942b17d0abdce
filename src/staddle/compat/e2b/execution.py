"""Results of `run_code`, in the form of e2b_code_interpreter."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_FORMS = ("text", "html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript")


@dataclass
class OutputMessage:
    """A piece of output."""

    line: str
    timestamp: int = field(default_factory=time.time_ns)
    error: bool = False

    def __str__(self) -> str:
        return self.line


@dataclass
class ExecutionError:
    """An exception of a cell."""

    name: str
    value: str
    traceback: str


@dataclass
class RichResult:
    """A value that a cell returned or displayed, in each format that it has; images are base64."""

    text: str | None = None
    html: str | None = None
    markdown: str | None = None
    svg: str | None = None
    png: str | None = None
    jpeg: str | None = None
    pdf: str | None = None
    latex: str | None = None
    json: Any = None
    javascript: str | None = None
    chart: Any = None  # not offered: a figure is a png
    data: Any = None
    is_main_result: bool = False

    def formats(self) -> Iterable[str]:
        """The available formats."""
        return [name for name in _FORMS if getattr(self, name) is not None]

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __str__(self) -> str:
        return f"Result({self.text})" if self.text is not None else f"Result(Formats: {self.formats()})"


@dataclass
class Logs:
    """Output of a cell."""

    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)


@dataclass
class CodeExecution:
    """An executed cell."""

    results: list[RichResult] = field(default_factory=list)
    logs: Logs = field(default_factory=Logs)
    error: ExecutionError | None = None
    execution_count: int | None = None

    @property
    def text(self) -> str | None:
        """The value of the last expression."""
        return next((each.text for each in self.results if each.is_main_result), None)

    def to_json(self) -> str:
        """The cell as JSON."""
        return json.dumps(asdict(self), default=str)


@dataclass
class CodeContext:
    """A separate interpreter."""

    id: str
    language: str
    cwd: str
