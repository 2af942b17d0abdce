"""The policy: what may be touched. It reads nothing and decides nothing about this host."""

from __future__ import annotations

from .. import check
from .._value import Value
from ..errors import PolicyError
from . import presets
from .environment import Environment, checked, checked_names, checked_preset
from .identity import Identity
from .limits import Limits
from .network import Network
from .paths import declared, declared_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, Literal, Self

    from .command_rules.rules import CommandRules
    from .paths import AnyPath

    World = Literal["root", "writable"]

_DENY = Network.deny()
_LIMITS = Limits()
_IDENTITY = Identity()
WORLDS = ("root", "writable")


class Policy(Value):
    """A policy: what may be touched. Grants add, `deny` removes and wins; the order never matters.

    Paths stay as they were written until `compile` looks at this host. `~` is the home of
    the user who starts the sandbox; relative paths are relative to where it is started.
    """

    read: tuple[str, ...]
    write: tuple[str, ...]
    deny: tuple[str, ...]
    sockets: tuple[str, ...]
    network: Network
    limits: Limits
    env: Environment
    pass_env: tuple[str, ...]
    system: bool
    unprotect: tuple[str, ...]
    preset: str
    home: str | None
    identity: Identity
    environment: str
    base: str | None
    toolchains: bool
    nested: bool
    sudo: bool
    #: Who may make directories in `/`: "root", or "writable" for everybody inside.
    world: str
    #: Not part of what is enforced: they are looked at before a command is started.
    rules: CommandRules | None
    #: Whether the values of secret variables are hidden in output; or the names of more such variables.
    redact: bool | tuple[str, ...]

    #: Where the file lies that this came from, links to it included: no write grant may
    #: cover it. Not part of the value.
    _source: tuple[str, ...] = ()

    def __init__(  # noqa: PLR0917 - in the order of the fields
        self,
        read: Iterable[AnyPath] = (),
        write: Iterable[AnyPath] = (),
        deny: Iterable[AnyPath] = (),
        sockets: Iterable[AnyPath] = (),
        network: Network = _DENY,
        limits: Limits = _LIMITS,
        env: Mapping[str, str] | None = None,
        pass_env: Iterable[str] = (),
        *,
        system: bool = True,
        unprotect: Iterable[str] = (),
        preset: str = "none",
        home: AnyPath | None = None,
        identity: Identity = _IDENTITY,
        environment: str = "linux",
        base: AnyPath | None = None,
        toolchains: bool | None = None,
        nested: bool = False,
        sudo: bool = True,
        world: World = "root",
        rules: CommandRules | None = None,
        redact: bool | Iterable[str] = True,
    ) -> None:
        """`system=False` leaves out the system directories; `unprotect` opens protected names.

        `preset` and `home` are what `agent()` and `coding_agent()` set: the rules a preset
        adds are in `presets`, and `home` is where the command finds its own, empty home.

        `identity` is who the command is inside, `environment` which variables it begins with
        ("linux", "inherit" or "empty"). `base` is a root file system, a directory or the name of an
        imported one, that is the system inside in the place of the host's own. `toolchains` says
        whether those that are on the PATH of the starting user can be used inside, wherever
        they lie (see `policy.toolchains`); by default, in the preset "agent". `nested` accepts the gaps
        that a backend documents where none leaves no gap, as in a container. `rules` tell an agent which
        commands to leave to others, before they start; they are advice, and confine nothing.
        `sudo` gives a session a `sudo` and a `su` by which commands inside become the sandbox's root.
        `world` says who may make directories in `/` in a session: the sandbox's root, or, if it is
        "writable", its user as well.
        `redact` hides the values of secret variables (`Secret`, and names and values that look like one) in
        output, events, messages and logs; a list names more such variables, False hides nothing.
        """
        if rules is not None:
            _check_rules(rules)
        if toolchains is None:
            toolchains = preset == "agent"
        check.instance("identity", identity, Identity, "use Identity(user='ada')", PolicyError)
        if home is not None and not identity.has_usual_home:
            raise PolicyError(
                f"the home is {home!r} and {identity.home!r}", why="there is one home", fix="leave one out"
            )
        check.one_of("preset", preset, presets.NAMES, PolicyError)
        if preset == "coding-agent" and home is None:
            raise PolicyError(
                "the preset coding-agent needs a home",
                fix="use Policy.coding_agent(home)",
                why="the agent's configuration is in it",
            )
        super().__init__(
            read=declared_all(read, "read"),
            write=declared_all(write, "write"),
            deny=declared_all(deny, "deny"),
            sockets=declared_all(sockets, "sockets"),
            network=check.instance("network", network, Network, "use Network.open()", PolicyError),
            limits=check.instance("limits", limits, Limits, "use Limits(timeout=60)", PolicyError),
            env=checked({} if env is None else env),
            pass_env=checked_names(pass_env),
            system=check.flag("system", system, PolicyError),
            unprotect=_names(unprotect),
            preset=preset,
            home=None if home is None else _home(home),
            identity=identity,
            environment=checked_preset(environment),
            base=None if base is None else _base(base, system),
            toolchains=check.flag("toolchains", toolchains, PolicyError),
            nested=check.flag("nested", nested, PolicyError),
            sudo=check.flag("sudo", sudo, PolicyError),
            world=check.one_of("world", world, WORLDS, PolicyError),
            rules=rules,
            redact=redact if isinstance(redact, bool) else checked_names(redact, "redact"),
        )

    @classmethod
    def agent(cls, *, toolchains: bool = True, nested: bool = False) -> Policy:
        """The default: system directories readable, home and secrets hidden, network denied.

        Toolchains on the PATH (pyenv, uv, nvm, rustup, conda, ...) can be used although they lie in the
        home, unless `toolchains` is False. With `nested`, `auto` may take a backend with the gaps that it
        documents: for containers, where none leaves no gap. `Sandbox.enforced` has every one.
        """
        return cls(preset="agent", toolchains=toolchains, nested=nested)

    @classmethod
    def coding_agent(cls, home: AnyPath) -> Policy:
        """For running a coding agent itself: `home` is fresh, but its configuration is there.

        Of the real home, the agent's own configuration can be written and its tools can be
        read and run, as far as they exist.
        """
        return cls(preset="coding-agent", home=home)

    @classmethod
    def from_file(cls, path: AnyPath, *, workspace: AnyPath | None = None) -> Policy:
        """The policy in a TOML file. It may not lie where a sandbox could have changed it."""
        from .file import load

        return load(cls, path, workspace)

    def with_read(self, *paths: AnyPath) -> Policy:
        """The same, and `paths` may be read."""
        return self.replace(read=(*self.read, *paths))

    def with_write(self, *paths: AnyPath) -> Policy:
        """The same, and `paths` may be read and written."""
        return self.replace(write=(*self.write, *paths))

    def with_deny(self, *paths: AnyPath) -> Policy:
        """The same, and `paths` cannot be read, listed or changed inside, even below a grant."""
        return self.replace(deny=(*self.deny, *paths))

    def with_sockets(self, *paths: AnyPath) -> Policy:
        """The same, and these UNIX sockets may be connected to."""
        return self.replace(sockets=(*self.sockets, *paths))

    def with_network(self, network: Network) -> Policy:
        """The same with this network."""
        return self.replace(network=network)

    def with_limits(self, **limits: Any) -> Policy:
        """The same with these limits changed."""
        return self.replace(limits=self.limits.replace(**limits))

    def with_env(self, **variables: str) -> Policy:
        """The same, and these variables are set inside."""
        return self.replace(env={**self.env, **variables})

    def with_pass_env(self, *names: str) -> Policy:
        """The same, and these variables of the host are passed on."""
        return self.replace(pass_env=(*self.pass_env, *names))

    def with_unprotect(self, *names: str) -> Policy:
        """The same, and these protected names can be changed below what may be written."""
        return self.replace(unprotect=(*self.unprotect, *names))

    def with_identity(self, identity: Identity) -> Policy:
        """The same with another identity inside."""
        return self.replace(identity=identity)

    def with_environment(self, preset: str) -> Policy:
        """The same, beginning with these variables: "linux", "inherit" or "empty"."""
        return self.replace(environment=preset)

    def with_base(self, base: AnyPath | None) -> Policy:
        """The same with another system inside: a root file system, or None for the host's own."""
        return self.replace(base=base)

    def with_rules(self, rules: CommandRules | None) -> Policy:
        """The same with these command rules, or without any."""
        return self.replace(rules=rules)

    def with_redact(self, redact: bool | Iterable[str]) -> Policy:
        """The same; secret values are hidden in output, not hidden, or those of these variables as well."""
        return self.replace(redact=redact)

    @property
    def secret_names(self) -> tuple[str, ...]:
        """The variables that are secrets because the policy names them."""
        return self.redact if isinstance(self.redact, tuple) else ()

    def replace(self, **changes: Any) -> Self:
        """The same policy with some fields changed, validated anew."""
        made = super().replace(**changes)
        made._set("_source", self._source)
        return made


def _check_rules(rules: object) -> None:
    from .command_rules.rules import CommandRules  # few have any

    if not isinstance(rules, CommandRules):
        raise PolicyError(
            f"rules is {rules!r}", why="it is not a CommandRules", fix='use CommandRules(deny=["git push"])'
        )


def _home(home: AnyPath) -> str:
    path = declared(home, "home")
    if ":" in path or "\n" in path:
        raise PolicyError(
            f"home is {path!r}",
            why="/etc/passwd cannot contain ':' or a line end in a path",
            fix="choose another directory",
        )
    return path


def _base(base: AnyPath, system: bool) -> str:
    if not system:
        raise PolicyError(
            f"base is {base!r} and system is False", why="a base is a system", fix="leave one of them out"
        )
    path = declared(base, "base")
    # A bare name may be that of an imported one; "./name" and a pathlib path never are.
    bare = "/" not in path and path[0] not in ".~"
    written = isinstance(base, str) and not base.startswith("./")
    return path if written or not bare else f"./{path}"


def _names(names: object) -> tuple[str, ...]:
    if isinstance(names, tuple) and not names:
        return ()
    from .protected import checked_names as known

    return known(names)
