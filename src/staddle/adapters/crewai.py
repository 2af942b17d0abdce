"""CrewAI: three tools over one sandbox, `Agent(tools=staddle_tools(sandbox))`."""

from __future__ import annotations

from typing import Any, Literal

from staddle import Interpreter, Sandbox

from ._common import framework

with framework("crewai", "crewai"):
    from crewai.tools import BaseTool
    from pydantic import BaseModel, ConfigDict, Field, PrivateAttr


class ExecToolInput(BaseModel):
    """A command."""

    command: str = Field(description="Shell text for bash; the directory and variables are remembered.")


class PythonToolInput(BaseModel):
    """A cell."""

    code: str = Field(description="Python code; variables are remembered. The last expression is shown.")


class FileToolInput(BaseModel):
    """Arguments of the file tool."""

    action: Literal["read", "write", "append", "list", "delete", "exists"]
    path: str = Field(description="A path in the sandbox, such as /workspace/a.txt")
    content: str = Field(default="", description="For write and append.")


class _SandboxTool(BaseTool):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    sandbox: Sandbox
    timeout: float | None = 120


class StaddleExecTool(_SandboxTool):
    """Runs shell text in the sandbox's session."""

    name: str = "sandbox_exec"
    description: str = "Run a shell command in a sandbox and return its output and exit code."
    args_schema: type[BaseModel] = ExecToolInput

    def _run(self, command: str) -> dict[str, Any]:
        result = self.sandbox.run(command, timeout=self.timeout, output_limit="256K")
        return {
            "exit_code": result.exit_code,
            "stdout": result.stdout,
            "stderr": result.stderr,
            "timed_out": result.timed_out,
        }


class StaddlePythonTool(_SandboxTool):
    """Runs Python in an interpreter that keeps its variables."""

    name: str = "sandbox_python"
    description: str = "Run Python code in a sandbox; variables persist between calls."
    args_schema: type[BaseModel] = PythonToolInput
    _interpreter: Any = PrivateAttr(default=None)

    def _run(self, code: str) -> dict[str, Any]:
        if self._interpreter is None:
            self._interpreter = Interpreter(self.sandbox)
        result = self._interpreter.run(code, timeout=self.timeout, output_limit=256 << 10)
        error = None if result.error is None else result.error["traceback"] or result.error["value"]
        return {"stdout": result.stdout, "stderr": result.stderr, "result": result.text, "error": error}


class StaddleFileTool(_SandboxTool):
    """Reads and changes files of the sandbox."""

    name: str = "sandbox_files"
    description: str = "Read, write, append to, list or delete files in a sandbox."
    args_schema: type[BaseModel] = FileToolInput

    def _run(self, action: str, path: str, content: str = "") -> Any:
        files = self.sandbox.files
        try:
            if action == "read":
                return files.read(path, limit=1 << 20)
            if action == "write":
                files.write(path, content, parents=True)
            elif action == "append":
                files.append(path, content, parents=True)
            elif action == "list":
                return [
                    {"name": each.name, "kind": each.kind, "size": each.size} for each in files.list(path)
                ]
            elif action == "delete":
                files.remove(path, recursive=True)
            else:
                return files.exists(path)
        except OSError as error:
            return f"error: {error}"
        return "done"


def staddle_tools(sandbox: Sandbox, *, timeout: float | None = 120) -> list[BaseTool]:
    """The three tools over one sandbox."""
    kinds = (StaddleExecTool, StaddlePythonTool, StaddleFileTool)
    return [kind(sandbox=sandbox, timeout=timeout) for kind in kinds]
