"""Rules about programs that an agent should run. They are advice to the agent; the kernel is the boundary.

    rules = CommandRules(
        deny=[Rule("git push", owner="the publish tool", reason="a person looks at it first"), "curl"]
    )
    rules.check(["bash", "-lc", "cd src && git push"])     # CommandRefused

Rules do not see scripts that a program reads, code for an interpreter, Makefiles or git aliases, so they are
easy to bypass. They direct a well-meaning agent before the command runs.
"""

from __future__ import annotations

from .. import check
from .._value import Value
from ..check import several
from ..errors import CommandNotUnderstood, CommandRefused, PolicyError
from ..files.globs import Segment
from . import shell_parser
from .shell_parser import UNKNOWN
from .wrapper_commands import Invocation, NestedScript, Unclear, name_of, unfold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Literal

    from .shell_parser import Word

#: Harmless builtins of the shell, which an allow list need not name.
OF_THE_SHELL = frozenset(
    {
        *(":", "[", "bg", "break", "cd", "continue", "declare", "dirs", "disown", "echo", "exit", "export"),
        *("false", "fg", "getopts", "jobs", "let", "local", "nameref", "popd", "printf", "pushd", "pwd"),
        *("read", "readonly", "return", "set", "shift", "shopt", "test", "times", "true", "type", "typeset"),
        *("ulimit", "umask", "unset", "wait"),
    }
)
#: Directories in which an allowed program without a directory may be.
_SYSTEM = frozenset({f"{root}{kind}" for root in ("/", "/usr/", "/usr/local/") for kind in ("bin", "sbin")})
#: Maximum depth of nested scripts.
_DEEPEST = 8
_MOST_SCRIPTS = 64


class Rule(Value):
    """A program, or a program and its first arguments: `git`, `git push`, `pip*`, `/opt/tool`.

    `owner` names the tool to use instead, `reason` says why. The error shows both.
    """

    command: str
    owner: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        for field in self._fields:
            if not isinstance(getattr(self, field), str):
                raise PolicyError(
                    f"the {field} of a rule is {getattr(self, field)!r}",
                    why="it is not text",
                    fix="write text",
                )
        words = self.command.split()
        if not words or UNKNOWN in self.command:
            raise PolicyError(
                f"a rule for {self.command!r}",
                why="it names no program",
                fix="begin it with a program, as in 'git push'",
            )
        self._set("_program", Segment(words[0]))
        self._set("_arguments", words[1:])

    @classmethod
    def ready_made(cls, *names: str, owner: str = "", reason: str = "") -> tuple[Rule, ...]:
        """Return rules to deny tools of these kinds ("git", "docker", ...; see `KINDS`)."""
        from .rules import KINDS

        found = []
        for name in names:
            if name not in KINDS:
                known = ", ".join(KINDS)
                raise PolicyError(
                    f"there is no ready-made set {name!r}",
                    fix=f"choose of {known}",
                    why="these come with staddle",
                )
            why, commands = KINDS[name]
            found += [cls(command, owner, reason or why) for command in commands]
        return tuple(found)

    def overlaps(self, other: Rule) -> bool:
        """Whether both rules name the same program, directly or by a pattern, with the same arguments."""
        mine, theirs = self.__dict__["_program"], other.__dict__["_program"]
        same = self.__dict__["_arguments"] == other.__dict__["_arguments"]
        return bool(same and (mine.matches(theirs.text) or theirs.matches(mine.text)))

    def denies(self, words: Sequence[Word]) -> bool:
        """Whether these words run the program, from any directory, even if options precede the arguments."""
        segment: Segment = self.__dict__["_program"]
        named = words[0] if "/" in segment.text else name_of(words[0])
        return named is not None and segment.matches(named) and _has(words[1:], self.__dict__["_arguments"])

    def allows(self, words: Sequence[Word]) -> bool:
        """Whether these words run the system's program with exactly these first arguments."""
        segment: Segment = self.__dict__["_program"]
        word, wanted = words[0], self.__dict__["_arguments"]
        if word is None or UNKNOWN in word:
            return False
        directory, slash, name = word.rpartition("/")
        if "/" not in segment.text and slash:
            if directory not in _SYSTEM:
                return False
            word = name
        return segment.matches(word) and list(words[1 : 1 + len(wanted)]) == wanted


class CommandRules(Value):
    """Programs that an agent should not run (`deny`), or the only ones it should run (`allow`). `deny` wins.

    Entries are `Rule`s or their `command` as text. `unknown` decides about commands whose program is only
    known when they run (`$TOOL x`, `curl … | sh`).
    """

    deny: tuple[Rule, ...] = ()
    allow: tuple[Rule, ...] | None = None
    unknown: Literal["refuse", "allow"] = "refuse"

    def __init__(
        self,
        deny: Iterable[str | Rule] = (),
        allow: Iterable[str | Rule] | None = None,
        unknown: Literal["refuse", "allow"] = "refuse",
    ) -> None:
        check.one_of("unknown", unknown, ("refuse", "allow"), PolicyError)
        denied = _rules(deny, "deny")
        _refuse_two_owners(denied)
        super().__init__(denied, None if allow is None else _rules(allow, "allow"), unknown)

    def ready(self) -> None:
        """Raise ExtraMissing if scripts cannot be parsed here."""
        shell_parser.parser()

    def check(self, argv: Sequence[str]) -> None:
        """Raise CommandRefused if this command line, or a command found in it, violates the rules.

        Raises CommandNotUnderstood if a script in it cannot be parsed.
        """
        self._judge(_RuleCheck().command([str(word) for word in argv], stdin=False))

    def check_script(self, text: str) -> None:
        """Check the text of a shell script in the same way."""
        self._judge(_RuleCheck().script(text))

    def _judge(self, found: Iterable[Invocation | Unclear]) -> None:
        seen = list(found)
        for run in seen:
            for rule in self.deny:
                if isinstance(run, Invocation) and rule.denies(run.words):
                    raise _refused(rule.command, name_of(run.words[0]) or "", rule.owner, rule.reason)
        for run in seen:
            if isinstance(run, Unclear):
                if self.unknown == "refuse":
                    raise _refused("", "", "", run.why, run.fix)
            elif self.allow is not None and not (run.through or self._allowed(run)):
                said = " ".join(word for word in run.words[:2] if word is not None and UNKNOWN not in word)
                raise _refused(
                    said, name_of(run.words[0]) or "", "", "it is not among the commands that are allowed"
                )

    def _allowed(self, run: Invocation) -> bool:
        return run.words[0] in OF_THE_SHELL or any(rule.allows(run.words) for rule in self.allow or ())


class _RuleCheck:
    """One check. It follows nested scripts within bounds."""

    def __init__(self) -> None:
        self._scripts = 0

    def script(self, text: str, depth: int = 0) -> Iterator[Invocation | Unclear]:
        self._scripts += 1
        if depth > _DEEPEST or self._scripts > _MOST_SCRIPTS:
            raise CommandNotUnderstood(
                "the script is nested too deeply to be checked",
                why=f"sh -c is followed {_DEEPEST} levels deep, and {_MOST_SCRIPTS} times",
                fix="split it into separate commands",
            )
        read = shell_parser.parse(text)
        for words in read.commands:
            if words[0] in read.functions:  # the function's own commands are also checked
                yield Invocation(words, through=True)
            else:
                yield from self.command(words, depth)

    def command(
        self, words: Sequence[Word], depth: int = 0, *, stdin: bool = True
    ) -> Iterator[Invocation | Unclear]:
        for found in unfold(words, stdin=stdin):
            if isinstance(found, NestedScript):
                yield from self.script(found.text, depth + 1)
            else:
                yield found


def _rules(entries: object, field: str) -> tuple[Rule, ...]:
    found = []
    for entry in several(entries, field):
        if not isinstance(entry, str | Rule):
            raise PolicyError(f"{field} has {entry!r} in it", why="it is not a rule", fix='write "git push"')
        found.append(entry if isinstance(entry, Rule) else Rule(entry))
    return tuple(found)


def _refuse_two_owners(rules: tuple[Rule, ...]) -> None:
    """Raise PolicyError if two rules for the same command name different owners."""
    for place, rule in enumerate(rules):
        for other in rules[:place]:
            if rule.owner and other.owner and rule.owner != other.owner and rule.overlaps(other):
                raise PolicyError(
                    f"{rule.command!r} has two owners",
                    why=f"one rule has {other.owner!r}, another one {rule.owner!r}",
                    fix="leave one of them out",
                )


def _has(words: Sequence[Word], wanted: Sequence[str]) -> bool:
    """Whether `wanted` are the first arguments. Options, each with a word after it, may stand between them.

    `git -C dir push` is a push, `git commit -m push` is not. An unknown word matches any argument, unless it
    follows an option.
    """
    places = {(0, False)}  # (arguments found, whether the last word was an option)
    for word in words:
        if any(found == len(wanted) for found, _ in places):
            break
        after: set[tuple[int, bool]] = set()
        for found, optional in places:
            unknown = word is None or UNKNOWN in word
            if word == wanted[found] or (unknown and not optional):
                after.add((found + 1, False))
            if word is not None and word.startswith("-"):
                after.add((found, True))
            elif optional:
                after.add((found, False))
        places = after
    return any(found == len(wanted) for found, _ in places)


def _refused(shown: str, program: str, owner: str, reason: str, fix: str = "") -> CommandRefused:
    what = f"{shown!r} should not be run here" if shown else "this command should not be run here"
    fix = f"use {owner}" if owner else fix or "use another program, or change the rules of the policy"
    why = reason or "a command rule of the policy is against it"
    return CommandRefused(what, why=why, fix=fix, program=program, owner=owner, reason=reason)


# Ready-made rules, as data: tools for which agent programs often have their own replacement.


#: The kinds, each with a reason not to run them and the commands. The caller names the owner.
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "git": (
        "history is changed by another tool",
        ("git", "git-*", "gh", "glab", "hub", "tea"),
    ),
    "docker": (
        "containers are run by another tool",
        (
            *("docker", "docker-*", "podman", "podman-*", "nerdctl", "buildah", "skopeo", "ctr", "crictl"),
            *("runc", "crun"),
        ),
    ),
    "nix": (
        "packages and systems of nix are built by another tool",
        ("nix", "nix-*", "nixos-*", "home-manager", "devenv", "guix"),
    ),
    "kubectl": (
        "clusters are changed by another tool",
        ("kubectl", "kubectl-*", "oc", "k9s", "kustomize", "kubeadm", "kubectx", "kubens"),
    ),
    "helm": ("releases are made by another tool", ("helm", "helmfile")),
    "curl": ("the network is used by another tool", ("curl", "curlie", "xh", "xhs", "http", "https")),
    "wget": ("the network is used by another tool", ("wget", "wget2", "aria2c")),
    "packages": (
        "packages are installed by another tool",
        (
            *("apt", "apt-get", "aptitude", "dpkg", "dnf", "dnf5", "microdnf", "yum", "rpm", "pacman", "apk"),
            *("zypper", "emerge", "xbps-install", "brew", "port", "snap", "flatpak"),
            *("pip", "pip3*", "pipx", "pipenv", "python* -m pip", "uv", "uvx", "poetry", "pdm", "conda"),
            *("mamba", "micromamba", "npm", "npx", "pnpm", "pnpx", "yarn", "bun", "bunx", "corepack"),
            *("gem", "bundle", "cargo install", "go install", "go get", "composer", "luarocks", "cpan"),
        ),
    ),
}
