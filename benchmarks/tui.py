"""`staddle tui` against `staddle shell`, both in tmux, in one run: echo of a key, a flood, and the start.

Standalone as well: `python benchmarks/tui.py`, which writes its figures into internals/tui-figures.md.
Needs tmux and the extra `tui`.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from measure import Claim, ms

STADDLE = str(Path(sys.executable).with_name("staddle"))
PATIENCE = 300.0
PROMPT = b"/workspace$"
#: Letters that neither the panes of the UI nor a prompt have in them.
LETTERS = "ZQJX"
MEGABYTES = 100
#: Megabytes of memory that the UI may have had after a flood.
MEMORY = 200
TEXT = "The quick brown fox jumps over the lazy dog, again and again"


class Tmux:
    """A tmux server of its own, driven by its commands, and by its control mode where these take too long."""

    def __init__(self, directory: str) -> None:
        self._socket = f"{directory}/tmux"
        self._output: queue.Queue[tuple[float, str, bytes]] = queue.Queue()
        self.run("-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "32", "sleep 100000")
        self._client = subprocess.Popen(
            ["tmux", "-S", self._socket, "-C", "attach"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
        )
        threading.Thread(target=self._read, daemon=True).start()

    def run(self, *words: str) -> str:
        """Run one command of tmux; what it prints."""
        argv = ["tmux", "-S", self._socket, *words]
        done = subprocess.run(argv, check=True, capture_output=True, text=True, env=_environment())
        return done.stdout.strip()

    def _read(self) -> None:
        for line in self._client.stdout or ():
            if line.startswith(b"%output "):
                _, pane, data = line.rstrip(b"\n").split(b" ", 2)
                plain = re.sub(rb"\\([0-7]{3})", lambda found: bytes((int(found[1], 8),)), data)
                self._output.put((time.perf_counter(), pane.decode(), plain))

    def seen_after(self, pane: str, letter: str) -> float:
        """The seconds from typing a letter until one more of it is on the screen."""
        before = self.screen(pane).count(letter)
        began = time.perf_counter()
        self.run("send-keys", "-t", pane, "-l", letter)
        while self.screen(pane).count(letter) <= before:
            if time.perf_counter() - began > PATIENCE:
                raise TimeoutError(f"{letter!r} is not on the screen")
        return time.perf_counter() - began

    def screen(self, pane: str) -> str:
        """What is on the screen of a pane."""
        return self.run("capture-pane", "-p", "-t", pane)

    def gone(self, pane: str, letter: str) -> None:
        """Wait until a letter is not on the screen any more."""
        end = time.perf_counter() + PATIENCE
        while letter in self.screen(pane) and time.perf_counter() < end:
            time.sleep(0.02)

    def window(self, command: str) -> str:
        """The pane of a new window that runs `command`."""
        return self.run("new-window", "-d", "-P", "-F", "#{pane_id}", command)

    def send(self, pane: str, keys: str) -> float:
        """Type keys into a pane; when they were sent."""
        while not self._output.empty():
            self._output.get_nowait()
        line = f"send-keys -t '{pane}' -l '{keys}'\n" if keys != "Enter" else f"send-keys -t '{pane}' Enter\n"
        began = time.perf_counter()
        pipe = self._client.stdin
        assert pipe is not None
        pipe.write(line.encode())
        pipe.flush()
        return began

    def when(self, pane: str, text: bytes) -> float:
        """The time at which `pane` has printed `text`, from now on."""
        seen, end = b"", time.perf_counter() + PATIENCE
        while True:
            at, where, data = self._output.get(timeout=max(0.1, end - time.perf_counter()))
            if where == pane:
                seen = (seen + data)[-65536:]
                if text in seen:
                    return at

    def cpu_time(self, pane: str) -> float:
        """Seconds of CPU time that the program of a pane has used."""
        pid = self.run("display-message", "-p", "-t", pane, "#{pane_pid}")
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self, pane: str) -> float:
        """The most memory that the program of a pane had, in megabytes."""
        pid = self.run("display-message", "-p", "-t", pane, "#{pane_pid}")
        [line] = [
            row for row in Path(f"/proc/{pid}/status").read_text().splitlines() if row.startswith("VmHWM")
        ]
        return int(line.split()[1]) / 1000

    def close(self) -> None:
        """End the server and everything in it."""
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], check=False, env=_environment())
        self._client.wait(30)


def _environment() -> dict[str, str]:
    return {
        **{k: v for k, v in os.environ.items() if k not in ("TMUX", "NO_COLOR")},
        "TERM": "xterm-256color",
    }


@contextmanager
def terminals() -> Iterator[tuple[Tmux, str]]:
    """A tmux, and a directory to work in."""
    with tempfile.TemporaryDirectory(prefix="tui-") as directory:
        (Path(directory) / "work").mkdir()
        tmux = Tmux(directory)
        try:
            yield tmux, f"{directory}/work"
        finally:
            tmux.close()


def opened(tmux: Tmux, command: str, where: str) -> tuple[str, float]:
    """The pane of `staddle COMMAND`, and the seconds until its first prompt."""
    began = time.perf_counter()
    pane = tmux.window(f"cd {where} && exec {STADDLE} {command}")
    return pane, tmux.when(pane, PROMPT) - began


#: (what, claim, figure of `staddle shell`, figure of `staddle tui`), as the page has them.
ROWS: list[tuple[str, str, str, str]] = []
PAGE = Path(__file__).parents[1] / "docs" / "internals" / "tui-figures.md"
BEGIN, END = "<!-- figures: begin, written by benchmarks/tui.py -->", "<!-- figures: end -->"


def keep(what: str, claim: str, values: dict[str, float], shown: Callable[[float], str]) -> None:
    """Keep figures for the documentation."""
    ROWS.append((what, claim, shown(values["shell"]), shown(values["tui"])))


def load() -> str:
    """How much else the machine has to do."""
    return f"{os.getloadavg()[0]:.0f}"


def write_figures() -> None:
    """Write the figures of this run into the page."""
    lines = [BEGIN, "", f"With two cores and a load of {load()} at the end of the run:", ""]
    lines += ["| | `staddle shell` | `staddle tui` | claim |", "| --- | --- | --- | --- |"]
    lines += [f"| {what} | {shell} | {tui} | {claim} |" for what, claim, shell, tui in ROWS]
    part = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    text = PAGE.read_text()
    if BEGIN not in text:
        sys.exit(f"{PAGE} has no place for figures")
    PAGE.write_text(part.sub(lambda _: "\n".join([*lines, "", END]), text))


COMMANDS = {"shell": "shell --mode overlay", "tui": "tui --no-ask"}


def echo(rounds: int = 100) -> list[Claim]:
    """From a key that is typed to its echo: on the screen of tmux, and as it is printed."""
    seen: dict[str, list[float]] = {name: [] for name in COMMANDS}
    printed: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with terminals() as (tmux, where):
        panes = {name: opened(tmux, command, where)[0] for name, command in COMMANDS.items()}
        time.sleep(3)
        for number in range(rounds):
            for name, pane in panes.items():
                seen[name].append(tmux.seen_after(pane, LETTERS[0]))
                began = tmux.send(pane, LETTERS[1])
                printed[name].append(tmux.when(pane, LETTERS[1].encode()) - began)
                if number % 10 == 9:
                    tmux.run("send-keys", "-t", pane, "C-u")
                    tmux.gone(pane, LETTERS[0])
                time.sleep(0.05)
    medians = {name: statistics.median(values) for name, values in seen.items()}
    ratio = medians["tui"] / medians["shell"]
    keep(
        "a key to its echo on tmux's screen",
        "at most 1.5 times",
        medians,
        lambda value: f"{1000 * value:.1f} ms",
    )
    detail = ", ".join(
        f"{name} {ms(value)}, printed after {ms(statistics.median(printed[name]))}"
        for name, value in medians.items()
    )
    return [Claim("key to echo on the screen, tui to shell", ratio, 1.5, detail)]


def flood(rounds: int = 2) -> list[Claim]:
    """From a command that prints much to what it prints last."""
    with terminals() as (tmux, where):
        panes = {name: opened(tmux, command, where)[0] for name, command in COMMANDS.items()}
        time.sleep(2)
        times: dict[str, list[float]] = {name: [] for name in panes}
        for number in range(rounds):
            for name, pane in panes.items():
                end = f"{number}.{number + 7 * number + 1}"
                size = MEGABYTES * 1_000_000
                tmux.send(pane, f'yes "{TEXT}" | head -c {size}; echo; echo over-$((6 * 7))-{end}')
                time.sleep(0.3)
                began = tmux.send(pane, "Enter")
                times[name].append(tmux.when(pane, f"over-42-{end}".encode()) - began)
                time.sleep(1)
        medians = {name: statistics.median(values) for name, values in times.items()}
        memory = {name: tmux.memory(pane) for name, pane in panes.items()}
    keep(f"{MEGABYTES} MB of output", "at most 3 times", medians, lambda value: f"{value:.1f} s")
    keep("memory at most, after that", f"at most {MEMORY} MB", memory, lambda value: f"{value:.0f} MB")
    detail = ", ".join(f"{name} {value:.1f} s" for name, value in medians.items())
    return [
        Claim(f"{MEGABYTES} MB printed, tui to shell", medians["tui"] / medians["shell"], 3, detail),
        Claim("megabytes of memory of the tui after that", memory["tui"], MEMORY, f"load {load()}"),
    ]


def start(rounds: int = 5) -> list[Claim]:
    """From the command to its first prompt."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    used: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with terminals() as (tmux, where):
        for _ in range(rounds):
            for name, command in COMMANDS.items():
                pane, took = opened(tmux, command, where)
                times[name].append(took)
                used[name].append(tmux.cpu_time(pane))
                tmux.run("kill-pane", "-t", pane)  # those of earlier rounds would be busy, too
                time.sleep(0.5)
    medians = {name: statistics.median(values) for name, values in times.items()}
    processor = {name: min(values) for name, values in used.items()}
    keep("start to the first prompt", "at most 1.2 s", medians, lambda value: f"{value:.2f} s")
    keep("CPU time of its process until then", "", processor, lambda value: f"{value:.2f} s")
    detail = ", ".join(f"{name} {value:.2f} s" for name, value in medians.items())
    detail += f"; CPU time of the tui {processor['tui']:.2f} s; load {load()}"
    return [Claim("seconds to the first prompt of the tui", medians["tui"], 1.2, detail)]


CLAIMS = (start, echo, flood) if shutil.which("tmux") else ()


if __name__ == "__main__":
    chosen = [group for group in (start, echo, flood) if group.__name__ in sys.argv[1:] or len(sys.argv) == 1]
    for group in chosen:
        print(group.__name__, flush=True)
        for claim in group():
            print(f"  {claim}", flush=True)
    if len(sys.argv) == 1:
        write_figures()
