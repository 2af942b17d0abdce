"""smolagents: `CodeAgent(executor=StaddlePythonExecutor())` runs the agent's code in a sandbox."""

from __future__ import annotations

import ast
from typing import Any

from staddle import Interpreter, Sandbox

from ._common import framework, policy_of

with framework("smolagents", "smolagents"):
    from smolagents.local_python_executor import CodeOutput
    from smolagents.monitoring import AgentLogger
    from smolagents.remote_executors import RemotePythonExecutor
    from smolagents.utils import AgentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._common import AnyPolicy

#: Runs inside: whether a package is installed, by the name of its distribution or module.
_FIND = """
def is_there(name):
    import importlib.metadata, importlib.util
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return importlib.util.find_spec(name.partition(".")[0]) is not None
    return True
"""


class StaddlePythonExecutor(RemotePythonExecutor):
    """A Python in a sandbox that keeps its variables. Tools run inside, too, and need their imports there.

    `python` is the interpreter inside; it may be in a virtual environment if the policy allows its directory.
    """

    def __init__(
        self,
        additional_imports: list[str] | None = None,
        logger: Any = None,
        *,
        policy: AnyPolicy = None,
        workspace: str | None = None,
        timeout: float | None = 120,
        python: str = "python3",
        sandbox: Sandbox | None = None,
        **options: Any,
    ) -> None:
        super().__init__(additional_imports or [], logger or AgentLogger(), **options)
        self.sandbox = sandbox or Sandbox(workspace, policy_of(policy))
        self._timeout, self._python = timeout, python
        self._interpreter = Interpreter(self.sandbox, python=python)

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run a cell; AgentError with its traceback if it fails."""
        result = self._interpreter.run(code, timeout=self._timeout)
        logs = result.stdout + result.stderr
        if result.error is not None:
            if result.error["name"] == "FinalAnswerException":
                value = result.error.get("given") or result.error["value"]
                answer = self._deserialize_final_answer(value, self.allow_pickle)
                return CodeOutput(output=answer, logs=logs, is_final_answer=True)
            raise AgentError(f"{logs}{result.error['traceback'] or result.error['value']}", self.logger)
        return CodeOutput(output=result.text, logs=logs, is_final_answer=False)

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Install missing packages inside; the policy must allow their source."""
        wanted = [name for name in additional_imports if name]
        found = self._interpreter.run(f"{_FIND}\n[name for name in {wanted!r} if not is_there(name)]")
        missing = ast.literal_eval(found.text or "[]")
        if missing:
            argv = [self._python, "-m", "pip", "install", *map(str, missing)]
            self.sandbox.exec(argv, timeout=600, check=True)
        return additional_imports

    def cleanup(self) -> None:
        """Close the sandbox."""
        self.sandbox.close()
