"""The policy: what a command may access. It reads nothing and decides nothing about this host."""

from __future__ import annotations

from .. import check
from .._value import Value
from ..errors import PolicyError
from ..paths import covers, declared, declared_all
from . import presets
from .environment import Environment, checked, checked_names, checked_preset
from .identity import Identity
from .limits import Limits
from .network import Network

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Literal, Self

    from ..command_rules.rules import CommandRules
    from ..paths import AnyPath
    from .egress_secret import EgressSecret
    from .http_rules import HttpRule

    World = Literal["root", "writable"]

_DENY = Network.deny()
_LIMITS = Limits()
_IDENTITY = Identity()
WORLDS = ("root", "writable")
#: Directories and files of /dev that each sandbox makes for itself.
_OWN_IN_DEV = tuple(f"/dev/{name}" for name in ("pts", "shm", "mqueue", "fd", "console", "ptmx", ".staddle"))


class Policy(Value):
    """A policy: what a command may access. Grants add, `deny` removes and wins; the order never matters.

    Paths stay as written until `compile` resolves them on this host. `~` is the home of the user who starts
    the sandbox; relative paths are relative to the directory in which it is started.
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
    #: Users inside who may create directories in `/`: "root", or "writable" for all.
    world: str
    #: Not enforced by the kernel: staddle checks commands before they start.
    rules: CommandRules | None
    #: Whether output hides the values of secret variables; or the names of more such variables.
    redact: bool | tuple[str, ...]
    #: Requested GPUs: "all", or names as in "nvidia:0". Never set by a preset.
    gpu: tuple[str, ...]
    #: Character devices in /dev, each by its path.
    devices: tuple[str, ...]
    #: Secrets that stay outside; see `with_egress_secret`.
    secrets: tuple[EgressSecret, ...]
    #: Whether pip, npm and apt get packages through a mirror on the host; see `with_package_cache`.
    package_cache: bool

    #: Path of the file that the policy came from, with all links to it. No write grant may cover it. Not part
    #: of the value.
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
        gpu: Iterable[str] = (),
        devices: Iterable[AnyPath] = (),
        secrets: Iterable[EgressSecret] = (),
        package_cache: bool = False,
    ) -> None:
        """`system=False` leaves out the system directories; `unprotect` makes protected names writable.

        `agent()` and `coding_agent()` set `preset` and `home`: `presets` has the rules of each preset, and
        `home` is the path of the command's own, empty home.

        `identity` is the user inside. `environment` selects the initial variables ("linux", "inherit" or
        "empty"). `base` is a root file system (a directory, or the name of an imported one) that replaces the
        host's own system. `toolchains` makes toolchains on the starting user's PATH usable inside, wherever
        they are stored (see `hostinfo.toolchains`; default: only in the preset "agent"). `nested` accepts the
        documented gaps of a backend if every backend has gaps, as in a container. `rules` tell an agent,
        before a command starts, that it should not run it; they are advice, and confine nothing. `sudo` gives
        a session the programs `sudo` and `su`, with which commands inside become the sandbox's root. `world`
        decides who may create directories in `/` in a session: only the sandbox's root, or also its user
        ("writable"). `redact` hides the values of secret variables (`Secret`, and names and values that look
        like secrets) in output, events, messages and logs. A list names more such variables; False hides
        nothing. `gpu` and `devices` grant devices of the host; see `with_gpu` and `with_devices`. Of
        `secrets` the sandbox sees only placeholders; see `with_egress_secret`. `package_cache` lets pip,
        npm and apt install through the host's package cache; see `with_package_cache`.
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
            gpu=_gpus(gpu),
            devices=tuple(sorted({_device(path) for path in check.several(devices, "devices")})),
            secrets=_secrets(secrets),
            package_cache=check.flag("package_cache", package_cache, PolicyError),
        )

    @classmethod
    def agent(cls, *, toolchains: bool = True, nested: bool = False) -> Policy:
        """The default: system directories readable, home and secrets hidden, network denied.

        Toolchains on the PATH (pyenv, uv, nvm, rustup, conda, ...) can be used even if they are in the home,
        unless `toolchains` is False. With `nested`, `auto` may choose a backend with documented gaps. This is
        for containers, where every backend has gaps. `Sandbox.enforced` lists them.
        """
        return cls(preset="agent", toolchains=toolchains, nested=nested)

    @classmethod
    def coding_agent(cls, home: AnyPath) -> Policy:
        """For running a coding agent itself: `home` is new, but contains the agent's configuration.

        The agent can write its own configuration in the real home, and read and run its tools there, if they
        exist.
        """
        return cls(preset="coding-agent", home=home)

    @classmethod
    def from_file(cls, path: AnyPath, *, workspace: AnyPath | None = None) -> Policy:
        """Load the policy from a TOML file. The file must not be where a sandbox could have changed it."""
        from .file import load

        return load(cls, path, workspace)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, workspace: AnyPath | None = None) -> Policy:
        """Make the policy from the keys of a policy file, as data: for policies that programs send."""
        from .file import from_data

        return from_data(cls, data, workspace)

    def with_read(self, *paths: AnyPath) -> Policy:
        """Return a copy in which `paths` may be read."""
        return self.replace(read=(*self.read, *paths))

    def with_write(self, *paths: AnyPath) -> Policy:
        """Return a copy in which `paths` may be read and written."""
        return self.replace(write=(*self.write, *paths))

    def with_deny(self, *paths: AnyPath) -> Policy:
        """Return a copy in which `paths` cannot be read, listed or changed inside, even below a grant."""
        return self.replace(deny=(*self.deny, *paths))

    def with_sockets(self, *paths: AnyPath) -> Policy:
        """Return a copy in which these UNIX sockets may be connected to."""
        return self.replace(sockets=(*self.sockets, *paths))

    def with_network(self, network: Network) -> Policy:
        """Return a copy with this network."""
        return self.replace(network=network)

    def with_limits(self, **limits: Any) -> Policy:
        """Return a copy with these limits changed."""
        return self.replace(limits=self.limits.replace(**limits))

    def with_env(self, **variables: str) -> Policy:
        """Return a copy that sets these variables inside."""
        return self.replace(env={**self.env, **variables})

    def with_pass_env(self, *names: str) -> Policy:
        """Return a copy that passes these variables of the host."""
        return self.replace(pass_env=(*self.pass_env, *names))

    def with_unprotect(self, *names: str) -> Policy:
        """Return a copy in which these protected names can be changed below write grants."""
        return self.replace(unprotect=(*self.unprotect, *names))

    def with_identity(self, identity: Identity) -> Policy:
        """Return a copy with another identity inside."""
        return self.replace(identity=identity)

    def with_environment(self, preset: str) -> Policy:
        """Return a copy with these initial variables: "linux", "inherit" or "empty"."""
        return self.replace(environment=preset)

    def with_base(self, base: AnyPath | None) -> Policy:
        """Return a copy with another system inside: a root file system, or None for the host's own."""
        return self.replace(base=base)

    def with_rules(self, rules: CommandRules | None) -> Policy:
        """Return a copy with these command rules, or with None."""
        return self.replace(rules=rules)

    def with_redact(self, redact: bool | Iterable[str]) -> Policy:
        """Return a copy that hides secrets in output (True), shows them (False), or hides more variables."""
        return self.replace(redact=redact)

    def with_gpu(self, *names: str) -> Policy:
        """Return a copy in which these GPUs may be used: "nvidia:0", "amd:1", "0" or "all".

        The command can then call the driver of the GPU, which is a part of the host's kernel. staddle cannot
        limit the memory of a GPU. A part of a divided GPU (MIG) is "nvidia:GPU:INSTANCE:COMPUTE".
        """
        return self.replace(gpu=(*self.gpu, *names))

    def with_devices(self, *paths: AnyPath) -> Policy:
        """Return a copy in which these character devices of the host may be used, each by its path in /dev.

        A block device, memory, a terminal, an input device or a device that controls the host is refused.
        """
        return self.replace(devices=(*self.devices, *paths))

    def with_http(self, *rules: HttpRule | str) -> Policy:
        """Return a copy with more rules about HTTP requests: `"GET api.github.com/repos/**"`.

        A rule with a host also allows the host. See `Network.allow`.
        """
        return self.replace(network=self.network.with_http(*rules))

    def with_egress_secret(
        self,
        name: str,
        source: str | Callable[[], str],
        hosts: Iterable[str],
        *,
        header: str = "",
        query: str = "",
        basic: str = "",
        placeholder: str = "",
    ) -> Policy:
        """Return a copy with a secret that stays outside: inside, the variable `name` has a placeholder.

        The value replaces it in requests to `hosts`, in the place that `header`, `query` or `basic` names.
        The network must be an allow list with these hosts. See `EgressSecret`.
        """
        from .egress_secret import EgressSecret

        made = EgressSecret(name, source, tuple(hosts), header, query, basic, placeholder)
        return self.replace(secrets=(*self.secrets, made))

    def with_package_cache(self, use: bool = True) -> Policy:
        """Return a copy in which pip, npm and apt install from the host's indexes, through a cache there.

        This grants the sandbox these packages, even if its network is denied. Every downloaded file is
        compared with the hash that the index names, and kept for other sandboxes.
        """
        return self.replace(package_cache=use)

    @property
    def secret_names(self) -> tuple[str, ...]:
        """The variables that are secrets because the policy names them."""
        return self.redact if isinstance(self.redact, tuple) else ()

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, validated again."""
        made = super().replace(**changes)
        made._set("_source", self._source)
        return made


def _check_rules(rules: object) -> None:
    from ..command_rules.rules import CommandRules  # rarely needed

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


def _gpus(names: object) -> tuple[str, ...]:
    if isinstance(names, tuple) and not names:
        return ()
    from ..hostinfo.devices import checked_gpus  # rarely needed

    return checked_gpus(check.several(names, "gpu"))


def _device(path: object) -> str:
    text = declared(path, "devices")
    if any(letter in text for letter in "*?["):
        raise PolicyError(f"devices names {path!r}", why="each device has to be named", fix="write its path")
    inside = next((place for place in _OWN_IN_DEV if covers(place, text)), None)
    if not text.startswith("/dev/") or inside is not None:
        why = f"every sandbox has its own {inside}" if inside else "it is not the path of a device in /dev"
        raise PolicyError(f"devices names {path!r}", why=why, fix='write a path as in "/dev/kvm"')
    return text


def _base(base: AnyPath, system: bool) -> str:
    if not system:
        raise PolicyError(
            f"base is {base!r} and system is False", why="a base is a system", fix="leave one of them out"
        )
    path = declared(base, "base")
    # A bare name may be the name of an imported base; "./name" and a pathlib path never are.
    bare = "/" not in path and path[0] not in ".~"
    written = isinstance(base, str) and not base.startswith("./")
    return path if written or not bare else f"./{path}"


def _secrets(secrets: object) -> tuple[EgressSecret, ...]:
    if isinstance(secrets, tuple) and not secrets:
        return ()
    from .egress_secret import checked_secrets  # rarely needed

    return checked_secrets(secrets)


def _names(names: object) -> tuple[str, ...]:
    if isinstance(names, tuple) and not names:
        return ()
    from ..hostinfo.protected import checked_names as known

    return known(names)
