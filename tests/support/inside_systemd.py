"""Run one command on the systemd backend: what the tests start inside a private systemd.

    python inside_systemd.py '{"command": ["id"], "write": ["/srv/work"]}'

Ends as the command does; 125 and a line on standard error when it did not start.
"""

from __future__ import annotations

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # where the source tree is copied to

from staddle import Network, Policy
from staddle.backends.systemd import Systemd
from staddle.errors import StaddleError
from staddle.launch.running import start
from staddle.policy.compiler import compile


def main() -> int:
    asked = json.loads(sys.argv[1])
    backend = Systemd()
    if asked.get("only") == "probe":
        print(json.dumps(backend.probe().as_dict()))
        return 0
    try:
        plan = compile(policy(asked), cwd=asked.get("cwd"))
        gaps = backend.gaps(plan)
        if asked.get("only") == "gaps":
            print(json.dumps([[gap.protection, gap.why] for gap in gaps]))
            return 0
        if gaps and not asked.get("despite_gaps"):
            print(f"gaps: {gaps}", file=sys.stderr)
            return 125
        launch = backend.prepare(plan, asked["command"])
        process = start(launch)
    except StaddleError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 125
    if "pid_file" in asked:
        with open(asked["pid_file"], "w") as file:
            file.write(str(process.pid))
    assert launch.status is not None
    if asked.get("status") == "closed":
        os.close(launch.status)
        return process.wait()
    code = process.wait()
    failure = launch.failure(os.read(launch.status, 65536))
    if failure is not None:
        print(f"not started: {failure}", file=sys.stderr)
        return 125
    return code if code >= 0 else 128 - code


def policy(asked: dict[str, object]) -> Policy:
    """The agent's policy with what was asked for."""
    made = (
        Policy.agent()
        .with_limits(timeout=None)
        .with_network(getattr(Network, asked.get("network", "deny"))())
    )
    made = made.with_write(*asked.get("write", ()))
    return made.with_env(**asked.get("env", {})).with_limits(**asked.get("limits", {}))


if __name__ == "__main__":
    sys.exit(main())
