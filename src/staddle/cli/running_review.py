"""Review and commit the work of a running agent, from another terminal.

The process that runs the agent has the kept sandbox open, so it reviews and commits for `staddle review` and
`staddle commit`. It listens on a socket in a directory that only this user can enter, and no sandbox. A
connection is one request, a line of JSON, and its answer. Only reviews that it made itself are committed.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from contextlib import suppress
from types import SimpleNamespace

from .. import places
from ..agents.repository import GIT
from ..errors import InvalidCall, SandboxClosed
from ..json_values import OF_CLIENTS, decode, decode_error, encode, encode_error
from ..paths import WORKSPACE_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any

    from ..layers.review import Review
    from ..sandbox.sandbox import Sandbox

_PLACE, _SOCKET = "reviews", "socket"
#: Bytes of a request, seconds to send it, the reviews that can be committed, and bytes of a read.
_LONGEST, _PATIENCE, _MOST_REVIEWS, _PIECE = 4 << 20, 10.0, 4, 1 << 16
_NAMES = ("changes", "conflicts", "held", "refused", "taken")


class ReviewServer:
    """Reviews and commits the changes of an open sandbox for other processes, until `close`."""

    def __init__(self, sandbox: Sandbox, name: str) -> None:
        self._sandbox = sandbox
        self._reviews: dict[str, Review] = {}
        self._place = places.of_this_process(_PLACE, name)
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(f"{self._place}/{_SOCKET}")
            self._listener.listen(8)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()
        shutil.rmtree(self._place, ignore_errors=True)

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return  # closed
            with line, suppress(OSError):  # who asked is gone
                line.settimeout(_PATIENCE)
                try:
                    answer = self._answer(json.loads(_whole(line, _LONGEST)))
                except Exception as error:
                    answer = {"error": encode_error(error)}
                line.settimeout(None)
                line.sendall(json.dumps(answer).encode())

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["do"] == "review":
            found = self._review(asked["paths"])
            self._reviews[found.digest] = found
            while len(self._reviews) > _MOST_REVIEWS:
                del self._reviews[next(iter(self._reviews))]
            taken = [each.path for each in found.taken]
            parts: dict[str, Any] = {name: encode(list(getattr(found, name))) for name in _NAMES[:-1]}
            left_out = list(found.left_out)
            return {
                **parts,
                "taken": taken,
                "left_out": left_out,
                "digest": found.digest,
                "paths": found.paths,
            }
        if asked["do"] != "commit" or asked["digest"] not in self._reviews:
            raise InvalidCall("there is no such review", why="newer ones were made", fix="review again")
        over, options = set(asked["over"]), decode(asked["options"], only=OF_CLIENTS)
        done = self._reviews[asked["digest"]].commit(
            asked["paths"],
            on_conflict=lambda conflict: "overwrite" if conflict.path in over else "refuse",
            **options,
        )
        return {"done": encode(done)}

    def _review(self, paths: Sequence[str] | None) -> Review:
        """Review everything, or these paths, but not git's own files: their commits wait for the end."""
        chosen = None if paths is None else [f"{WORKSPACE_PATH}/{path}" for path in paths]
        found = self._sandbox.review(chosen)
        git = f"{WORKSPACE_PATH}/{GIT}"
        inside = [each.path for each in found.changes if not f"{each.path}/".startswith(f"{git}/")]
        return found if len(inside) == len(found.changes) else self._sandbox.review(inside)


class RunningWorkspace:
    """The workspace of a kept sandbox that a running process has open, with the calls that a commit makes."""

    stand_in: str | None = None  # an agent always has a project

    def __init__(self, path: str, record: Any) -> None:
        self._path, self.record, self.directory = path, record, record.workspace or ""

    def review(self, paths: Collection[str] | None) -> Any:
        """Return what a commit would do now."""
        answer = self._asked({"do": "review", "paths": None if paths is None else list(paths)})
        found = SimpleNamespace(**{name: tuple(decode(answer[name])) for name in _NAMES[:-1]})
        found.taken = tuple(SimpleNamespace(path=path) for path in answer["taken"])
        found.left_out, found.digest = tuple(answer["left_out"]), answer["digest"]
        found.paths = answer["paths"] and tuple(answer["paths"])
        return found

    def take_over(
        self,
        paths: Collection[str] | None,
        *,
        reviewed: Any,
        on_conflict: Callable[[Any], str] | str = "refuse",
        allow: Collection[str] = (),
        allow_protected: bool = False,
        progress: object = None,
    ) -> Any:
        """Commit what was reviewed. The agent goes on, and later changes stay in the sandbox."""
        how = on_conflict if callable(on_conflict) else lambda _: on_conflict
        over = [each.path for each in reviewed.conflicts if how(each) == "overwrite"]
        options = {"allow": list(allow), "allow_protected": allow_protected}
        chosen = None if paths is None else list(paths)
        asked = {"do": "commit", "digest": reviewed.digest, "paths": chosen, "over": over}
        return decode(self._asked({**asked, "options": encode(options)})["done"])

    def close(self) -> None:
        """Do nothing: its process has it open."""

    def _asked(self, request: dict[str, Any]) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as line:
            try:
                line.connect(self._path)
                line.sendall(json.dumps(request).encode())
                line.shutdown(socket.SHUT_WR)
                answer: dict[str, Any] = json.loads(_whole(line, 1 << 30))
            except (OSError, ValueError) as error:
                raise SandboxClosed(
                    "the agent's process gives no answer",
                    why=str(error) or "it has ended",
                    fix="try it again",
                ) from error
        if "error" in answer:
            raise decode_error(answer["error"])
        return answer


def running_workspace(record: Any) -> RunningWorkspace | None:
    """The workspace of a kept sandbox through the process that has it open; None if that does not listen."""
    top = f"{places.runtime()}/{_PLACE}"
    try:
        found = {f"{top}/{name}" for name in os.listdir(top) if name.rpartition(".")[0] == record.name}
    except FileNotFoundError:
        return None
    alive = sorted(found - {*places.ended(top)})
    return RunningWorkspace(f"{alive[-1]}/{_SOCKET}", record) if alive else None


def _whole(line: socket.socket, most: int) -> bytes:
    data = bytearray()
    while piece := line.recv(_PIECE):
        data += piece
        if len(data) > most:
            raise InvalidCall(
                "the message is too long", why=f"it has over {most} bytes", fix="name fewer paths"
            )
    return bytes(data)
