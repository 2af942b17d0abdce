"""Find toolchains on the user's PATH (python, node, go, rust, ...) that would be hidden in a sandbox.

They are often stored in the home, which is hidden. This module finds the ones on the PATH, and the
directories that they need and no others: the root of one version, never a directory that also contains other
versions, logins or mail. Everything that is not a known toolchain stays hidden.

    found = find(path, home, files, hidden=..., denied=...)

It reads only the given PATH, and the disk through `files`. `layouts` has the knowledge as data.
"""

from __future__ import annotations

import os

from .._value import Value
from ..linux import fileio
from ..paths import covers
from . import layouts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Protocol

    from .resolution import ResolvedPath

    class HostDisk(Protocol):
        """The disk operations that this module needs."""

        def find(self, path: str) -> ResolvedPath:
            """Resolve an absolute path, with the links on the way."""

        def names(self, directory: str) -> list[str]:
            """Return the sorted names in a directory; none if it cannot be read."""

        def text(self, path: str) -> str:
            """Return the beginning of a file; empty if it cannot be read."""

    #: A path inside, the content of its file, and the mode.
    File = tuple[str, bytes, int]
    #: A path inside, and the target of its link.
    Link = tuple[str, str]
    Parts = tuple[tuple[File, ...], tuple[Link, ...]]

#: Maximum number of directories on a PATH, and of programs in a mixed directory.
_MOST = 500


class Toolchain(Value):
    """A directory (or a single program) that must be readable, with the reason."""

    root: str
    what: str
    why: str


class Toolchains(Value):
    """The grants, links and PATH entries that make toolchains work inside.

    `links` are (link, target) as on the host. `before` and `after` are PATH entries before and after the
    system's own. `denied` are paths that stay hidden in the roots. `left_out` are PATH directories that are
    not shown. `at_its_place`: a file in the workspace refers to the workspace by its path on the host.
    """

    toolchains: tuple[Toolchain, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    at_its_place: bool = False


def find(
    path: str,
    home: str,
    files: HostDisk,
    *,
    hidden: Callable[[str], bool],
    denied: Iterable[str],
    env: Mapping[str, str],
    workspace: str | None = None,
) -> Toolchains:
    """Find the toolchains on `path`, and a virtual environment in `workspace`.

    `hidden` tells whether a real path is invisible inside. No root may contain `denied` paths or be below
    one. `env` are the host's variables, which may name a toolchain.
    """
    finder = _Finder(home, files, hidden, tuple(denied), env, workspace)
    system = False
    for directory in dict.fromkeys(map(os.path.normpath, path.split(":")[:_MOST])):
        if not directory.startswith("/"):
            continue  # a relative directory is not a toolchain's
        if directory in layouts.SYSTEM:
            system = True
            continue
        (finder.after if system else finder.before).extend(finder.entry(directory))
    for name in layouts.ENVIRONMENTS if workspace is not None else ():
        finder.environment_of_the_workspace(f"{workspace}/{name}")
    return finder.found()


class _Finder:
    def __init__(  # noqa: PLR0917 - the arguments of `find`
        self,
        home: str,
        files: HostDisk,
        hidden: Callable[[str], bool],
        denied: tuple[str, ...],
        env: Mapping[str, str],
        workspace: str | None,
    ) -> None:
        self._home, self._files, self._hidden, self._denied = home, files, hidden, denied
        self._env, self._workspace = env, workspace
        self._of_the_workspace = False
        self.before: list[str] = []
        self.after: list[str] = []
        self._toolchains: dict[str, Toolchain] = {}
        self._links: dict[str, str] = {}
        self._left_out: list[str] = []

    def found(self) -> Toolchains:
        roots = self._toolchains
        needed = {
            root: one
            for root, one in roots.items()
            if not any(other != root and covers(other, root) for other in roots)
        }
        inside = [f"{root}/{name}" for root in needed for name in layouts.SECRETS]
        return Toolchains(
            toolchains=tuple(needed.values()),
            links=tuple(self._links.items()),
            before=tuple(dict.fromkeys(self.before)),
            after=tuple(dict.fromkeys(self.after)),
            denied=tuple(path for path in inside if self._is(path, "file")),
            left_out=tuple(self._left_out),
            at_its_place=self._of_the_workspace,
        )

    def entry(self, directory: str) -> Iterator[str]:
        """Yield directories inside for `directory` of the PATH: itself, the targets of its shims, or none."""
        place = self._files.find(directory)
        if place.kind != "directory":
            return
        if not self._hidden(place.path):
            yield place.path
            return
        origin = f"{directory} is on the PATH"
        stand_in = self._stand_in(place.path)
        if stand_in is not None:
            real = list(self._led_to(stand_in, f"{origin}, and its shims lead here"))
            if not real:
                self._left_out.append(directory)
            yield from real
            # Besides its shims, this directory contains the programs that cargo installs.
            if real and self._is(f"{place.path}/rustup", "file") and self._grant(place.path, "rust", origin):
                yield place.path
            return
        if self._program_directory(place.path, origin) or self._prefix(place.path, origin):
            self._linked(place)
            yield place.path
        elif self._programs(place.path):
            yield place.path
        else:
            self._left_out.append(directory)

    def environment_of_the_workspace(self, root: str) -> None:
        """Grant the interpreter of a visible environment, and nothing else: a sandbox may have written it."""
        place = self._files.find(root)
        if place.kind == "directory" and place.path == root and self._is(f"{root}/pyvenv.cfg", "file"):
            self._of_the_workspace = True
            self._made_from(root, f"the virtual environment {root}")

    # ---------------------------------------------------------------- recognising a directory

    def _made_from(self, root: str, origin: str) -> None:
        """Grant the interpreter of a virtual environment, from its pyvenv.cfg and from its link."""
        for line in self._files.text(f"{root}/pyvenv.cfg").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "home" and value.strip().startswith("/"):
                self._interpreter(value.strip(), origin)
        for name in ("python", "python3"):
            place = self._files.find(f"{root}/bin/{name}")
            if place.kind == "file":
                self._linked(place)
                self._interpreter(os.path.dirname(place.path), origin)

    def _interpreter(self, directory: str, origin: str) -> None:
        place = self._files.find(os.path.normpath(directory))
        if place.kind != "directory" or not self._hidden(place.path):
            return
        root = os.path.dirname(place.path)
        # A file in the workspace may have led here. Accept only an interpreter with its own library, which a
        # virtual environment does not have, and grant nothing else next to it.
        libraries = [name for name in self._files.names(f"{root}/lib") if name.startswith("python3")]
        has_library = any(self._is(f"{root}/lib/{name}/os.py", "file") for name in libraries)
        is_python = has_library and any(self._is(f"{place.path}/{name}", "file") for name in libraries)
        if is_python and self._grant_parts(root, layouts.INTERPRETER, "python", f"{origin} was made from it"):
            self._linked(place)

    def _prefix(self, directory: str, origin: str) -> bool:
        """Whether this is the `bin` of a toolchain in a single directory, which is then granted."""
        root = os.path.dirname(directory)
        if os.path.basename(directory) in ("bin", "condabin", "Scripts"):
            if self._is(f"{root}/conda-meta", "directory"):
                return self._grant(root, "conda", origin)
            if self._is(f"{root}/pyvenv.cfg", "file"):
                self._made_from(root, f"the virtual environment {root}")
                return self._grant(root, "virtual environment", origin)
            if self._is(f"{root}/Cellar", "directory") and self._is(f"{directory}/brew", "file"):
                return self._grant_parts(root, layouts.HOMEBREW, "Homebrew", origin)
            for what, program, marks in layouts.PREFIXES:
                if self._there(f"{root}/{program}") and any(self._marked(root, mark) for mark in marks):
                    return self._grant(root, what, origin)
        for what, program, parts in layouts.FLAT:
            if self._is(f"{directory}/{program}", "file") and self._is(
                f"{directory}/{parts[1]}", "directory"
            ):
                return self._grant_parts(directory, parts, what, origin)
        return False

    def _grant_parts(self, root: str, parts: Iterable[str], what: str, origin: str) -> bool:
        there = [f"{root}/{name}" for name in parts if self._there(f"{root}/{name}")]
        return all(self._grant(path, what, origin) for path in there)

    def _program_directory(self, directory: str, origin: str) -> bool:
        """Grant a directory that contains only the programs of one tool. Returns whether it is one."""
        relative = directory[len(self._home) + 1 :] if covers(self._home, directory) else ""
        what = layouts.PROGRAMS.get(relative)
        return what is not None and self._grant(directory, what, origin)

    def _stand_in(self, directory: str) -> Iterator[str] | None:
        """Return the directories of the real programs if `directory` contains shims; else None."""
        root = os.path.dirname(directory)
        if os.path.basename(directory) == "shims":
            return iter((*self._of_one_language(root), *self._of_installs(root)))
        if self._is(f"{directory}/rustup", "file"):
            return self._of_rustup()
        if self._is(f"{directory}/volta-shim", "file"):
            return self._of_volta(root)
        return None

    def _led_to(self, places: Iterable[str], origin: str) -> Iterator[str]:
        for bin in places:
            place = self._files.find(bin)
            if place.kind == "directory" and (
                not self._hidden(place.path) or self._prefix(place.path, origin)
            ):
                self._linked(place)
                yield place.path

    def _of_rustup(self) -> Iterator[str]:
        root = self._env.get("RUSTUP_HOME") or f"{self._home}/.rustup"
        there = self._files.names(f"{root}/toolchains")
        chosen = self._env.get("RUSTUP_TOOLCHAIN", "")
        if not chosen and self._workspace is not None:
            texts = (self._files.text(f"{self._workspace}/rust-toolchain{end}") for end in ("", ".toml"))
            chosen = next(filter(None, map(layouts.rust_channel, texts)), "")
        chosen = chosen or layouts.rust_channel(self._files.text(f"{root}/settings.toml"))
        # The channel is a prefix of the name: stable-x86_64-unknown-linux-gnu.
        for name in there:
            if name == chosen or name.startswith(f"{chosen}-") or len(there) == 1:
                yield f"{root}/toolchains/{name}/bin"
                return

    def _of_volta(self, root: str) -> Iterator[str]:
        image = f"{root}/tools/image"
        for tool, version in layouts.volta_tools(self._files.text(f"{root}/tools/user/platform.json")):
            yield f"{image}/{tool}/{version}/bin"
        for package in self._files.names(f"{image}/packages"):
            yield f"{image}/packages/{package}/bin"

    def _of_one_language(self, root: str) -> Iterator[str]:
        """Handle pyenv, rbenv and similar managers."""
        name = os.path.basename(root).lstrip(".")
        if name not in layouts.MANAGERS:
            name = next((name for name in layouts.MANAGERS if self._there(f"{root}/libexec/{name}")), "")
        local, variable = layouts.MANAGERS.get(name, ("", ""))
        if not name or not self._is(f"{root}/versions", "directory"):
            return
        chosen = self._env.get(variable, "").replace(":", " ")
        if not chosen and self._workspace is not None:
            chosen = self._files.text(f"{self._workspace}/{local}")
        for version in (chosen or self._files.text(f"{root}/version")).split():
            if "/" not in version or ".." not in version.split("/"):
                yield f"{root}/versions/{version}/bin"

    def _of_installs(self, root: str) -> Iterator[str]:
        """Handle asdf and mise: a directory for each tool, with a directory for each version."""
        installs = f"{root}/installs"
        chosen = self._chosen() if self._is(installs, "directory") else {}
        for tool in self._files.names(installs) if chosen is not None else ():
            there = self._files.names(f"{installs}/{tool}")
            wanted = chosen.get(tool, ())
            versions = [version for version in wanted if version in there]
            if not wanted:
                versions = ["latest"] if "latest" in there else there[:1] if len(there) == 1 else []
            for version in versions:
                bin = f"{installs}/{tool}/{version}/bin"
                yield bin if self._is(bin, "directory") else f"{installs}/{tool}/{version}"

    def _chosen(self) -> dict[str, list[str]]:
        """Return the chosen versions of tools. The workspace overrides the home."""
        chosen: dict[str, list[str]] = {}
        for directory in (self._home, self._workspace):
            if directory is None:
                continue
            if directory == self._home:
                chosen.update(layouts.mise_tools(self._files.text(f"{directory}/.config/mise/config.toml")))
            chosen.update(layouts.tool_versions(self._files.text(f"{directory}/.tool-versions")))
            if directory != self._home:
                chosen.update(layouts.mise_tools(self._files.text(f"{directory}/mise.toml")))
        return chosen

    # ---------------------------------------------------------------- single programs

    def _programs(self, directory: str) -> bool:
        """Grant programs of a mixed directory that belong to a toolchain. Returns whether there are any."""
        names = self._files.names(directory)
        return len(names) <= _MOST and sum(self._program(f"{directory}/{name}", name) for name in names) > 0

    def _program(self, path: str, name: str) -> bool:
        place = self._files.find(path)
        if place.kind != "file":
            return False
        why = f"{path} points to it"
        if place.links and self._leads_to_a_toolchain(place, why):
            self._linked(place)
            return True
        if name in layouts.SINGLE and self._hidden(place.path):
            self._linked(place)
            return self._grant(place.path, name, f"{os.path.dirname(path)} is on the PATH")
        first = self._files.text(place.path).partition("\n")[0]
        interpreter = first[2:].split()[:1] if first.startswith("#!/") else []
        if interpreter and self._belongs(interpreter[0], why):
            self._linked(place)
            return self._grant(place.path, name, f"{interpreter[0]} runs it")
        return False

    def _leads_to_a_toolchain(self, place: ResolvedPath, why: str) -> bool:
        directory = os.path.dirname(place.path)
        if place.path in self._toolchains or any(covers(root, place.path) for root in self._toolchains):
            return True
        return not self._hidden(place.path) or self._prefix(directory, why)

    def _belongs(self, interpreter: str, why: str) -> bool:
        """Whether a script's interpreter belongs to a hidden toolchain, which is then granted."""
        place = self._files.find(os.path.normpath(interpreter))
        before = len(self._toolchains)
        directory = os.path.dirname(os.path.normpath(interpreter))
        at = self._files.find(directory)
        if place.kind != "file" or at.kind != "directory" or not self._hidden(at.path):
            return False
        known = any(covers(root, at.path) for root in self._toolchains)
        return known or (self._prefix(at.path, why) and len(self._toolchains) > before)

    # ---------------------------------------------------------------- grants

    def _grant(self, root: str, what: str, why: str) -> bool:
        """Grant `root` unless it contains the home or a denied path. Returns whether it is readable."""
        if covers(root, self._home) or any(covers(root, path) or covers(path, root) for path in self._denied):
            return False
        if not self._hidden(root):
            self._of_the_workspace |= self._workspace is not None and covers(self._workspace, root)
            return True  # it is visible anyway
        self._toolchains.setdefault(root, Toolchain(root, what, why))
        return True

    def _linked(self, place: ResolvedPath) -> None:
        for where, to in place.links:
            self._links.setdefault(where, to)

    def _is(self, path: str, kind: str) -> bool:
        return self._files.find(path).kind == kind

    def _there(self, path: str) -> bool:
        return self._files.find(path).kind in ("file", "directory")

    def _marked(self, root: str, mark: str) -> bool:
        """Whether `mark` exists; a star at its end matches any suffix."""
        if not mark.endswith("*"):
            return self._there(f"{root}/{mark}")
        directory, _, beginning = mark[:-1].rpartition("/")
        return any(name.startswith(beginning) for name in self._files.names(f"{root}/{directory}"))


# Continue a virtual environment of the host inside: its packages stay readable, new ones go to the home.
#
# Files of the host are read-only, so `pip install` in an activated virtual environment would fail. So the
# sandbox has its own environment, which comes first on the PATH. It has the same interpreter and scripts, and
# finds the host's packages after its own.


#: Its name in the home.
NAME = ".venv"
ORIGIN = "virtual environment"
#: Maximum length of a script in an environment.
_LONGEST = 1 << 15
#: Bytes at the start of a script that may name its interpreter, on the second line if the path is long.
_HEAD = 600
_MOST_KNOWN = 8
_known: dict[object, Parts] = {}


def is_environment(directory: str) -> bool:
    """Whether `directory`, on the PATH, is the `bin` of a virtual environment."""
    root, name = os.path.split(directory)
    return (
        name == "bin"
        and os.access(f"{root}/pyvenv.cfg", os.R_OK)
        and os.access(f"{directory}/python", os.X_OK)
    )


def continued(root: str, place: str) -> Parts:
    """Return the files and links that make `place` an environment which continues the host's `root`."""
    key = (root, place, *(_stamp(f"{root}/{name}") for name in ("pyvenv.cfg", "bin", "lib")))
    made = _known.get(key)
    if made is None:
        made = (tuple(_files(root, place)), tuple(_links(root, place)))
        while len(_known) >= _MOST_KNOWN:
            _known.pop(next(iter(_known), key), None)
        _known[key] = made
    return made


def _files(root: str, place: str) -> Iterator[File]:
    yield f"{place}/pyvenv.cfg", _content(f"{root}/pyvenv.cfg"), 0o644
    for version in _names(f"{root}/lib"):
        packages = f"{root}/lib/{version}/site-packages"
        if version.startswith("python3") and os.path.isdir(packages):
            # As a site directory, not as a path, because its packages may have .pth files.
            line = f"import site; site.addsitedir({packages!r})\n"
            yield f"{place}/lib/{version}/site-packages/_host.pth", line.encode(), 0o644
    old, new = f"{root}/bin/python".encode(), f"{place}/bin/python".encode()
    for name in _names(f"{root}/bin")[:_MOST]:
        script = _script(f"{root}/bin/{name}")
        if old in script[:_HEAD]:
            content = script[:_HEAD].replace(old, new) + script[_HEAD:]
            yield f"{place}/bin/{name}", content, 0o755


def _links(root: str, place: str) -> Iterator[Link]:
    for name in _names(f"{root}/bin"):
        if name == "python" or name.startswith("python3"):
            path = f"{root}/bin/{name}"
            if not _script(path) and os.access(path, os.X_OK):
                yield f"{place}/bin/{name}", path


def _script(path: str) -> bytes:
    """Return the content of a short script; empty for other files."""
    content = _content(path)
    return content if content.startswith(b"#!") and len(content) < _LONGEST else b""


def _content(path: str) -> bytes:
    # Never follow a link: a sandbox may have created it, to a hidden file.
    return os.fsencode(fileio.read_text(path, _LONGEST, os.O_NOFOLLOW))


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _stamp(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
