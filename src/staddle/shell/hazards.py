"""Guess from the words of a text what it may do to its shell. Pure; errs on the safe side.

A wrong guess costs a fraction of a millisecond, or the state of one command if its shell dies.
"""

from __future__ import annotations

from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Collection

#: May end the shell, or stop it from reading. (The first one is also in `errexit`.)
_ENDING = (
    *(
        "exit",
        "exec",
        "kill",
        "logout",
        "suspend",
        "ulimit",
        "set -",
        "set +",
        "restricted",
    ),
    *("eval", "source", ". ", "trap", "TMOUT", "PROMPT_COMMAND", "&-", "return", "enable", "reboot"),
)
#: May leave behind something that does so later.
_BREAKING_LATER = ("()", "function", "alias", "trap", "source", ". ", "eval", "PROMPT_COMMAND", "TMOUT")
#: May hide a builtin, or show ours to a DEBUG trap.
_SHADOWING = ("()", "function", "extdebug", "enable", "source", ". ", "eval", "trap")
#: Those that do not also end the shell.
_ONLY_SHADOWING = _SHADOWING[:3]
#: May end the shell in an orderly way, so that its EXIT trap runs.
_LEAVING = ("exit", "set -", "errexit", "logout", "source", ". ", "eval")

#: Builtins and keywords, which are not programs.
_NO_PROGRAMS = frozenset(
    b". [ alias bg bind break builtin caller case cd command compgen complete compopt continue coproc declare"
    b" dirs disown do done echo elif else enable esac eval exec exit export false fc fg fi for function"
    b" getopts hash help history if in jobs kill let local logout mapfile popd printf pushd pwd read"
    b" readarray readonly return select set shift shopt source suspend test then time times trap true type"
    b" typeset ulimit umask unalias unset until wait while".split()
)
#: Those that change no variable, with any arguments. `test` can assign, in a subscript.
_WITHOUT_EFFECT = frozenset(b"echo false pwd true".split())
#: A command of plain words and redirections, up to the separator of the next. Possessive quantifiers prevent
#: backtracking: a text could otherwise take arbitrarily long.
_PLAIN_COMMAND = rb"""
    [ \t\n]*+ ([\w./+-]++)
    (?: (?: [ \t]++ | [ \t]*+ (?: [12&]?+ >>?+ | < ) [ \t]*+ )
            (?: [\w./,:@%+=^-] | '[^'\n]*+' | "[^"$`\\!\n]*+" )++
      | [ \t]*+ [12]?+ >& [12] (?![\w-])
    )*+
    [ \t]*+ (?: && | \|\| | [;|\n] | $ )
"""
#: Longer texts are not examined.
LONGEST_PLAIN = 4096


@cache
def _plain_command() -> re.Pattern[bytes]:
    import re  # importing it takes longer than opening a sandbox

    return re.compile(_PLAIN_COMMAND, re.VERBOSE)


def only_runs_programs(text: bytes, functions: Collection[bytes]) -> bool:
    """Whether it leaves its shell unchanged: plain words that start programs, none of `functions`.

    The caller rules out loaded builtins (`may_load_builtins`), aliases and traps.
    """
    if len(text) > LONGEST_PLAIN:
        return False
    at, end = 0, len(text)
    while at < end:
        found = _plain_command().match(text, at)
        if found is None:
            return not text[at:].strip()
        name = found[1]
        if name in functions or (name in _NO_PROGRAMS and name not in _WITHOUT_EFFECT):
            return False
        at = found.end()
    return True


def may_load_builtins(text: bytes) -> bool:
    """Whether it may add a builtin to the shell."""
    return b"enable" in text


def may_end(text: bytes) -> bool:
    """Whether it may end the shell."""
    return _has_any(text, _ENDING) or _ends_within(text.decode("latin-1"))


def may_break_later(text: bytes) -> bool:
    """Whether it may make a later command end the shell."""
    return _has_any(text, _BREAKING_LATER) and may_end(text)


def may_shadow_builtins(text: bytes) -> bool:
    """Whether it may hide a builtin."""
    return _has_any(text, _SHADOWING)


def judge(text: bytes) -> tuple[bool, bool]:
    """Return `may_end` and `may_shadow_builtins` of a text in one pass: on every command's path."""
    plain = text.decode("latin-1")
    for word in _ENDING:
        if word in plain:
            return True, _has_any(text, _SHADOWING)
    ends = _ends_within(plain)
    for word in _ONLY_SHADOWING:
        if word in plain:
            return ends, True
    return ends, False


def _ends_within(plain: str) -> bool:
    """Whether it may end within a substitution: the next text may then abort bash."""
    return "$(" in plain and plain.count("(") > plain.count(")")


def may_leave(text: bytes) -> bool:
    """Whether the shell may exit in an orderly way, so that an EXIT trap runs."""
    return _has_any(text, _LEAVING)


def _has_any(text: bytes, words: tuple[str, ...]) -> bool:
    # On every command's path: str is searched ten times as fast as bytes, by a loop faster than by any().
    plain = text.decode("latin-1")
    for word in words:  # noqa: SIM110
        if word in plain:
            return True
    return False


def lists_traps(text: bytes) -> bool:
    """Whether it may print the traps."""
    at = text.find(b"trap")
    while at >= 0:
        rest = text[at + 4 : at + 36].lstrip(b" \t")
        if not rest or rest[:2] == b"-p" or rest[:1] in (b"\n", b";", b"|", b"&", b")", b">", b"`", b"}"):
            return True
        at = text.find(b"trap", at + 4)
    return False


def traces(text: bytes) -> bool:
    """Whether it may switch on `set -x` or `set -v`, which print what an EXIT trap does."""
    if b"xtrace" in text or b"verbose" in text:
        return True
    at = text.find(b"set -")
    while at >= 0:
        word = text[at + 5 : at + 21].split(None, 1)[:1]
        if word and (b"x" in word[0] or b"v" in word[0]):
            return True
        at = text.find(b"set -", at + 5)
    return False
