"""`staddle jail` inside a private machine, for the tests of the jail on a real systemd."""

from __future__ import annotations

import json
import subprocess

from tests.support.private_systemd import SOURCE_INSIDE, PrivateSystemd
from tests.support.systemd_sandbox import Sandbox, wait_for

#: Hears nothing.
ENDLESS = "trap '' TERM INT HUP; while :; do sleep 1; done"


class Prison(Sandbox):
    """`staddle jail` inside the private machine, with a repository, as one of its two users."""

    def __init__(self, machine: PrivateSystemd, user: bool) -> None:
        super().__init__(machine, user)
        self.top = self.place()
        # Where people have them: both in the home, which the agent does not see.
        self.repository = f"{self.top}/home/code"
        self.workspaces = f"{self.top}/home/.local/share/staddle/workspaces"
        self.env = {
            "PYTHONPATH": SOURCE_INSIDE,
            "HOME": f"{self.top}/home",
            "GIT_CONFIG_GLOBAL": "/dev/null",
        }
        who = "-c user.name=a -c user.email=a@example.invalid"
        self.shell(
            f"cd {self.top} && mkdir -p home/.ssh home/.claude && echo key > home/.ssh/id"
            f" && git init -q -b main home/code && echo one > home/code/file.txt"
            f" && cd home/code && git add . && git {who} commit -qm first"
        )

    def shell(self, script: str, **env: str) -> bytes:
        done = self.unconfined(["bash", "-c", script], env={**self.env, **env})
        assert done.returncode == 0, done.stderr
        return done.stdout

    def jail(self, *words: str, **env: str) -> subprocess.CompletedProcess[bytes]:
        return self.unconfined(self.words_of(*words), env={**self.env, **env})

    def words_of(self, *words: str) -> list[str]:
        return ["/usr/bin/python3", "-m", "staddle", "jail", *words]

    def create(self) -> str:
        return self.jail("create", self.repository).stdout.decode().strip()

    def go(self, name: str, script: str, *options: str, **env: str) -> subprocess.CompletedProcess[bytes]:
        return self.jail("run", name, "--backend", "systemd", *options, "--", "bash", "-c", script, **env)

    def start(self, name: str, script: str, *options: str, **env: str) -> subprocess.Popen[bytes]:
        """In the background, once its pid is in the file `pid` and the script has made `ready`."""
        words = self.words_of("run", name, "--backend", "systemd", *options, "--", "bash", "-c", script)
        started = self.machine.popen(
            ["sh", "-c", f'echo $$ > {self.top}/pid; exec "$@"', "sh", *words],
            user=self.user,
            env={**self.env, **env},
        )
        ready = self.machine.outside(f"{self.workspaces}/{name}/tree/ready")
        wait_for("the agent works", ready.exists, seconds=30)
        return started

    def end(self, how: str) -> None:
        self.shell(f"kill -{how} $(cat {self.top}/pid)")

    def state(self, name: str) -> str:
        facts = json.loads(self.jail("status", name, "--json").stdout)
        return str(facts["state"])

    def healthy(self) -> bool:
        return self.shell(f"git -C {self.repository} fsck --full --strict 2>&1") == b""
