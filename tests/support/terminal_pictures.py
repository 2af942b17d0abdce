"""Write the pictures of the command line in docs/images: real commands on a terminal, as SVG.

    python -m tests.support.terminal_pictures [NAME …]

Each scene runs its commands on a pseudoterminal, in a small project of its own. `make test-agents` writes the
picture of a coding agent.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).parents[2] / "docs" / "images"
COLS, ROWS = 100, 40
_PROMPT = "\x1b[1;32m$\x1b[0m "
_FONT = re.compile(r"@font-face \{.*?\}\n?", re.DOTALL)

#: By picture: its commands, each as it is typed. A line that begins with a space runs and is not shown.
SCENES = {
    "run": (
        " mkdir -p ~/.ssh; echo secret > ~/.ssh/id_rsa",
        "staddle run -- sh -c 'cat ~/.ssh/id_rsa; touch file; curl -sS https://example.com'",
        "staddle run --write . --timeout 2m -- sh -c 'date +%Y > built; ls'",
    ),
    "shell": (
        "staddle shell --keep picture <<< 'cd src; x=5; echo $((x + 1)) > six; cat six; echo $x in $PWD'",
        "ls src",
        "staddle diff picture",
        " staddle rm --force picture",
    ),
    "diff": (
        "staddle run --keep picture -- sh -c 'sed -i s/numbers/values/ src/mean.py; echo new > notes.txt'",
        "staddle diff picture",
        " staddle rm --force picture",
    ),
    "commit": (
        " staddle run --keep picture -- sh -c 'sed -i s/mean/average/ src/mean.py; echo new > notes.txt'",
        "staddle commit picture",
        "cat notes.txt",
        "staddle commit --undo picture",
        " staddle rm --force picture",
    ),
    "doctor": ("staddle doctor",),
}


def shown(command: str, directory: Path, home: Path) -> str:
    """Run a command on a pseudoterminal; return what it printed."""
    main, child = os.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLS, 0, 0))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {
        "PATH": path,
        "HOME": str(home),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "USER": "user",
    }
    words = ["bash", "-c", command]
    process = subprocess.Popen(
        words, stdin=child, stdout=child, stderr=child, cwd=directory, env=environment, start_new_session=True
    )
    os.close(child)
    found = b""
    while True:
        if not select.select([main], [], [], 3)[0]:
            os.write(main, b"y\n")  # a question to the person
        try:
            data = os.read(main, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        found += data
    os.close(main)
    process.wait(60)
    return found.decode("utf-8", "replace").replace("\r\n", "\n")


def picture(title: str, text: str) -> str:
    """Return a terminal with this text, as SVG without fonts from elsewhere."""
    console = Console(record=True, width=COLS, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(text), soft_wrap=False)
    return _FONT.sub("", console.export_svg(title=title, unique_id=f"staddle-{title.replace(' ', '-')}"))


def project(place: Path) -> tuple[Path, Path]:
    """Make a project and a home; return both."""
    home, directory = place / "home" / "user", place / "home" / "user" / "app"
    (directory / "src").mkdir(parents=True)
    (directory / "src" / "mean.py").write_text("def mean(numbers):\n    return sum(numbers) / len(numbers)\n")
    (directory / "README.md").write_text("# app\n")
    return directory, home


def main(wanted: list[str]) -> int:
    for name, commands in SCENES.items():
        if wanted and name not in wanted:
            continue
        place = Path(tempfile.mkdtemp(prefix="staddle-picture-", dir="/var/tmp"))
        try:
            directory, home = project(place)
            lines = []
            for command in commands:
                printed = shown(command.strip(), directory, home)
                if not command.startswith(" "):
                    lines.append(f"{_PROMPT}{command}\n{printed}")
            text = "".join(lines).replace(str(home), "/home/user")
            (PICTURES / f"terminal-{name}.svg").write_text(picture(f"staddle {name}", text))
        finally:
            shutil.rmtree(place)
        print(f"docs/images/terminal-{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
