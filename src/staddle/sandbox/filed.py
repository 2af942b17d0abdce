"""What a sandbox offers for its files: one by one, as tar, and as the tools of an agent."""

from __future__ import annotations

from .files import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import IO, Literal

    from ..environment.rules import CommandRules
    from .environment import SandboxEnvironment
    from .files import AnyPath, Source
    from .open_sandbox import OpenSandbox


class Filed:
    """The part of a sandbox that knows about files."""

    if TYPE_CHECKING:

        def _now(self) -> OpenSandbox: ...

    @property
    def files(self) -> Files:
        """The files inside, as the sandbox's own user sees them."""
        return Files(self)

    def upload_tar(self, f: Source, path: AnyPath = ".") -> None:
        """Unpack the tar (also with gzip) that is read from `f` into the directory `path`, which is made.

        All of it or nothing: ArchiveRefused for names and links that lead out, devices, an entry
        that is there twice, an early end. Files that are there are replaced, directories added to.
        """
        from .archives import upload

        upload(self, f, path)

    def download_tar(self, f: IO[bytes], path: AnyPath = ".", *, limit: int | None = 16 << 30) -> None:
        """Write what is in the directory `path`, or a file, to `f` as a tar of at most `limit` bytes.

        Links are kept as links; pipes, sockets and devices are left out. What a sandbox made is
        its choice: unpack it where links that lead out do no harm, or with tarfile's data filter.
        """
        from .archives import download

        download(self, f, path, limit)

    def environment(
        self,
        writable_paths: Iterable[str] | None = None,
        *,
        path: AnyPath = ".",
        on_unavailable: Literal["refuse", "record"] = "refuse",
        rules: CommandRules | None = None,
        secrets: Iterable[str] = (),
    ) -> SandboxEnvironment:
        """The tools of an agent (ExecutionEnvironment) in the directory `path`, with the globs it may write.

        Commands are held to `writable_paths` too, where changes are in a layer: what does not
        match is put back after each command. Elsewhere "refuse" raises PolicyNotEnforceable,
        and "record" says it in `limits()`. `rules` and `secrets` are as for LocalEnvironment.
        """
        from .environment import SandboxEnvironment

        return SandboxEnvironment(
            self,  # type: ignore[arg-type]
            writable_paths,
            path=path,
            on_unavailable=on_unavailable,
            rules=rules,
            secrets=secrets,
        )
