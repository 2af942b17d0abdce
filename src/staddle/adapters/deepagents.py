"""deepagents: `create_deep_agent(backend=StaddleBackend("project"))`.

The sandbox's file server, grep and find list, read, search and edit files; no Python scripts are started
inside.
"""

from __future__ import annotations

import base64
import codecs
import posixpath
from dataclasses import fields
from datetime import UTC, datetime
from functools import partial

from staddle import Sandbox

from ._common import (
    READ_LIMIT,
    WORKSPACE,
    CommandEnding,
    OpenSandboxes,
    ending,
    framework,
    policy_of,
    shell_argv,
)

with framework("deepagents", "deepagents"):
    from deepagents.backends import utils
    from deepagents.backends.protocol import (
        EditResult,
        ExecuteResponse,
        FileDownloadResponse,
        FileUploadResponse,
        GlobResult,
        GrepResult,
        LsResult,
        ReadResult,
        SandboxBackendProtocol,
    )
    from deepagents.backends.sandbox import BaseSandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Any, Self

    from ._common import AnyPolicy

#: Most bytes: of text that one read returns to a model, of a binary file shown to it, and of a file that is
#: paged or edited.
_PAGE, _BINARY, _WHOLE = 500 << 10, 500 << 10, 64 << 20
_CUT = (
    "\n\n[Output was truncated due to size limits. Continue reading with a larger offset or smaller limit.]"
)
_EMPTY = "System reminder: File exists but has empty contents"
#: Most files that one glob finds.
_MOST = 100_000
#: Part of the contract since deepagents 0.7: only absolute names of files. Before, its own script is used.
_compiled: Any = getattr(utils, "compile_grep_include_glob", None)
_PAGED = {field.name for field in fields(ReadResult)}
_IDS = OpenSandboxes()


class StaddleBackend(BaseSandbox):
    """A sandbox as a backend of deepagents. `sandbox` is the `staddle.Sandbox`; `close()` ends it.

    `timeout` is for commands without their own. With `stateful`, commands run one after the other in one
    shell that keeps its directory and variables; else each runs in its own shell.
    """

    def __init__(
        self,
        workspace: str | os.PathLike[str] | None = None,
        *,
        policy: AnyPolicy = None,
        timeout: float | None = 120,
        stateful: bool = False,
        sandbox: Sandbox | None = None,
        **options: Any,
    ) -> None:
        self.sandbox = sandbox or Sandbox(workspace, policy_of(policy), **options)
        self._timeout, self._stateful = timeout, stateful
        self._id = f"staddle-{_IDS.add(self.sandbox)}"

    @property
    def id(self) -> str:
        """Its id in this process."""
        return self._id

    def close(self) -> None:
        """Close the sandbox."""
        _IDS.remove(self._id.removeprefix("staddle-"))
        self.sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ commands

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run shell text; merges both streams in order. A timeout of 0 means none."""
        limit = self._timeout if timeout is None else timeout or None
        if self._stateful:
            result = self.sandbox.run(command, merge=True, timeout=limit)
        else:
            result = self.sandbox.exec(shell_argv(command), merge=True, timeout=limit)
        how, output = ending(result), result.stdout
        if how is CommandEnding.TIMEOUT:
            output += f"\n[The command was ended after {result.duration:.0f} seconds.]"
        truncated = how is CommandEnding.TRUNCATED
        return ExecuteResponse(output=output, exit_code=result.exit_code, truncated=truncated)

    # ------------------------------------------------------------ whole files

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files; missing directories are made."""
        found = []
        for path, data in files:
            error = _attempt(path, partial(self.sandbox.files.write, path, data, parents=True))[1]
            found.append(FileUploadResponse(path=path, error=error))
        return found

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files."""
        found = []
        for path in paths:
            data, error = _attempt(path, partial(self.sandbox.files.read_bytes, path, limit=READ_LIMIT))
            found.append(FileDownloadResponse(path=path, content=data, error=error))
        return found

    # ------------------------------------------------------------ tools of the agent

    def ls(self, path: str) -> LsResult:
        """List a directory."""
        try:
            entries = self.sandbox.files.list(path)
        except OSError as error:
            return LsResult(entries=None, error=f"Path '{path}': {_word(error)}")
        return LsResult(
            entries=[{"path": posixpath.join(path, entry.name), "is_dir": entry.is_dir} for entry in entries]
        )

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read lines of a text file, or a whole small binary file."""
        try:
            size = self.sandbox.files.stat(file_path)
            if size.kind != "file":
                return ReadResult(error=f"File '{file_path}': not_a_file")
            if size.size == 0:
                return ReadResult(file_data={"content": _EMPTY, "encoding": "utf-8"})
            text = _file_type(file_path) == "text"
            if not text and size.size > _BINARY:
                what = f"Binary file exceeds maximum preview size of {_BINARY} bytes"
                return ReadResult(error=f"File '{file_path}': {what}")
            data = self.sandbox.files.read_bytes(file_path, limit=_WHOLE)
        except OSError as error:
            return ReadResult(error=f"File '{file_path}': {_word(error)}")
        if not text or not _is_text(data):
            encoded = base64.b64encode(data).decode("ascii")
            return ReadResult(file_data={"content": encoded, "encoding": "base64"})
        return _page(file_path, data.decode("utf-8", "replace"), max(int(offset), 0), max(int(limit), 0))

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        """Replace text in a file; LF in the arguments matches CRLF in the file, and the reverse."""
        if not old_string:
            return EditResult(error="Error: old_string is empty")
        try:
            text = self.sandbox.files.read_bytes(file_path, limit=_WHOLE).decode("utf-8")
        except UnicodeDecodeError:
            return EditResult(error=f"Error: File '{file_path}' is not a text file")
        except OSError as error:
            words = {"file_not_found": "not found", "is_directory": "is not a regular file"}
            word = _word(error)
            return EditResult(error=f"Error: File '{file_path}' {words.get(word, word)}")
        styles = _line_endings(old_string, new_string)
        old, new = next(((old, new) for old, new in styles if old in text), ("", ""))
        count = text.count(old)
        if not old:
            return EditResult(error=f"Error: String not found in file: '{old_string}'")
        if count > 1 and not replace_all:
            what = f"Error: String '{old_string}' appears multiple times. Use replace_all=True to replace all"
            return EditResult(error=f"{what} occurrences.")
        try:
            self.sandbox.files.write(file_path, text.replace(old, new))
        except OSError as error:
            return EditResult(error=f"Error editing file '{file_path}': {_word(error)}")
        return EditResult(path=file_path, occurrences=count)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Search files for a literal text."""
        root = path or WORKSPACE
        matches_glob = _matcher(glob) if glob and "/" in glob else None
        if glob and "/" in glob and matches_glob is None:
            return super().grep(pattern, path, glob)
        name = posixpath.basename(root.rstrip("/"))
        skipped = [each for each in getattr(self, "grep_exclude_dirs", ()) if each != name]
        argv = ["grep", "-rHnFZ", *(f"--exclude-dir={each}" for each in skipped)]
        argv += [f"--include={glob}"] if glob and matches_glob is None else []
        result = self.sandbox.exec([*argv, "-e", pattern, "--", root], timeout=self._timeout)
        if result.exit_code > 1 and not result.stdout_bytes:
            return GrepResult(error=f"Path '{root}': {result.stderr.strip() or result.exit_code}")
        matches: list[dict[str, Any]] = []
        for line in result.stdout.split("\n"):
            where, _, rest = line.partition("\0")
            number, _, text = rest.partition(":")
            if not number.isdigit() or (matches_glob and not matches_glob(posixpath.relpath(where, root))):
                continue
            text = text.removesuffix("\r") if matches_glob else text
            matches.append({"path": where, "line": int(number), "text": text})
        if max_count is not None and len(matches) > max_count:
            return GrepResult(matches=matches[:max_count], truncated=True)
        return GrepResult(matches=matches)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files; a pattern without a slash matches names at any depth."""
        if _compiled is None:
            return super().glob(pattern, path)
        try:
            matches = _compiled(pattern)
        except ValueError as error:  # an invalid pattern
            return GlobResult(error=str(error), matches=None)
        root = posixpath.join("/", path or "/")
        find = ["find", "-H", root, "-type", "f", "-printf", r"%P\0%s\0%T@\0"]
        if root == "/":
            find[3:3] = ["(", "-path", "/proc", "-o", "-path", "/sys", ")", "-prune", "-o"]
        result = self.sandbox.exec(find, timeout=self._timeout)
        words = result.stdout_bytes.split(b"\0")
        found: list[dict[str, Any]] = []
        for at in range(0, len(words) - 2, 3):
            name = words[at].decode("utf-8", "surrogateescape") or posixpath.basename(root)
            if matches(name):
                when = datetime.fromtimestamp(float(words[at + 2]), UTC).isoformat()
                where = posixpath.join(root, name)
                found.append(
                    {"path": where, "is_dir": False, "size": int(words[at + 1]), "modified_at": when}
                )
        found.sort(key=lambda each: each["path"])
        cut = len(found) > _MOST or ending(result) is not CommandEnding.EXITED
        return GlobResult(matches=found[:_MOST], truncated=cut)

    # The awaited methods run these in threads, instead of the base class's scripts.
    als = SandboxBackendProtocol.als
    aread = SandboxBackendProtocol.aread
    aedit = SandboxBackendProtocol.aedit
    agrep = SandboxBackendProtocol.agrep
    aglob = SandboxBackendProtocol.aglob


def _attempt(path: str, do: Callable[[], Any]) -> tuple[Any, str | None]:
    """Call `do`; return its value, and the word for its error."""
    if not path.startswith("/"):
        return None, "invalid_path"
    try:
        return do(), None
    except OSError as error:
        return None, _word(error)


def _word(error: OSError) -> str:
    words = {
        FileNotFoundError: "file_not_found",
        NotADirectoryError: "file_not_found",
        IsADirectoryError: "is_directory",
        PermissionError: "permission_denied",
    }
    return words.get(type(error)) or error.strerror or str(error)


def _file_type(path: str) -> str:
    known: Callable[[str], str] = getattr(utils, "_get_backend_read_file_type", None) or utils._get_file_type
    return known(path)


def _is_text(data: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data[:8192], final=False)
    except UnicodeDecodeError:
        return False
    return True


def _page(path: str, text: str, offset: int, limit: int) -> ReadResult:
    """The requested lines."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
    if not limit:
        empty = {"no_lines_requested": True} if "no_lines_requested" in _PAGED else {}
        return ReadResult(file_data={"content": "", "encoding": "utf-8"}, **empty)
    if offset >= len(lines):
        what = f"Line offset {offset} exceeds file length ({len(lines)} lines)"
        return ReadResult(error=f"File '{path}': {what}")
    end = min(offset + limit, len(lines))
    content = "\n".join(lines[offset:end])
    room = _PAGE - len(_CUT)
    if len(content.encode()) > room:
        content = content.encode()[:room].decode("utf-8", "ignore")
        end = max(offset + content.count("\n"), offset + 1)
        content += _CUT
    more: dict[str, Any] = {}
    if "start_line" in _PAGED:
        following = end if end < len(lines) else None
        more = {
            "total_lines": len(lines),
            "start_line": offset + 1,
            "end_line": end,
            "next_offset": following,
        }
    return ReadResult(file_data={"content": content, "encoding": "utf-8"}, **more)


def _line_endings(old: str, new: str) -> list[tuple[str, str]]:
    """Pairs of a text to look for and its replacement: unchanged, with CRLF, with LF."""
    plain, other = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    return [(old, new), (plain.replace("\n", "\r\n"), other.replace("\n", "\r\n")), (plain, other)]


def _matcher(glob: str) -> Callable[[str], bool] | None:
    try:
        return None if _compiled is None else _compiled(glob)
    except ValueError:
        return None
