"""`staddle completion`: print a script for bash, zsh or fish that completes commands and options."""

from __future__ import annotations

import importlib

from ..errors import UsageError
from .kept import begin
from .options import HELP, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OPTIONS = (
    Option("names", "", "print the names of kept sandboxes, one a line", hidden=True),
    HELP,
)
_HELP = """\
Print a script that lets your shell complete staddle's commands, options and kept sandboxes.

usage: staddle completion bash|zsh|fish

  bash:  echo 'source <(staddle completion bash)' >> ~/.bashrc
  zsh:   echo 'source <(staddle completion zsh)' >> ~/.zshrc     (after compinit)
  fish:  staddle completion fish > ~/.config/fish/completions/staddle.fish

{options}
"""
#: Commands with the name of a kept sandbox as argument.
_KEPT = ("diff", "commit", "discard", "snapshot", "restore", "rm", "log", "show", "undo", "bisect", "blame")


def main(words: Sequence[str]) -> int:
    """Print the script of one shell."""
    parsed = begin(words, _OPTIONS, "completion", _HELP)
    if parsed is None:
        return 0
    if parsed.on("names"):
        from ..layers.session_record import names

        print("\n".join(names()))
        return 0
    scripts = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if len(parsed.words) != 1 or parsed.words[0] not in scripts:
        raise UsageError("no shell is named", fix="write: staddle completion bash, or zsh, or fish")
    print(scripts[parsed.words[0]](tables()), end="")
    return 0


def tables() -> dict[str, tuple[Option, ...]]:
    """Return the options of every command; a subcommand has two words as its key, such as `jail run`."""
    from . import _COMMANDS, _FILE_OF, AGENTS

    found: dict[str, tuple[Option, ...]] = {}
    for name in _COMMANDS:
        file = "agent" if name in AGENTS else _FILE_OF.get(name, name)
        module = importlib.import_module(f"staddle.cli.{file}")
        table = f"_{name.upper()}_OPTIONS" if name in _FILE_OF else "_OPTIONS"
        verbs: Mapping[str, Sequence[Option]] = module.verbs() if hasattr(module, "verbs") else {}
        found[name] = tuple(getattr(module, table, (HELP,)))
        found.update({f"{name} {verb}": tuple(options) for verb, options in verbs.items()})
    return {name: tuple(each for each in table if not each.hidden) for name, table in found.items()}


def _spelled(option: Option) -> list[str]:
    return [f"--{option.name}", *([f"-{option.short}"] if option.short else [])]


def _verbs(found: Mapping[str, object], name: str) -> list[str]:
    return [key.split()[1] for key in found if key.startswith(f"{name} ")]


def _bash(found: Mapping[str, tuple[Option, ...]]) -> str:
    rows = []
    for name, table in found.items():
        words = " ".join([*(each for option in table for each in _spelled(option)), *_verbs(found, name)])
        rows.append(f"    {name.replace(' ', '-')}) words={_quoted(words)} ;;")
    return _BASH.format(
        commands=" ".join(name for name in found if " " not in name),
        rows="\n".join(rows),
        verbs="|".join(name.replace(" ", "-") for name in found if " " in name),
        kept="|".join(_KEPT),
    )


_BASH = """\
_staddle() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} name=${{COMP_WORDS[1]}} words= word
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{commands}' -- "$cur"))
    return
  fi
  for word in "${{COMP_WORDS[@]:2:COMP_CWORD-2}}"; do
    [ "$word" = -- ] && return
  done
  [ "$COMP_CWORD" -gt 2 ] && case "$name-${{COMP_WORDS[2]}}" in
    {verbs}) name=$name-${{COMP_WORDS[2]}} ;;
  esac
  case $name in
{rows}
  esac
  case $name in
    {kept}) case $cur in -*) ;; *) words="$words $(staddle completion --names 2>/dev/null)" ;; esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _staddle staddle
"""


def _zsh(found: Mapping[str, tuple[Option, ...]]) -> str:
    from . import _COMMANDS

    described = " ".join(_quoted(f"{name}:{text}") for name, text in _COMMANDS.items())
    rows = []
    for name, table in found.items():
        specs = [_quoted(_zsh_spec(option)) for option in table]
        rest = "'*:file:_files'"
        if choices := _verbs(found, name):
            rest = _quoted(f"1:command:({' '.join(choices)})")
        elif name in _KEPT:
            rest = "'1:kept:($(staddle completion --names 2>/dev/null))' '*:file:_files'"
        rows.append(f"    {_quoted(name)}) specs=({' '.join(specs)} {rest}) ;;")
    verbs = "|".join(_quoted(name) for name in found if " " in name)
    return _ZSH.format(described=described, rows="\n".join(rows), verbs=verbs)


def _zsh_spec(option: Option) -> str:
    text = option.help.replace("[", "(").replace("]", ")").replace(":", " -")
    takes = f":{option.value.replace(':', ' ')}:_files" if option.value else ""
    return f"{'*' if option.many else ''}--{option.name}[{text}]{takes}"


_ZSH = """\
#compdef staddle
_staddle() {{
  local name=$words[2]
  local -a specs commands
  commands=({described})
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case "$words[2] $words[3]" in
    {verbs}) (( CURRENT > 3 )) && name="$words[2] $words[3]" && shift words && (( CURRENT-- )) ;;
  esac
  case $name in
{rows}
  esac
  shift words
  (( CURRENT-- ))
  _arguments -S $specs
}}
if [ "$funcstack[1]" = _staddle ]; then _staddle "$@"; else compdef _staddle staddle; fi
"""


def _fish(found: Mapping[str, tuple[Option, ...]]) -> str:
    from . import _COMMANDS

    verbs = sorted({name.split()[0] for name in found if " " in name})
    lines = [_FISH.format(verbs=" ".join(verbs))]
    for name, text in _COMMANDS.items():
        lines.append(f"complete -c staddle -n __staddle_is -f -a {name} -d {_quoted(text)}")
    for name, table in found.items():
        row = f"complete -c staddle -n {_quoted(f'__staddle_is {name}')}"
        if choices := _verbs(found, name):
            lines.append(f"{row} -f -a {_quoted(' '.join(choices))}")
        if name in _KEPT:
            lines.append(f"{row} -a '(staddle completion --names 2>/dev/null)'")
        for option in table:
            short = f" -s {option.short}" if option.short else ""
            takes = " -r" if option.value else ""
            lines.append(f"{row} -l {option.name}{short}{takes} -d {_quoted(option.help)}")
    return "\n".join(lines) + "\n"


#: `__staddle_is jail run`: whether the command line begins with these words.
_FISH = """\
complete -c staddle -e
function __staddle_is
  set -l words (commandline -opc)
  set -l verbs {verbs}
  set -l given $words[2..]
  if contains -- "$given[1]" $verbs; and test (count $given) -gt 1
    set given $given[1..2]
  else
    set given $given[1]
  end
  test "$given" = "$argv"
end"""


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text)
