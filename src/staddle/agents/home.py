"""The home of a coding agent that runs in a sandbox: its settings, its memory, its logins.

Its settings are those of the user, read-only. Conversations are written to the user's directory of the
project, or copied there. Files with a login or other state are copied in; members that the agent has changed
are written back, others are not. So what the agent obeys outside stays as it was. Everything else that it
writes to its home stays in the sandbox.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess

from ..errors import StaddleError
from ..files.tree import Tree, directories
from ..policy import Policy
from ..policy.presets import AGENT_CONFIG, DOORS, SECRETS
from .keys import KeyCopies
from .repository import setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from ..jail.agents import Agent, StateFile
    from ..sandbox.sandbox import Sandbox

#: Larger files from inside are not read, nor more conversations.
_LARGEST, _LARGEST_SESSION, _MOST_SESSIONS = 32 << 20, 64 << 20, 500
#: Conversations that are shown inside, and the bytes of each that name its project.
_MOST_SHOWN, _HEAD = 20, 2048
#: A path from inside, below the home, that is copied.
_PLAIN = re.compile(r"(?!.*/\.\.?/)[A-Za-z0-9.][A-Za-z0-9._/-]{1,300}")
#: Variables that tell a program about the terminal, the language and the time zone.
_SURROUNDINGS = (
    *("TERM", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "LANG", "LC_ALL", "LC_CTYPE", "TZ"),
    *("NO_COLOR", "FORCE_COLOR"),
)
#: Variables with the path of a file of certificates.
_CERTIFICATES = ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
#: The user's git settings that an agent works with. Others name programs, files, hosts or keys.
_GIT = {
    "user": ("name", "email"),
    "init": ("defaultbranch",),
    "core": ("autocrlf", "eol", "quotepath", "abbrev", "ignorecase"),
    "push": ("default", "autosetupremote"),
    "merge": ("conflictstyle", "ff"),
    "diff": ("algorithm", "colormoved", "renames", "context", "mnemonicprefix"),
    "fetch": ("prune",),
    "rerere": ("enabled",),
    "commit": ("verbose", "cleanup"),
}
#: Sections in which every setting is harmless.
_GIT_SECTIONS = ("pull", "rebase", "color", "log", "status", "column", "branch", "tag")
#: Settings that sign commits with a key of the ssh-agent.
_SIGNING = ("commit.gpgsign", "tag.gpgsign", "gpg.format", "user.signingkey")
#: The user's known hosts, in the agent's home.
KNOWN_HOSTS = ".known_hosts"
#: Files that git settings name, and their place in the agent's home.
_GIT_FILES = {"core.excludesfile": ".config/git/ignore", "core.attributesfile": ".config/git/attributes"}


def own_certificates() -> list[str]:
    """Return the user's variables that name a file of certificates."""
    return [name for name in _CERTIFICATES if os.path.isfile(os.environ.get(name, ""))]


class AgentHome:
    """The home of one agent that works on one project."""

    def __init__(self, agent: Agent, project: str) -> None:
        self.agent, self.project = agent, project
        #: The names of keys that stay outside.
        self.outside: tuple[str, ...] = ()
        self._keys = KeyCopies({}, {})
        self.home = os.path.realpath(os.path.expanduser("~"))
        self._given: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, bytes] = {}
        self._links: set[tuple[str, int]] = set()
        self._git: subprocess.Popen[bytes] | None = None

    def policy(self) -> Policy:
        """The policy for it: its settings readable, its memory writable, other agents' and secrets denied."""
        agent = self.agent
        mine = (*agent.write, *agent.read)
        denied = [path for path in (*SECRETS, *DOORS, *AGENT_CONFIG) if path not in mine]
        policy = Policy(preset="none", home=self.home, toolchains=True, deny=_there(denied))
        if place := self._memory():
            os.makedirs(place, 0o700, exist_ok=True)
            self._links = self._links_in_memory()
            policy = policy.with_write(place)
        policy = policy.with_read(*_there((*agent.obeyed, *agent.read)))
        # The inspector that puts keys in has its own bundle inside, with the authorities of SSL_CERT_FILE.
        certificates = [] if self.outside else own_certificates()
        policy = policy.with_read(*(os.environ[name] for name in certificates))
        passed = (*_SURROUNDINGS, *certificates, *(set(agent.logins) - {*self.outside}))
        return policy.with_pass_env(*(name for name in passed if name in os.environ)).with_env(
            **dict(agent.set)
        )

    def _memory(self) -> str:
        slug = re.sub("[^a-zA-Z0-9]", "-", self.project)
        return os.path.expanduser(self.agent.memory.replace("{slug}", slug))

    def _links_in_memory(self, known: Collection[tuple[str, int]] | None = None) -> set[tuple[str, int]]:
        """Path and inode of what is neither file nor directory in the agent's memory.

        With `known`, others are removed: the user's own agent would follow a link that was made inside, with
        the user's rights. Names are removed by descriptor, because the agent can exchange directories.
        """
        found: set[tuple[str, int]] = set()
        if place := self._memory():
            with Tree(place, ours=False) as tree:
                for _, directory, entries in directories(tree):
                    for path, status in entries:
                        if stat.S_IFMT(status.st_mode) in (stat.S_IFDIR, stat.S_IFREG):
                            continue
                        if known is None or (path, status.st_ino) in known:
                            found.add((path, status.st_ino))
                        else:
                            os.unlink(os.path.basename(path), dir_fd=directory)
        return found

    # ------------------------------------------------------------ files

    def begin(self) -> None:
        """Ask git for the user's settings, which `enter` needs, while the sandbox opens."""
        asked = ["git", "config", "--global", "--includes", "--list", "--null"]
        try:
            self._git = subprocess.Popen(
                asked, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/"
            )
        except OSError:
            pass  # there is no git

    def enter(self, sandbox: Sandbox, *, signing: bool = False) -> None:
        """Write the files of the home into the sandbox; with `signing` those for the user's ssh-agent."""
        placeholders = sandbox.plan.environment()
        self._keys = KeyCopies({name: os.environ[name] for name in self.outside}, placeholders)
        for state in self.agent.files:
            held = self._keys.replaced(self._copy(state, _read(os.path.expanduser(state.path)) or {}))
            if held:
                text = json.dumps(held, indent=2).encode()
                self._given[state.path], self._seen[state.path] = held, text
                self._write(sandbox, state.path.removeprefix("~/"), text, 0o600)
        for below in self._sessions():
            if not sandbox.files.exists(f"{self.home}/{below}"):
                with open(f"{self.home}/{below}", "rb") as file:
                    self._write(sandbox, below, file.read(_LARGEST_SESSION), 0o600)
        told = b"" if self._git is None else self._git.communicate()[0]
        for name, text in git_files(told, self.home, signing=signing).items():
            self._write(sandbox, name, text)
        known = f"{self.home}/.ssh/known_hosts"
        if signing and os.path.isfile(known):
            with open(known, "rb") as file:
                self._write(sandbox, KNOWN_HOSTS, file.read(_LARGEST))

    def _sessions(self) -> list[str]:
        """The newest conversations about this project, as paths below the home. Each begins with its name."""
        if not self.agent.sessions:
            return []
        import glob
        import hashlib

        said = {json.dumps(self.project), json.dumps(self.project, ensure_ascii=False)}
        known = {*said, hashlib.sha256(os.fsencode(self.project)).hexdigest()}
        found: list[tuple[float, str]] = []
        for pattern in self.agent.sessions:
            for path in glob.glob(f"{glob.escape(self.home)}/{pattern[2:]}", recursive=True):
                with open(path, "rb") as file:
                    first, status = file.read(_HEAD), os.fstat(file.fileno())
                if status.st_size <= _LARGEST_SESSION and any(os.fsencode(mark) in first for mark in known):
                    found.append((status.st_mtime, path.removeprefix(f"{self.home}/")))
        return [below for _, below in sorted(found)[-_MOST_SHOWN:]]

    def _write(self, sandbox: Sandbox, name: str, text: bytes, mode: int = 0o644) -> None:
        sandbox.files.write(f"{self.home}/{name}", text, parents=True, mode=mode)

    def _copy(self, state: StateFile, held: dict[str, Any]) -> dict[str, Any]:
        """The user's file for the agent: with the entry of this project, without those of others."""
        made = {**held, **dict(state.inside)}
        if state.of_project or state.project_inside:
            entry = _member(_member(held, "projects"), self.project)
            made["projects"] = {self.project: {**entry, **dict(state.project_inside)}}
        return made

    def bring_back(self, sandbox: Sandbox) -> list[str]:
        """Write what the agent has changed in its state to the user's files. Returns the changed files.

        The files come from inside, so only the members of the agent's row are taken.
        """
        self._links_in_memory(self._links)
        changed = []
        for state in self.agent.files:
            try:
                text = sandbox.files.read_bytes(f"{self.home}/{state.path[2:]}", limit=_LARGEST)
            except (StaddleError, OSError):
                continue  # it does not exist, or is too large
            if text != self._seen.get(state.path):
                self._seen[state.path] = text
                if self._take(state, _parsed(text) or {}):
                    changed.append(state.path)
        return changed

    def bring_sessions(self, sandbox: Sandbox) -> None:
        """Copy the agent's conversations to the user's home. A file there can only be continued."""
        for pattern in self.agent.sessions:
            for path in sandbox.files.glob(f"{self.home}/{pattern[2:]}")[:_MOST_SESSIONS]:
                below = path.removeprefix(f"{self.home}/")
                if not _PLAIN.fullmatch(below):
                    continue
                try:
                    if sandbox.files.stat(path, follow_symlinks=False).kind != "file":
                        continue
                    text = sandbox.files.read_bytes(path, limit=_LARGEST_SESSION)
                    with open(f"{self.home}/{below}", "rb") as file:
                        before = file.read(_LARGEST_SESSION + 1)
                except FileNotFoundError:
                    before = b""
                except (StaddleError, OSError):
                    continue
                if text != before and text.startswith(before):
                    _replace(f"{self.home}/{below}", text)

    def _take(self, state: StateFile, found: dict[str, Any]) -> bool:
        place = os.path.realpath(os.path.expanduser(state.path))
        held, given = _read(place), self._given.get(state.path, {})
        if held is None:
            return False
        made = {**held, **self._keys.restored(_changed(given, found, state.members))}
        if state.of_project:
            before, entry = (_member(_member(each, "projects"), self.project) for each in (given, found))
            if news := _changed(before, entry, state.of_project):
                projects = {**_member(held, "projects")}
                projects[self.project] = {**_member(projects, self.project), **self._keys.restored(news)}
                made["projects"] = projects
        self._given[state.path] = found
        if made == held:
            return False
        _replace(place, json.dumps(made, indent=2).encode())
        return True


def _changed(before: dict[str, Any], after: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: after[name] for name in names if name in after and after[name] != before.get(name)}


def _member(data: dict[str, Any], name: str) -> dict[str, Any]:
    found = data.get(name)
    return found if isinstance(found, dict) else {}


def _there(paths: tuple[str, ...] | list[str]) -> list[str]:
    return [path for path in paths if os.path.lexists(os.path.expanduser(path))]


def _read(place: str) -> dict[str, Any] | None:
    """The content of a JSON file of the user: empty if there is none, None if we cannot read it."""
    try:
        with open(place, "rb") as file:
            return _parsed(file.read(_LARGEST))
    except FileNotFoundError:
        return {}
    except OSError:
        return None


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _replace(place: str, text: bytes) -> None:
    """Replace a file of the user's home atomically, readable by its owner only."""
    import tempfile

    os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=os.path.dirname(place), prefix=f".{os.path.basename(place)}.")
    try:
        with open(descriptor, "wb") as file:
            file.write(text)
        os.replace(name, place)
    except BaseException:
        os.unlink(name)
        raise


def git_files(told: bytes, home: str, *, signing: bool = False) -> dict[str, bytes]:
    """The user's git identity, aliases and the like, as files of a home, from what `git config` has told.

    With `signing`, commits are signed if the user signs them with a key of the ssh-agent.
    """
    lines, files = [], {}
    rows = [row.partition("\n")[::2] for row in told.decode("utf-8", "surrogateescape").split("\0")]
    signing = signing and ("gpg.format", "ssh") in rows
    for key, value in rows:
        if key in _GIT_FILES:
            place = os.path.join(home, os.path.expanduser(value))
            if os.path.isfile(place):
                with open(place, "rb") as file:
                    files[_GIT_FILES[key]] = file.read(_LARGEST)
        elif _is_harmless(key) or (signing and key in _SIGNING):
            section, _, rest = key.partition(".")
            part, _, name = rest.rpartition(".")
            lines.append(setting(section, part, name, _public(value) if key == _SIGNING[-1] else value))
    if lines:
        files[".gitconfig"] = "".join(lines).encode("utf-8", "surrogateescape")
    return files


def _is_harmless(key: str) -> bool:
    section, _, name = key.partition(".")
    if section in _GIT_SECTIONS:
        return bool(name) and "." not in name
    return bool(name) if section == "alias" else name in _GIT.get(section, ())


def _public(value: str) -> str:
    """The public key itself instead of its file, which is not in the sandbox."""
    place = os.path.expanduser(value)
    for path in (place, f"{place}.pub"):
        if path.endswith(".pub") and os.path.isfile(path):
            with open(path) as file:
                return f"key::{file.read(_LARGEST).strip()}"
    return value
