"""Try what confines a command: `python -m benchmarks.scorecard [--with 'bwrap … {command}'] [--only PEERS]`.

Every probe of tests/containment and the hard cases of tests/support/shell_cases run under each command line,
and once with nothing around them as the control. Forks and restores are tried on staddle alone. Written are
benchmarks/results/scorecard.json and the part of docs/scorecard.md between its markers; with --with or --only
nothing but the file of --out.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.field.page import names
from benchmarks.field.peers import PEERS, ROOT, Place, chosen, first_line, install, versions
from benchmarks.field.run import machine
from benchmarks.scorecard import forks, page
from tests.containment import namespaces

RESULTS = ROOT / "benchmarks/results/scorecard.json"
#: Root prepares the namespaces: a user with a name, and a /tmp and /dev/shm that nothing of the host is in.
_AS_USER = """
set -e
mount --bind "$1" /etc/passwd
for place in /tmp /dev/shm; do
    case "$3" in "$place"/*) ;; *) mount -t tmpfs -o mode=1777 none "$place" ;; esac
done
uid="$2"
# firejail confines nothing, and says so on no stream, if no process below 10 has the name of a kernel's.
(printf kthreadd >/proc/self/comm; : <"$4") &
shift 4
exec setpriv --reuid="$uid" --regid="$uid" --clear-groups --inh-caps=-all "$@"
"""


def in_namespaces(asked: dict[str, Any], timeout: float = 300) -> dict[str, Any]:
    """What the session says, as an ordinary user in namespaces of its own."""
    root = os.geteuid() == 0
    home = tempfile.mkdtemp(prefix="staddle-scorecard-", dir="/var/tmp")
    try:
        around = namespaces.same_user()
        if root:
            known = {entry.pw_uid for entry in pwd.getpwall()}
            uid = next(number for number in range(23417, 24000) if number not in known)
            os.chown(home, uid, uid)
            with tempfile.NamedTemporaryFile("w", dir="/var/tmp", suffix=".passwd") as passwd:
                passwd.write(Path("/etc/passwd").read_text() + f"tried:x:{uid}:{uid}::{home}:/bin/sh\n")
                passwd.flush()
                os.chmod(passwd.name, 0o644)
                os.mkfifo(os.path.join(home, "never-written"))
                around += [
                    "sh",
                    "-c",
                    _AS_USER,
                    "sh",
                    passwd.name,
                    str(uid),
                    str(ROOT),
                    f"{home}/never-written",
                ]
                return _session(around, home, asked, timeout)
        return _session(around, home, asked, timeout)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _session(around: list[str], home: str, asked: dict[str, Any], timeout: float) -> dict[str, Any]:
    environment = {
        "HOME": home,
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    words = [*around, sys.executable, "-m", "benchmarks.scorecard.session", json.dumps(asked)]
    process = subprocess.Popen(
        words,
        env=environment,
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"cannot": f"not finished after {timeout:.0f} s"}
    finally:
        process.terminate()  # ends the namespaces, and all that is in them
        process.wait()
    try:
        found: dict[str, Any] = json.loads(out)
    except ValueError:
        return {"cannot": first_line(err.decode("utf-8", "replace")) or f"ended with {process.returncode}"}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Try what confines a command with every probe.")
    parser.add_argument(
        "--with",
        dest="lines",
        action="append",
        default=[],
        metavar="LINE",
        help="a command line with {workspace} and {command} (repeatable)",
    )
    parser.add_argument("--only", default="", metavar="PEERS", help="peers, separated by commas")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the evidence there")
    given = parser.parse_args()
    subjects: dict[str, dict[str, Any]] = {}
    place = Place(Path("/nonexistent"))
    there: dict[str, str] = {}
    missing: dict[str, str] = {}
    if not given.lines or given.only:
        place = install()
        asked = {
            name: peer for name, peer in chosen(names(given.only)).items() if peer.line and name != "nothing"
        }
        asked = {name: peer for name, peer in asked.items() if not peer.only or "scorecard" in peer.only}
        there, missing = versions(place, asked)
        subjects = {name: {"peer": name} for name in there}
    subjects |= {line: {"with": line} for line in given.lines}
    part = bool(given.lines or given.only)
    print("the controls, with nothing around them", file=sys.stderr)
    control = in_namespaces({"control": True, "place": str(place.root)})
    if "cannot" in control:
        sys.exit(f"the controls cannot run here: {control['cannot']}")
    made: dict[str, Any] = {
        "machine": machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": there,
        "missing": missing,
        "purposes": {name: PEERS[name].purpose for name in there},
        "subjects": {},
    }
    for number, (name, subject) in enumerate(subjects.items()):
        print(f"{number + 1} of {len(subjects)}: {name}", file=sys.stderr)
        made["subjects"][name] = page.judged(control, in_namespaces({**subject, "place": str(place.root)}))
    if not given.lines:
        print("forks and restores", file=sys.stderr)
        made["forks"] = forks.tried()
    out = given.out or (None if part else RESULTS)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    print(page.tables(made))
    if not part:
        page.write(made)
    return int(any("cannot" in made["subjects"][line] for line in given.lines))


if __name__ == "__main__":
    sys.exit(main())
