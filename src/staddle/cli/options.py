"""Command-line options as data: one table for the parser, the help and the docs.

Parsing stops at `--` or at the first word that is not an option. The rest is never parsed, because a wrapped
command's options are not ours. Options cannot be abbreviated, because an abbreviation that is unique today
may be ambiguous tomorrow.

The options of all commands that run something follow, and the policy that they describe.
"""

from __future__ import annotations

import os
import sys

from .._value import Value
from ..errors import PolicyError, UsageError
from ..policy import Identity, Network, Policy
from ..policy.installation import default_policy
from ..policy.limits import DEFAULT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any


class Option(Value):
    """One option. `value` names its argument (empty: a switch); `many` may be repeated.

    A `hidden` option is for our own processes, and not in the help.
    """

    name: str
    value: str = ""
    help: str = ""
    many: bool = False
    short: str = ""
    hidden: bool = False


class Parsed(Value):
    """A parsed command line: options by name, the words after them, and whether `--` came before these.

    `ahead` of them came before `--`, if options may follow words.
    """

    options: dict[str, list[str]]
    words: tuple[str, ...]
    dashed: bool
    ahead: int = 0

    def on(self, name: str) -> bool:
        """Whether the option was given."""
        return name in self.options

    def one(self, name: str) -> str | None:
        """Return the value of an option that can be given once."""
        return self.options[name][0] if name in self.options else None

    def many(self, name: str) -> list[str]:
        """Return all values of an option that may be repeated."""
        return self.options.get(name, [])


def parse(words: Sequence[str], table: Iterable[Option], command: str) -> Parsed:
    """Parse the options at the start of `words`."""
    known = {f"--{option.name}": option for option in table}
    known.update({f"-{option.short}": option for option in table if option.short})
    found: dict[str, list[str]] = {}
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return Parsed(found, tuple(words[at + 1 :]), True)
        if not word.startswith("-") or word == "-":
            break
        name, equals, value = word.partition("=")
        option = known.get(name)
        if option is None:
            raise UsageError(
                f"staddle {command} has no option {name}",
                fix=_nearest(name, known) or f"see `staddle {command} --help`",
            )
        at += 1
        if not option.value:
            if equals:
                raise UsageError(f"{name} takes no value", fix=f"write {name} alone")
        elif not equals:
            if at == len(words):
                raise UsageError(f"{name} needs a value", fix=f"write {name} {option.value}")
            value = words[at]
            at += 1
        if option.name in found and not option.many:
            raise UsageError(
                f"--{option.name} is given twice", why="only one value can apply", fix="leave one of them out"
            )
        found.setdefault(option.name, []).append(value)
    return Parsed(found, tuple(words[at:]), False)


def parse_among(words: Sequence[str], table: Sequence[Option], command: str) -> Parsed:
    """Parse options anywhere before `--`, for commands that do not wrap another command."""
    found: dict[str, list[str]] = {}
    others: list[str] = []
    many = {option.name for option in table if option.many}
    rest: Sequence[str] = words
    while True:
        part = parse(rest, table, command)
        for name, values in part.options.items():
            if name in found and name not in many:
                raise UsageError(
                    f"--{name} is given twice", why="only one value can apply", fix="leave one of them out"
                )
            found.setdefault(name, []).extend(values)
        if part.dashed or not part.words:
            return Parsed(found, (*others, *part.words), part.dashed, len(others))
        others.append(part.words[0])
        rest = part.words[1:]


def _nearest(name: str, known: Iterable[str]) -> str:
    import difflib

    names = [each for each in known if each.startswith("--")]
    # An abbreviation has letters of the name in their order: --cmd, --mem, --net.
    short = [each for each in names if each[:3] == name[:3] and _is_subsequence(name, each)]
    close = short or difflib.get_close_matches(name, names, 1)
    return f"did you mean {close[0]}?" if close else ""


def _is_subsequence(letters: str, text: str) -> bool:
    rest = iter(text)
    return all(letter in rest for letter in letters)


def help_rows(table: Iterable[Option]) -> str:
    """Format the options for --help, one per line."""
    rows = []
    for option in table:
        if option.hidden:
            continue
        spelled = f"--{option.name}" + (f" {option.value}" if option.value else "")
        rows.append((f"-{option.short}, {spelled}" if option.short else f"    {spelled}", option.help))
    width = max(len(left) for left, _ in rows)
    return "\n".join(f"  {left:<{width}}  {help}" for left, help in rows)


HELP = Option("help", "", "show this help", short="h")

#: Of run and shell.
KEEP = Option("keep", "NAME", "let the workspace be changed in a layer of its own, and keep that under NAME")

#: Shared by all commands that run something: run, explain, shell, jail, mcp and others.
RUNNING = (
    Option("policy", "FILE", "start from this policy file instead of the agent preset"),
    Option("read", "PATH", "let PATH be read (repeatable)", many=True),
    Option("write", "PATH", "let PATH be read and written (repeatable)", many=True),
    Option("deny", "PATH", "hide PATH, whatever else is granted (repeatable)", many=True),
    Option("socket", "PATH", "let the UNIX socket PATH be connected to (repeatable)", many=True),
    Option("gpu", "GPU", "let this GPU be used: 0, nvidia:0 or all (repeatable)", many=True),
    Option("device", "PATH", "let the character device PATH in /dev be used (repeatable)", many=True),
    Option("network", "MODE", "deny (default), open, loopback, loopback=PORT,..., allow or packages"),
    Option("allow", "HOST[:PORT]", "allow this host; implies --network allow (repeatable)", many=True),
    Option(
        "dns", "ADDRESS", "ask this nameserver for allowed hosts, not this host's (repeatable)", many=True
    ),
    Option(
        "request", "RULE", "allow only such requests to this host: 'GET HOST/PATH/**' (repeatable)", many=True
    ),
    Option(
        "request-limit",
        "LIMIT",
        "bound the requests to a host: 'HOST requests=1000 bytes=1G rate=60', rate a minute (repeatable)",
        many=True,
    ),
    Option(
        "secret",
        "NAME=SOURCE@HOST",
        "keep a secret outside, put it into requests to HOST; as NAME=env:TOKEN@api.example.com (repeatable)",
        many=True,
    ),
    Option(
        "package-cache", "", "let pip, npm, apt install from this host's indexes, through a cache on the host"
    ),
    Option("backend", "NAME", "auto (default), namespaces, bwrap, systemd, landlock, seatbelt or native"),
    Option("timeout", "SECONDS", "kill it after this time: 90, 2m, none (default: the policy's, 120)"),
    Option("memory", "SIZE", "limit memory, as in 512M, or none (default: half of what is available)"),
    Option("cpu", "CORES", "limit CPU time to this many cores, as in 1.5"),
    Option("processes", "N", "limit the number of processes, or none (default: 4096)"),
    Option("file-size", "SIZE", "limit the size of each file that is written, as in 100M"),
    Option("open-files", "N", "limit the number of files that each process has open"),
    Option("disk", "SIZE", "limit what the sandbox writes to its own layer, as in 2G, or none"),
    Option("output-cap", "SIZE", "pass on at most SIZE of each output stream; print how much was dropped"),
    Option("env", "NAME=VALUE", "set a variable inside (repeatable)", many=True),
    Option("pass-env", "NAME", "pass this variable from your environment (repeatable)", many=True),
    Option("audit", "FILE", "append every command and its result to this audit log (`staddle audit`)"),
    Option("no-redact", "", "show the values of secret variables in what is printed"),
    Option("environment", "PRESET", "start with: linux (default), inherit (yours, without secrets), empty"),
    Option(
        "identity",
        "KEY=VALUE",
        "set the user inside: user=, uid=, gid=, host=, home= (repeatable)",
        many=True,
    ),
    Option("base", "DIR", "use this root file system: a directory, or a name from `staddle base ls`"),
    Option("workspace", "DIR", "the directory to work in (default: the current one)"),
    Option("workdir", "DIR", "start in this directory of the workspace, or of the sandbox"),
    Option("mode", "MODE", "the workspace inside: readonly (default) or bind (written directly)"),
    Option(
        "nested",
        "",
        "in a container: accept the gaps that the best backend there documents; they are printed",
    ),
    Option("best-effort", "", "run even if something cannot be enforced; every gap is reported"),
    Option("json", "", "one JSON object on standard output instead of live output"),
    HELP,
)


def reworded(table: Iterable[Option], **helps: str) -> tuple[Option, ...]:
    """Return the options with other help texts, for a command in which they have another meaning."""
    texts = {name.replace("_", "-"): text for name, text in helps.items()}
    return tuple(option.replace(help=texts.get(option.name, option.help)) for option in table)


def policy_from(parsed: Parsed) -> tuple[Policy, str | None]:
    """Return the policy from the options, and the directory to start in (None: the compiler's default)."""
    workspace, mode = _workspace(parsed, ("readonly", "bind", "overlay"))
    policy = _policy(parsed, workspace)
    try:
        granted = policy.with_write(workspace) if mode == "bind" else policy.with_read(workspace)
    except PolicyError:
        # Directories such as / and /tmp cannot be granted. That is an error if the user named it. If it is
        # just the current directory, the command gets the private one, or the private home.
        if parsed.on("workspace") or mode == "bind":
            raise
        return policy, None
    return granted, workspace


def sandbox_from(parsed: Parsed) -> tuple[Policy, str | None, str]:
    """Return (policy, workspace, mode) of a sandbox. None: an empty workspace that ends with the sandbox."""
    workspace, mode = _workspace(parsed, ("readonly", "bind", "overlay"))
    policy = _policy(parsed, workspace)
    try:
        policy.with_read(workspace)
    except PolicyError:
        if parsed.on("workspace") or parsed.on("mode"):
            raise
        return policy, None, mode
    return policy, workspace, mode


def working_directory() -> str:
    """Return the current directory. Raises UsageError if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "the current directory no longer exists", fix="change to one that does: cd"
        ) from None


def _workspace(parsed: Parsed, modes: tuple[str, ...]) -> tuple[str, str]:
    workspace = os.path.abspath(os.path.join(working_directory(), parsed.one("workspace") or ""))
    if not os.path.isdir(workspace):
        raise UsageError(f"the workspace {workspace!r} is not a directory", fix="name one that exists")
    mode = parsed.one("mode") or "readonly"
    if mode not in modes:
        raise UsageError(f"there is no mode {mode!r}", fix=f"choose {', '.join(modes[:-1])} or {modes[-1]}")
    return workspace, mode


def _policy(parsed: Parsed, workspace: str) -> Policy:
    """Return the policy with the options applied, except the workspace itself."""
    file = parsed.one("policy")
    policy = Policy.from_file(file, workspace=workspace) if file else default_policy()
    return asked_of(policy, parsed)


def asked_of(policy: Policy, parsed: Parsed) -> Policy:
    """Return `policy` with the options applied."""
    policy = policy.with_read(*parsed.many("read")).with_write(*parsed.many("write"))
    policy = policy.with_deny(*parsed.many("deny")).with_sockets(*_sockets(parsed.many("socket")))
    policy = policy.with_gpu(*parsed.many("gpu")).with_devices(*parsed.many("device"))
    policy = policy.with_pass_env(*_set_variables(parsed.many("pass-env"))).with_env(
        **_variables(parsed.many("env"))
    )
    network = _network(parsed)
    if network is not None:
        policy = policy.with_network(network)
    policy = with_requests(policy, parsed)
    if parsed.on("package-cache"):
        policy = policy.with_package_cache()
    if parsed.on("no-redact"):
        policy = policy.with_redact(False)
    if (preset := parsed.one("environment")) is not None:
        policy = policy.with_environment(preset)
    if parsed.on("identity"):
        policy = policy.with_identity(_identity(policy.identity, parsed.many("identity")))
    if (base := parsed.one("base")) is not None:
        policy = policy.with_base(base)
    if parsed.on("nested"):
        policy = policy.replace(nested=True)
    limits = _limits(parsed)
    return policy.with_limits(**limits) if limits else policy


def with_requests(policy: Policy, parsed: Parsed) -> Policy:
    """Return `policy` with the HTTP rules and secrets of the options. Their hosts are allowed with them."""
    if rules := parsed.many("request"):
        policy = policy.with_http(*rules)
    if secrets := parsed.many("secret"):
        from ..policy.egress_secret import EgressSecret

        made = [EgressSecret.parse(text) for text in secrets]
        hosts = [host for secret in made for host in secret.hosts]
        network = _with_hosts(policy.network, hosts)
        policy = policy.replace(network=network, secrets=(*policy.secrets, *made))
    if limits := parsed.many("request-limit"):
        from ..policy.http_rules import HttpLimit

        bounds = (*policy.network.http_limits, *map(HttpLimit.parse, limits))
        policy = policy.with_network(policy.network.with_http_limits(*bounds))
    return policy


def _sockets(given: list[str]) -> list[str]:
    import stat

    for path in given:
        try:
            is_socket = stat.S_ISSOCK(os.stat(os.path.expanduser(path)).st_mode)
        except OSError as error:
            raise UsageError(
                f"--socket {path!r} cannot be used",
                why=error.strerror or str(error),
                fix="start the program that listens there, or name another path",
            ) from None
        if not is_socket:
            raise UsageError(
                f"--socket {path!r} is not a UNIX socket", fix="for a file use --read or --write"
            )
    return given


def _set_variables(given: list[str]) -> list[str]:
    for name in given:
        if name not in os.environ:
            sentence = f"--pass-env {name}: your environment has no such variable, so none is set inside"
            print(f"staddle: {sentence}", file=sys.stderr)
    return given


def _variables(given: list[str]) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--env {text!r} is not NAME=VALUE", fix="to pass your variable use --pass-env")
        pairs[name] = value
    return pairs


def _identity(before: Identity, given: list[str]) -> Identity:
    said: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or key not in Identity._fields:
            known = ", ".join(f"{field}=" for field in Identity._fields)
            raise UsageError(f"--identity {text!r} names no field of an identity", fix=f"use {known}")
        if key in said:
            raise UsageError(
                f"--identity {key} is given twice",
                why="only one value can apply",
                fix="leave one of them out",
            )
        said[key] = _number(value, f"--identity {key}") if key in ("uid", "gid") else value
    # The default home follows the new user name.
    kept = {"uid": before.uid, "host": before.host, "user": before.user}
    if "uid" in said:
        del kept["user"]
    elif before.gid != before.uid:
        kept["gid"] = before.gid
    if not before.has_usual_home:
        kept["home"] = before.home
    return Identity(**{**kept, **said})


def _network(parsed: Parsed) -> Network | None:
    hosts, dns = parsed.many("allow"), parsed.many("dns")
    mode = parsed.one("network") or ("allow" if hosts else None)
    if hosts and mode not in ("allow", "packages"):
        raise UsageError(f"--allow and --network {mode} contradict each other", fix="leave one of them out")
    if dns and mode not in ("allow", "packages"):
        raise UsageError(
            "--dns needs --allow, or --network packages",
            why="only allowed hosts are looked up",
            fix="leave it out, or add --allow HOST",
        )
    name, _, ports = (mode or "").partition("=")
    if name == "loopback":
        return Network.loopback(
            ports=[_number(port, "--network loopback") for port in ports.split(",") if port]
        )
    if mode is None:
        return None
    if mode == "deny":
        return Network.deny()
    if mode == "open":
        return Network.open()
    if mode == "allow":
        return Network.allow(*hosts, dns=dns)
    if mode == "packages":
        return Network.packages(*hosts, dns=dns)
    raise UsageError(
        f"there is no network mode {mode!r}", fix="choose deny, open, loopback, allow or packages"
    )


def _with_hosts(network: Network, hosts: list[str]) -> Network:
    """Return a network that allows the hosts of secrets too, at the ports of HTTP."""
    if network.mode not in ("allow", "deny"):
        raise UsageError(
            f"--secret and --network {network.mode} contradict each other",
            why="requests get secrets only where an allow list leads them through the inspector",
            fix="use --allow HOST, or leave --network out",
        )
    from ..hostnames import parse
    from ..policy.http_rules import PORTS

    entries = [entry if entry.ports else entry.replace(ports=PORTS) for entry in map(parse, hosts)]
    found = Network.allow(*map(str, (*network.rules, *entries)), dns=network.dns, http=network.http)
    return found.with_http_limits(*network.http_limits)


#: Words that may replace a number of processes or files.
_WORDS = {"none": None, DEFAULT: DEFAULT}


def _limits(parsed: Parsed) -> dict[str, object]:
    said: dict[str, object] = {}
    timeout = parsed.one("timeout")
    if timeout is not None:
        said["timeout"] = None if timeout == "none" else timeout
    sizes = (("memory", "memory"), ("output-cap", "output"), ("file-size", "file_size"), ("disk", "disk"))
    for option, field in sizes:
        if (size := parsed.one(option)) is not None:
            said[field] = None if size == "none" else size
    if (cores := parsed.one("cpu")) is not None:
        said["cpu"] = _decimal(cores, "--cpu")
    for option, field in (("processes", "processes"), ("open-files", "open_files")):
        if (count := parsed.one(option)) is not None:
            said[field] = _WORDS[count] if count in _WORDS else _number(count, f"--{option}")
    return said


def _decimal(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option} {text!r} is not a number", fix="write it as in 1.5") from None


def _number(text: str, option: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{option} {text!r} is not a whole number", fix="write digits only")
    return int(text)


def command_from(parsed: Parsed, verb: str = "run") -> tuple[list[str], str | None]:
    """Return the command to run, and the script file that must be readable for it. `verb` is for errors."""
    line, words = parsed.one("command"), list(parsed.words)
    if line is not None:
        if "\0" in line:
            raise UsageError(
                "the script has a NUL in it", why="no argument can contain one", fix="take it out"
            )
        return ["bash", "-c", line, "bash", *words], None
    if not words:
        raise UsageError(
            "there is nothing to run", fix=f"write staddle {verb} -- COMMAND, or -c 'SCRIPT', or a FILE"
        )
    if parsed.dashed:
        return words, None
    file = os.path.abspath(words[0])
    if not os.path.isfile(file):
        raise UsageError(
            f"{words[0]!r} is not a file", fix=f"to run a program write: staddle {verb} -- {' '.join(words)}"
        )
    return [*_interpreter(file), file, *words[1:]], file


#: Interpreters for files without a `#!` line, by suffix.
_INTERPRETERS = {
    ".py": "python3",
    ".js": "node",
    ".mjs": "node",
    ".cjs": "node",
    ".rb": "ruby",
    ".pl": "perl",
}


def _interpreter(file: str) -> list[str]:
    """Return the words that run `file`: none for a program, else from its first line or its suffix."""
    with open(file, "rb") as start:
        first = start.read(256)
    named, _, _ = first.partition(b"\n")
    if os.access(file, os.X_OK) and first.startswith((b"#!", b"\x7fELF")):
        return []
    if named.startswith(b"#!") and (words := os.fsdecode(named[2:]).split(maxsplit=1)):
        return words
    return [_INTERPRETERS.get(os.path.splitext(file)[1], "bash")]


def check_rules(policy: Policy, command: Sequence[str], script: str | None) -> None:
    """Check a command, and a script file that a shell runs for it, against the policy's command rules."""
    if policy.rules is None or not command:
        return
    policy.rules.check(command)
    if script is None:
        return
    from ..command_rules.shell_parser import LONGEST
    from ..command_rules.wrapper_commands import SHELLS

    with open(script, "rb") as file:
        text = file.read(LONGEST + 1)
    runners = list(command[: command.index(script)])
    if not runners:  # from its first line: `#!/bin/sh -e`, `#!/usr/bin/env bash`
        runners = os.fsdecode(text.partition(b"\n")[0][2:]).split()
    if any(os.path.basename(word) in SHELLS for runner in runners for word in runner.split()):
        policy.rules.check_script(os.fsdecode(text))
