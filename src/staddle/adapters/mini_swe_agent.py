"""mini-swe-agent: `environment_class: staddle.adapters.mini_swe_agent.StaddleEnvironment` in its yaml."""

from __future__ import annotations

from typing import Any

from staddle import Sandbox

from ._common import CommandEnding, ending, framework, policy_of, shell_argv

with framework("mini-swe-agent", "mini-swe-agent"):
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.utils.serialize import recursive_merge
    from pydantic import BaseModel


class StaddleEnvironmentConfig(BaseModel):
    """`workspace` is a directory of the host, seen copy-on-write at /workspace; `policy` a policy file."""

    cwd: str = ""
    env: dict[str, str] = {}
    timeout: int = 30
    workspace: str | None = None
    policy: str | None = None
    mode: str = "overlay"
    backend: str = "auto"


class StaddleEnvironment(LocalEnvironment):
    """Each action runs in its own shell of one sandbox, as mini-swe-agent expects."""

    def __init__(self, **options: Any) -> None:
        super().__init__(config_class=StaddleEnvironmentConfig, **options)
        config = self.config
        self.sandbox = Sandbox(
            config.workspace,
            policy_of(config.policy),
            mode=config.mode,
            backend=config.backend,
            env=config.env or None,
        )

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run the command of an action; merges both streams."""
        limit = timeout or self.config.timeout
        result = self.sandbox.exec(
            shell_argv(action.get("command", "")),
            merge=True,
            cwd=cwd or self.config.cwd or None,
            timeout=limit,
        )
        output: dict[str, Any] = {
            "output": result.stdout,
            "returncode": result.exit_code,
            "exception_info": "",
        }
        if ending(result) is CommandEnding.TIMEOUT:
            what = f"the command timed out after {limit} seconds"
            output.update(
                returncode=-1,
                exception_info=f"An error occurred while executing the command: {what}",
                extra={"exception_type": "TimeoutExpired", "exception": what},
            )
        self._check_finished(output)
        return output

    def get_template_vars(self, **options: Any) -> dict[str, Any]:
        """The variables of prompts, from the sandbox instead of the host."""
        names = ("system", "node", "release", "version", "machine")
        words = self.sandbox.exec(["uname", "-s", "-n", "-r", "-v", "-m"]).stdout.split()
        uname = dict(zip(names, [*words[:3], " ".join(words[3:-1]), words[-1]], strict=True))
        return recursive_merge(self.config.model_dump(), uname, dict(self.sandbox.state.env), options)

    def close(self) -> None:
        """Close the sandbox."""
        self.sandbox.close()
