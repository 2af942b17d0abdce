"""Harbor (terminal-bench): `harbor run -e staddle.adapters.harbor:StaddleHarborEnvironment`.

A sandbox runs the supported part of a task's Dockerfile (FROM, RUN, COPY, WORKDIR, ENV, ARG, USER). A stage
that is copied from is built in a separate sandbox, which is closed before the trial. FROM names an imported
base (`staddle base import`), or "host" for the host's own system; `bases=` maps names.
"""

from __future__ import annotations

import posixpath
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any

from staddle import AsyncSandbox, Network, Policy, Sandbox
from staddle.errors import PolicyNotEnforceable, StaddleError

from ._common import CommandEnding, download, ending, framework, policy_of, seconds, shell_argv, upload
from ._dockerfile import CopyStep, DockerfileRefused, Recipe, read

with framework("harbor", "harbor"):
    from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
    from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
    from harbor.environments.definition import DOCKERFILE_NAME
    from harbor.models.task.config import NetworkMode, NetworkPolicy

#: Directories that Harbor and its tasks use.
_DIRECTORIES = (
    *("/app", "/tests", "/solution", "/installed-agent"),
    *("/logs/agent", "/logs/verifier", "/logs/artifacts"),
)


class StaddleHarborEnvironment(BaseEnvironment):
    """One sandbox for a trial. Commands run as root inside (default), or as the task's user.

    `bases` maps images to imported bases; "host" is the host's system. `policy` is a policy file. `gpus`
    names the GPUs that tasks may use, such as "nvidia:0"; a task gets as many as it asks for (default: none).
    """

    def __init__(
        self,
        *args: Any,
        bases: dict[str, str] | None = None,
        policy: str | None = None,
        gpus: str | Sequence[str] = (),
        **options: Any,
    ) -> None:
        self._bases, self._policy = dict(bases or {}), policy
        self._gpus = [gpus] if isinstance(gpus, str) else list(gpus)
        self._recipe = Recipe(image="host")
        self._sandbox: AsyncSandbox | None = None
        super().__init__(*args, **options)

    @staticmethod
    def type() -> str:
        """Its name."""
        return "staddle"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """The network is enforced exactly; it can change between phases unless one of them is public."""
        return EnvironmentCapabilities(
            gpus=bool(self._gpus),
            dynamic_network_policy=not any(map(_is_public, self._policies())),
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv4_cidrs=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """CPU and memory are limits, if this host can enforce them for this user.

        Harbor's `auto` drops limits that cannot be enforced; its `limit` refuses the trial.
        """
        return EnvironmentResourceCapabilities(cpu_limit=_held(cpu=1.0), memory_limit=_held(memory="256M"))

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
        for recipe in (*self._recipe.stages(), self._recipe):
            self._base(recipe)
        if 0 < len(self._gpus) < self._effective_gpus:  # with none, Harbor refuses the task
            raise SandboxBuildFailedError(
                f"the task asks for {self._effective_gpus} GPUs, and gpus= names {len(self._gpus)}"
            )

    def _base(self, recipe: Recipe) -> str | None:
        """The base for the image of a stage; None for the host's system."""
        image = recipe.image
        name = self._bases.get(image, self._bases.get(image.partition(":")[0]))
        if name is None and image in ("host", "scratch"):
            name = "host"
        if name is None:
            raise SandboxBuildFailedError(
                f"Dockerfile line {recipe.line}: there is no base for {image!r}; import it "
                f"(`staddle base import`) and give bases={{{image!r}: NAME}}, or 'host' for the host's system"
            )
        return None if name == "host" else name

    # ------------------------------------------------------------ lifetime

    async def start(self, force_build: bool) -> None:
        """Open the sandbox, make Harbor's directories, and run the Dockerfile."""
        self._sandbox = self._opened(self._recipe)
        try:
            await self._sandbox.__aenter__()
            await self._narrow(self._sandbox)
            await self._made()
        except BaseException:
            await self._sandbox.close()
            raise

    def _opened(self, recipe: Recipe) -> AsyncSandbox:
        """A sandbox with the limits of the task, from the base of this stage."""
        policy = policy_of(self._policy).with_network(_network(self._widest()))
        policy = policy.with_gpu(*self._gpus[: self._effective_gpus])
        memory, cpus = self._effective_memory_mb, self._effective_cpus
        held = self.resource_capabilities()
        if memory and held.memory_limit:
            policy = policy.with_limits(memory=f"{memory}M")
        if cpus and held.cpu_limit:
            policy = policy.with_limits(cpu=float(cpus))
        base = self._base(recipe)
        if base is not None:
            policy = policy.with_base(base)
        return AsyncSandbox(policy=policy, env=self._startup_env() or None)

    # ------------------------------------------------------------ network

    def _policies(self) -> list[NetworkPolicy]:
        """The policy at the start, and those of the phases."""
        phases = getattr(self, "_phase_network_policies", None) or ()
        return [getattr(self, "_network_policy", None) or NetworkPolicy(), *phases]

    def _widest(self) -> NetworkPolicy:
        """The network to open the sandbox with: the hosts of all phases, if the phases differ."""
        policies = self._policies()
        if any(map(_is_public, policies)) or all(each == policies[0] for each in policies):
            return policies[0]
        hosts = sorted({host for each in policies for host in each.allowed_hosts})
        return (
            NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=hosts) if hosts else policies[0]
        )

    async def _narrow(self, sandbox: AsyncSandbox) -> None:
        """Restrict the network to that of the first phase."""
        wanted = _network(self.network_policy)
        if wanted != _network(self._widest()):
            await sandbox.set_network(wanted)

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        await self.sandbox.set_network(_network(network_policy))

    # ------------------------------------------------------------ building

    async def _made(self) -> None:
        made = await self.sandbox.exec(["mkdir", "-p", "-m", "777", *_DIRECTORIES], user="root")
        if not made.ok:
            raise SandboxBuildFailedError(f"the directories of Harbor cannot be made: {made.stderr.strip()}")
        async with AsyncExitStack() as built:
            stages: dict[int, AsyncSandbox] = {}
            for stage in self._recipe.stages():
                stages[id(stage)] = await built.enter_async_context(self._opened(stage))
                await self._narrow(stages[id(stage)])
                await self._follow(stage, stages[id(stage)], stages)
            await self._follow(self._recipe, self.sandbox, stages)

    async def _follow(self, recipe: Recipe, sandbox: AsyncSandbox, stages: dict[int, AsyncSandbox]) -> None:
        for step in recipe.steps:
            if isinstance(step, CopyStep):
                stage = None if step.stage is None else stages[id(step.stage)]
                await self._copied(step, sandbox, stage)
                continue
            argv = shell_argv(step.command) if isinstance(step.command, str) else list(step.command)
            done = await sandbox.exec(
                argv,
                cwd=step.cwd,
                env=step.env or None,
                user=step.user or "root",
                merge=True,
                timeout=self.task_env_config.build_timeout_sec,
            )
            if not done.ok:
                said = done.stdout[-2000:]
                raise SandboxBuildFailedError(
                    f"Dockerfile line {step.line} failed ({done.exit_code}): {said}"
                )

    async def _copied(self, step: CopyStep, sandbox: AsyncSandbox, stage: AsyncSandbox | None) -> None:
        if stage is not None:
            for path in step.sources:
                await _copied_over(stage, posixpath.join("/", path), sandbox, step)
            return
        context = Path(self.environment_dir)
        for pattern in step.sources:
            found = sorted(context.glob(pattern.lstrip("/"))) if pattern not in (".", "./") else [context]
            if not found:
                raise SandboxBuildFailedError(f"Dockerfile line {step.line}: {pattern} does not exist")
            for source in found:
                target = _target(step, source.name, is_directory=source.is_dir())
                await upload(sandbox, source, target, step.user or "root")
                if not source.is_dir():
                    mode = source.stat().st_mode & 0o777
                    await sandbox.files.as_user(step.user or "root").chmod(target, mode)

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
        return self._recipe.workdir if self._recipe.workdir != "/" else "/app"

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the sandbox."""
        await upload(self.sandbox, source_path, target_path, "root")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy the content of a directory into the sandbox."""
        await upload(self.sandbox, source_dir, target_dir, "root")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out of the sandbox."""
        await download(self.sandbox, source_path, target_path, "root")

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the content of a directory out of the sandbox."""
        await download(self.sandbox, source_dir, target_dir, "root")


def _is_public(policy: NetworkPolicy) -> bool:
    return policy.network_mode == NetworkMode.PUBLIC


@cache
def _held(**limit: Any) -> bool:
    """Whether a sandbox of this process can enforce such a limit."""
    try:
        Sandbox.check(policy=Policy.agent().with_limits(**limit))
    except PolicyNotEnforceable:
        return False
    return True


def _network(policy: NetworkPolicy) -> Network:
    if _is_public(policy):
        return Network.open()
    if policy.network_mode == NetworkMode.NO_NETWORK:
        return Network.deny()
    return Network.allow(*policy.allowed_hosts)


def _target(step: CopyStep, name: str, *, is_directory: bool) -> str:
    """The target of one source: files go below a target with a slash, a directory's content to it."""
    below = step.target.endswith("/") and not is_directory
    return (posixpath.join(step.target, name) if below else step.target.rstrip("/")) or "/"


async def _copied_over(stage: AsyncSandbox, source: str, sandbox: AsyncSandbox, step: CopyStep) -> None:
    """Copy a file, or a directory's content, between two sandboxes; the host unpacks nothing."""
    files, user = stage.files.as_user("root"), step.user or "root"
    try:
        about = await files.stat(source)
    except FileNotFoundError:
        raise SandboxBuildFailedError(
            f"Dockerfile line {step.line}: the stage does not have {source}"
        ) from None
    target = _target(step, posixpath.basename(source), is_directory=about.is_dir)
    with tempfile.TemporaryFile() as between:
        if about.is_dir:
            await stage.download_tar(between, source, user="root")
        else:
            await files.download(source, between)
        between.seek(0)
        if about.is_dir:
            await sandbox.upload_tar(between, target, user=user)
        else:
            await sandbox.files.as_user(user).upload(between, target)
            await sandbox.files.as_user(user).chmod(target, about.mode & 0o777)
