"""Harbor (terminal-bench): `harbor run -e staddle.adapters.harbor:StaddleHarborEnvironment`.

A task's Dockerfile is followed in a sandbox as far as it is read (FROM, RUN, COPY, WORKDIR, ENV, ARG, USER).
FROM names an imported base (`staddle base import`), or "host" for the host's own system; `bases=` maps names.
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

from staddle import AsyncSandbox, Network
from staddle.errors import StaddleError

from ._common import CommandEnding, download, ending, framework, policy_of, seconds, shell_argv, upload
from ._dockerfile import CopyStep, DockerfileRefused, Recipe, read

with framework("harbor", "harbor"):
    from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
    from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
    from harbor.environments.definition import DOCKERFILE_NAME

#: Directories that Harbor and its tasks use, besides the task's own.
_DIRECTORIES = ("/logs/agent", "/logs/verifier", "/logs/artifacts", "/tests", "/solution", "/installed-agent")
_APP = "/app"


class StaddleHarborEnvironment(BaseEnvironment):
    """One sandbox for a trial. Commands run as root inside unless the task says otherwise.

    `bases` maps images to imported bases; "host" is the host's system. `policy` is a policy file.
    """

    def __init__(
        self, *args: Any, bases: dict[str, str] | None = None, policy: str | None = None, **options: Any
    ) -> None:
        self._bases, self._policy = dict(bases or {}), policy
        self._recipe = Recipe(image="host")
        self._sandbox: AsyncSandbox | None = None
        super().__init__(*args, **options)

    @staticmethod
    def type() -> str:
        """Its name."""
        return "staddle"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """The network is enforced exactly; it is fixed when the sandbox is opened."""
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv4_cidrs=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """CPU and memory are limits."""
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    @property
    def sandbox(self) -> AsyncSandbox:
        """The open sandbox."""
        if self._sandbox is None:
            raise RuntimeError("the environment has not been started")
        return self._sandbox

    def _validate_definition(self) -> None:
        path = Path(self.environment_dir) / DOCKERFILE_NAME
        if self.task_env_config.docker_image:
            self._recipe = Recipe(image=self.task_env_config.docker_image)
        elif path.exists():
            try:
                self._recipe = read(path.read_text())
            except DockerfileRefused as error:
                raise SandboxBuildFailedError(str(error)) from error
        self._base()

    def _base(self) -> str | None:
        """The name of the base for the image; None for the host's system."""
        image = self._recipe.image
        name = self._bases.get(image, self._bases.get(image.partition(":")[0]))
        if name is None and image in ("host", "scratch"):
            name = "host"
        if name is None:
            raise SandboxBuildFailedError(
                f"Dockerfile line {self._recipe.line}: there is no base for {image!r}; import it "
                f"(`staddle base import`) and give bases={{{image!r}: NAME}}, or 'host' for the host's system"
            )
        return None if name == "host" else name

    # ------------------------------------------------------------ lifetime

    async def start(self, force_build: bool) -> None:
        """Open the sandbox, make the directories of Harbor, and follow the Dockerfile."""
        policy = policy_of(self._policy).with_network(self._network())
        memory, cpus = self._effective_memory_mb, self._effective_cpus
        if memory:
            policy = policy.with_limits(memory=f"{memory}M")
        if cpus:
            policy = policy.with_limits(cpu=float(cpus))
        base = self._base()
        if base is not None:
            policy = policy.with_base(base)
        self._sandbox = AsyncSandbox(policy=policy, workspace_at=_APP, env=self._startup_env() or None)
        try:
            await self._sandbox.__aenter__()
            await self._made()
        except BaseException:
            await self._sandbox.close()
            raise

    def _network(self) -> Network:
        if self._network_is_public:
            return Network.open()
        return Network.deny() if self._network_disabled else Network.allow(*self.network_policy.allowed_hosts)

    async def _made(self) -> None:
        made = await self.sandbox.exec(["mkdir", "-p", "-m", "777", *_DIRECTORIES], user="root")
        if not made.ok:
            raise SandboxBuildFailedError(f"the directories of Harbor cannot be made: {made.stderr.strip()}")
        for step in self._recipe.steps:
            if isinstance(step, CopyStep):
                await self._copied(step)
                continue
            argv = shell_argv(step.command) if isinstance(step.command, str) else list(step.command)
            timeout = self.task_env_config.build_timeout_sec
            done = await self.sandbox.exec(
                argv,
                cwd=step.cwd,
                env=step.env or None,
                user=step.user or "root",
                merge=True,
                timeout=timeout,
            )
            if not done.ok:
                said = done.stdout[-2000:]
                raise SandboxBuildFailedError(
                    f"Dockerfile line {step.line} failed ({done.exit_code}): {said}"
                )

    async def _copied(self, step: CopyStep) -> None:
        for pattern in step.sources:
            context = Path(self.environment_dir)
            found = sorted(context.glob(pattern.lstrip("/"))) if pattern not in (".", "./") else [context]
            if not found:
                raise SandboxBuildFailedError(f"Dockerfile line {step.line}: {pattern} does not exist")
            for source in found:
                below = step.target.endswith("/") and not source.is_dir()
                target = posixpath.join(step.target, source.name) if below else step.target.rstrip("/")
                await upload(self.sandbox, source, target or "/", step.user or "root")

    async def stop(self, delete: bool) -> None:
        """Close the sandbox."""
        if self._sandbox is not None:
            await self._sandbox.close()

    # ------------------------------------------------------------ commands and files

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run shell text."""
        who = self._resolve_user(user)
        tell = self._output_callback()
        try:
            result = await self.sandbox.exec(
                shell_argv(command),
                cwd=cwd or self.task_env_config.workdir or self._workdir,
                env={**self._recipe.env, **(self._merge_env(env) or {})} or None,
                user="root" if who is None else str(who),
                **seconds(timeout_sec),
            )
        except StaddleError as error:
            raise RuntimeError(str(error)) from error
        if tell is not None:
            await tell(result.stdout, "stdout")
            await tell(result.stderr, "stderr")
        if ending(result) is CommandEnding.TIMEOUT:
            raise TimeoutError(f"the command was ended after {timeout_sec} seconds")
        return ExecResult(stdout=result.stdout, stderr=result.stderr, return_code=result.exit_code)

    @property
    def _workdir(self) -> str:
        return self._recipe.workdir if self._recipe.workdir != "/" else _APP

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the sandbox."""
        await upload(self.sandbox, source_path, target_path, "root")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy what is in a directory into the sandbox."""
        await upload(self.sandbox, source_dir, target_dir, "root")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out of the sandbox."""
        await download(self.sandbox, source_path, target_path, "root")

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy what is in a directory out of the sandbox."""
        await download(self.sandbox, source_dir, target_dir, "root")
