"""Debian's chromium without a window, driven over a pipe by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

#: An unused uid: as root, the browser and its own sandbox run without root's rights.
_UID = 23417
_PATIENCE = 20.0
_KEYS = {
    "Enter": ("\r", 13),
    "Tab": ("", 9),
    "Escape": ("", 27),
    "c": ("", 67),
    "ArrowRight": ("", 39),
    " ": (" ", 32),
}


class Chromium:
    """A browser with a profile of its own, until the end of the `with` block."""

    def __init__(self) -> None:
        program = shutil.which("chromium")
        assert program, "install chromium: scripts/system-packages page"
        # A short path: the browser makes sockets in it.
        self._directory = tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True)
        profile = self._directory.name
        prefix: list[str] = []
        if os.geteuid() == 0:
            os.chown(profile, _UID, _UID)
            prefix = ["setpriv", f"--reuid={_UID}", f"--regid={_UID}", "--clear-groups", "--inh-caps=-all"]
        read_end, self._to = os.pipe()
        self._from, write_end = os.pipe()
        # The browser reads commands from descriptor 3, and writes answers to 4.
        script = f'exec 3<&{read_end} 4>&{write_end}; exec "$@"'
        flags = (
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-gpu",
            "--mute-audio",
        )
        quiet = (
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-proxy-server",
        )
        words = [
            *prefix,
            "bash",
            "-c",
            script,
            "chromium",
            program,
            *flags,
            *quiet,
            f"--user-data-dir={profile}",
        ]
        environment = {
            "HOME": str(profile),
            "PATH": os.environ["PATH"],
            "TMPDIR": str(profile),
            "LANG": "C.UTF-8",
        }
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end
        self.process = subprocess.Popen(
            [*words, "about:blank"],
            pass_fds=(read_end, write_end),
            env=environment,
            stdout=self._log,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_end)
        os.close(write_end)
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, BrowserPage] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with open(self._from, "rb", buffering=0) as source:
            rest = b""
            while data := source.read(1 << 16):
                *messages, rest = (rest + data).split(b"\0")
                for message in messages:
                    self._hear(json.loads(message))
        with self._changed:
            self._answers[-1] = {}
            self._changed.notify_all()

    def _hear(self, message: dict[str, Any]) -> None:
        with self._changed:
            if "id" in message:
                self._answers[message["id"]] = message
            elif message.get("sessionId") in self._pages:
                self._pages[message["sessionId"]].hear(message["method"], message["params"])
            self._changed.notify_all()

    def call(self, method: str, session: str = "", **parameters: Any) -> Any:
        """Make a call of the protocol."""
        with self._changed:
            self._number += 1
            number = self._number
            message = {"id": number, "method": method, "params": parameters}
            os.write(
                self._to,
                json.dumps({**message, **({"sessionId": session} if session else {})}).encode() + b"\0",
            )
            answered = self._changed.wait_for(
                lambda: number in self._answers or -1 in self._answers, _PATIENCE
            )
            assert answered, f"chromium does not answer {method}"
            assert number in self._answers, f"chromium has ended: {self._told()}"
            found = self._answers.pop(number)
        assert "error" not in found, f"{method}: {found['error']}"
        return found["result"]

    def _told(self) -> str:
        self._log.seek(0)
        return self._log.read()[-2000:].decode(errors="replace")

    def page(self, width: int = 1280, height: int = 820, *, dark: bool = False) -> BrowserPage:
        """Open a page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        made = self._pages[session] = BrowserPage(self, session)
        for domain in ("Page", "Runtime", "Log"):
            made.call(f"{domain}.enable")
        made.resize(width, height)
        made.dark(dark)
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._log.close()
        self._directory.cleanup()


class BrowserPage:
    """A page: it is asked by expressions, and used by mouse and keys."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser, self._session = browser, session
        #: What the browser complains about: exceptions, refusals of the content policy, failed requests.
        self.complaints: list[str] = []

    def hear(self, method: str, facts: dict[str, Any]) -> None:
        """Receive an event of the protocol."""
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(facts["exceptionDetails"].get("exception", facts["exceptionDetails"])))
        elif method == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{facts['entry']['text']} {facts['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning"):
            self.complaints.append(str(facts["args"]))

    def call(self, method: str, **parameters: Any) -> Any:
        return self._browser.call(method, self._session, **parameters)

    def open(self, url: str) -> None:
        """Go to an address."""
        self.call("Page.navigate", url=url)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def dark(self, is_dark: bool) -> None:
        """Prefer a dark or a light scheme, and no motion."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call(
            "Emulation.setEmulatedMedia",
            features=[scheme, {"name": "prefers-reduced-motion", "value": "reduce"}],
        )

    def js(self, expression: str) -> Any:
        """Return the value of an expression."""
        found = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
            allowUnsafeEvalBlockedByCSP=False,
        )
        assert "exceptionDetails" not in found, f"{expression}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = _PATIENCE) -> Any:
        """Wait until an expression is true; return its value."""
        deadline = time.monotonic() + seconds
        while not (found := self.js(expression)):
            assert time.monotonic() < deadline, (
                f"not within {seconds} s: {expression}\n{self.text()[:3000]}\n{self.complaints}"
            )
            time.sleep(0.05)
        return found

    def text(self) -> str:
        """Return the text that is seen."""
        return str(self.js("document.body?.innerText"))

    def see(self, text: str, seconds: float = _PATIENCE) -> None:
        """Wait until this text is seen."""
        self.until(f"document.body?.innerText.includes({json.dumps(text)})", seconds)

    def find(self, what: str) -> str:
        """Return an expression for the element of a selector, or the last button with this text or label."""
        if what[0] in "#.[":
            return f"document.querySelector({json.dumps(what)})"
        name = json.dumps(what)
        return (
            "[...document.querySelectorAll('button, summary')].filter((each) => each.checkVisibility()"
            f" && (each.ariaLabel === {name} || each.innerText.trim() === {name})).at(-1)"
        )

    def click(self, what: str) -> None:
        """Click at the middle of an element; see `find`."""
        element = self.find(what)
        self.until(f"!!{element} && !{element}.disabled")
        self.js(f"{element}.scrollIntoView({{block: 'nearest'}})")
        at = self.js(
            f"(() => {{ const box = {element}.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key by its name."""
        text, code = _KEYS[key]
        facts: dict[str, Any] = {
            "key": key,
            "code": key,
            "windowsVirtualKeyCode": code,
            "modifiers": modifiers,
        }
        self.call("Input.dispatchKeyEvent", type="keyDown", **facts, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **facts)

    def type(self, text: str) -> None:
        """Type at the focus. A newline is Enter."""
        for line in text.splitlines(keepends=True):
            for letter in line.rstrip("\n"):
                self.call("Input.dispatchKeyEvent", type="char", text=letter)
            if line.endswith("\n"):
                self.press("Enter")

    def picture(self, path: Path) -> None:
        """Write what is seen as PNG."""
        time.sleep(0.2)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
