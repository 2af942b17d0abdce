"""OpenHands: its agent server runs in a sandbox, and with it every tool of the agent.

  with StaddleRemoteWorkspace(policy=policy) as workspace:
      Conversation(agent=agent, workspace=workspace).run()

The server calls the model from inside, so the policy's network must allow its host. The server is the one
installed for this interpreter, which the sandbox can read.
"""

from __future__ import annotations

import secrets
import sys
import time
from typing import Any

from staddle import Network, Sandbox
from staddle.errors import SandboxLost

from ._common import WORKSPACE, framework, policy_of

with framework("openhands-sdk", "openhands"):
    import httpx
    from openhands.sdk.workspace import RemoteWorkspace
    from pydantic import Field, PrivateAttr

#: The server's port inside, and the seconds for its start.
_PORT, _TO_START = 8000, 180.0
_SERVER = {
    "OH_CONVERSATIONS_PATH": "/tmp/openhands/conversations",
    "OH_ENABLE_VSCODE": "0",
    "OH_ENABLE_VNC": "0",
    "TMUX_TMPDIR": "/tmp",
    "OPENHANDS_SUPPRESS_BANNER": "1",
    # Without a network its import would wait for a price list.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


class StaddleRemoteWorkspace(RemoteWorkspace):
    """A RemoteWorkspace with its server in a separate sandbox; `sandbox` is that sandbox.

    `workspace` is a directory of the host, seen copy-on-write at /workspace. `policy` is a Policy or a file;
    the sandbox may also read the directories of this interpreter.
    """

    host: str = Field(default="")
    working_dir: str = Field(default=WORKSPACE)
    workspace: str | None = Field(default=None, exclude=True)
    policy: Any = Field(default=None, exclude=True)
    env: dict[str, str] = Field(default_factory=dict, exclude=True)
    _sandbox: Any = PrivateAttr(default=None)
    _server: Any = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        """Open the sandbox, and wait until the server in it answers."""
        policy = policy_of(self.policy).with_read(sys.prefix, sys.base_prefix)
        if policy.network == Network.deny():
            policy = policy.with_network(Network.loopback())
        # Any user of this machine can connect to the exposed port, so the server requires a key.
        self.api_key = secrets.token_urlsafe(32)
        variables = {**_SERVER, **self.env, "SESSION_API_KEY": self.api_key}
        self._sandbox = Sandbox(self.workspace, policy)
        try:
            argv = [
                sys.executable,
                "-m",
                "openhands.agent_server",
                "--host",
                "127.0.0.1",
                "--port",
                str(_PORT),
            ]
            self._server = self._sandbox.start(argv, cwd=WORKSPACE, env=variables)
            self.host = f"http://127.0.0.1:{self._sandbox.expose(_PORT)}"
            self._await_server()
        except BaseException:
            self._sandbox.close()
            raise
        super().model_post_init(context)

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of the server."""
        sandbox: Sandbox = self._sandbox
        return sandbox

    def _await_server(self) -> None:
        until = time.monotonic() + _TO_START
        while time.monotonic() < until:
            if not self._server.running:
                why = str(self._server.output())[-2000:]
                raise SandboxLost(
                    "the OpenHands agent server has exited",
                    why=why,
                    fix="correct the cause that it prints, and start it again",
                )
            try:
                if httpx.get(f"{self.host}/health", timeout=5).status_code == httpx.codes.OK:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise SandboxLost(
            f"the OpenHands agent server does not answer after {_TO_START:.0f} seconds",
            why="it does not listen at its port inside",
            fix="read what it prints, or try again on a machine with less to do",
        )

    def cleanup(self) -> None:
        """Close the sandbox, and the server with it."""
        self.reset_client()
        if self._sandbox is not None:
            self._sandbox.close()

    def __exit__(self, *error: object) -> None:
        try:
            super().__exit__(*error)
        finally:
            self.cleanup()
