"""Decide about one HTTP request, in every reading that a server may give its path. Pure.

    rules = compile_rules([HttpRule.parse("GET api.github.com/repos/**")])
    decide(rules, "GET", "api.github.com", 443, "/repos/a/b?page=2")

A reading is a path after decoding. An escaped slash that stays a letter is LETTER in it.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote_plus, unquote_to_bytes

from ..._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...hostnames import HostRule
    from ...policy.http_rules import HttpRule

#: An escaped slash that a server does not read as a separator. No request contains it: controls are refused.
LETTER = "\0"
#: The longest path with its query.
LONGEST_PATH = 8192
#: Each query is compared up to this number of parameters. A longer query is refused.
_PARAMETERS = 256
#: A path that has one reading only, without a loop over all of them.
_PLAIN = re.compile(r"/|(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+/?")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_TWICE = re.compile(r"%25(?=[0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x01-\x1f\x7f-\x9f]")
_PRINTABLE = re.compile(r"[\x21-\x7e]*")
_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")
_PIECE = re.compile(r"/\*\*/|\*\*|\*|%[0-9A-Fa-f]{2}|.", re.DOTALL)


class AmbiguousRequest(ValueError):
    """Servers could read this request in different ways. The text says why."""


class RequestVerdict(Value):
    """The answer of the rules. `rule` is the text of the rule; `undecided`: no rule is about this request."""

    allowed: bool
    rule: str
    why: str
    undecided: bool = False


class CompiledRule(Value):
    """A rule with its host and path as the things to compare with."""

    rule: HttpRule
    host: HostRule
    methods: frozenset[str]
    path: re.Pattern[str]
    conditions: tuple[tuple[str, str], ...]

    def is_for(self, method: str) -> bool:
        """Whether the rule is about this method. GET includes HEAD."""
        if self.rule.deny:
            method = method.upper()
        return not self.methods or method in self.methods or (method == "HEAD" and "GET" in self.methods)

    def allows(self, readings: frozenset[str], queries: tuple[tuple[tuple[str, str], ...], ...]) -> bool:
        """Whether every reading matches, and every reading of the query has only the wanted values."""
        if not all(self.path.fullmatch(each) for each in readings):
            return False
        for name, value in self.conditions:
            for query in queries:
                found = [each for key, each in query if key == name]
                if not found or any(each != value for each in found):
                    return False
        return True

    def refuses(self, readings: frozenset[str], queries: tuple[tuple[tuple[str, str], ...], ...]) -> bool:
        """Whether any reading matches, without regard to case and to a slash at the end."""
        paths = {alike(each) for each in readings}
        paths |= {each.rstrip("/") for each in paths} | {each + "/" for each in paths}
        if not any(self.path.fullmatch(each) for each in paths):
            return False
        pairs = {(alike(key), alike(value)) for query in queries for key, value in query}
        pairs |= {(alike(unquote_plus(key)), alike(unquote_plus(value))) for key, value in pairs}
        return all((alike(key), alike(value)) in pairs for key, value in self.conditions)


def compile_rules(rules: Iterable[HttpRule]) -> tuple[CompiledRule, ...]:
    """Prepare rules for `decide`. Each has a host."""
    return tuple(_compiled(rule) for rule in rules)


def decide(
    rules: Iterable[CompiledRule], method: str, host: str, port: int, target: str, *, otherwise: bool = False
) -> RequestVerdict:
    """Decide about a request. `target` is the path with its query.

    `otherwise` is the answer for a host that no rule is about. A host with rules is refused what none allows.
    """
    if not _METHOD.fullmatch(method):
        return RequestVerdict(False, "", f"{method[:40]!r} is no method in capital letters")
    if method in ("CONNECT", "TRACE"):
        return RequestVerdict(False, "", f"{method} is never passed on")
    try:
        path, _, query = split_target(target)
        readings, queries = path_readings(path), query_readings(query)
    except AmbiguousRequest as error:
        return RequestVerdict(False, "", str(error))
    about = [rule for rule in rules if rule.host.matches(host, port)]
    if not about and otherwise:
        return RequestVerdict(True, "", "no rule is about this host")
    allowed: CompiledRule | None = None
    for rule in about:
        if not rule.is_for(method):
            continue
        if rule.rule.deny:
            if rule.refuses(readings, queries):
                return RequestVerdict(False, str(rule.rule), f"the rule {str(rule.rule)!r} refuses it")
        elif allowed is None and rule.allows(readings, queries):
            allowed = rule
    if allowed is not None:
        return RequestVerdict(True, str(allowed.rule), "")
    return RequestVerdict(False, "", f"no rule allows {method} for this path of {host}", undecided=True)


def split_target(target: str) -> tuple[str, str, str]:
    """Split path, question mark and query. Raises AmbiguousRequest for anything but an ordinary path."""
    if len(target) > LONGEST_PATH:
        raise AmbiguousRequest(f"the path is longer than {LONGEST_PATH} characters")
    if not target.startswith("/"):
        raise AmbiguousRequest("the target of a request is a path that begins with /")
    if not _PRINTABLE.fullmatch(target) or "#" in target:
        raise AmbiguousRequest("the path has a character that no request has")
    return target.partition("?")


def path_readings(path: str) -> frozenset[str]:
    """Return the ways in which servers read an escaped path.

    Raises AmbiguousRequest if one of them is refused.
    """
    if _PLAIN.fullmatch(path):
        return frozenset((path,))
    if _BAD_ESCAPE.search(path):
        raise AmbiguousRequest("the path has a % without two hexadecimal digits")
    if "%00" in path:
        raise AmbiguousRequest("the path has a control character")
    if _TWICE.search(path):
        raise AmbiguousRequest("the path is escaped twice")
    readings = set()
    for slash in ("/", LETTER):
        raw = unquote_to_bytes(re.sub("%2f", slash, path, flags=re.IGNORECASE))
        try:
            readings.add(raw.decode())
        except UnicodeDecodeError:
            raise AmbiguousRequest("the path is not UTF-8") from None
    readings |= {unicodedata.normalize("NFKC", each) for each in readings if not each.isascii()}
    # A server that decodes before it splits sees the end of the path at an escaped ? or #.
    readings |= {re.split(r"[?#]", each, maxsplit=1)[0] for each in readings}
    readings |= {re.sub(r";[^/]*", "", each) for each in readings}
    readings |= {re.sub(r"/{2,}", "/", each) for each in readings}
    for each in readings:
        if "\\" in each:
            raise AmbiguousRequest("the path has a backslash, which some servers read as a slash")
        if _CONTROL.search(each):
            raise AmbiguousRequest("the path has a control character")
        if any(part.strip() in (".", "..") for part in re.split(r"[/\0]", each)):
            raise AmbiguousRequest("the path has a . or .. segment")
    return frozenset(readings)


def query_readings(query: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Return the parameters of a query as decoded pairs, with and without ; as a separator."""
    readings = []
    for separators in ("&", "[&;]"):
        parts = re.split(separators, query) if query else []
        if len(parts) > _PARAMETERS:
            raise AmbiguousRequest(f"the query has more than {_PARAMETERS} parameters")
        pairs = (part.partition("=") for part in parts)
        readings.append(tuple((unquote_plus(key), unquote_plus(value)) for key, _, value in pairs))
    return tuple(readings)


def alike(text: str) -> str:
    """Return the text as refusals compare it: without case and without look-alikes of compatibility."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _compiled(rule: HttpRule) -> CompiledRule:
    methods = frozenset() if rule.method == "*" else frozenset(rule.method.split(","))
    path, _, query = rule.path.partition("?")
    conditions = query_readings(query)[0]
    return CompiledRule(rule, rule.host_rule(), methods, _pattern(path, rule.deny), conditions)


def _pattern(path: str, deny: bool) -> re.Pattern[str]:
    """`*` is a part of a segment, alone never an empty one; `**` is any number of segments.

    What is between two `**` matches at its first place and is not tried elsewhere, because the `**` after it
    reaches every later place. So a long path costs no more than its length for each `**`.
    """
    chunks: list[list[str]] = [[]]
    gaps = [""]
    escaped = bytearray()
    pieces = _PIECE.findall(path)
    for at, piece in enumerate(pieces):
        if len(piece) == 3 and piece[0] == "%" and piece.lower() != "%2f":
            escaped.append(int(piece[1:], 16))
            continue
        chunk = chunks[-1]
        chunk.append(_literal(escaped, deny))
        if piece in ("/**/", "**"):
            chunk.append("/" if piece == "/**/" else "")
            chunks.append([])
            gaps.append("(?:.*?/)??" if piece == "/**/" else ".*?")
        elif piece == "*":
            begins = at > 0 and pieces[at - 1].endswith("/")
            alone = begins and (at + 1 == len(pieces) or pieces[at + 1].startswith("/"))
            chunk.append("[^/]+?" if alone else "[^/]*?")
        elif piece.lower() == "%2f":
            chunk.append(f"[/{LETTER}]")
        else:
            chunk.append(re.escape(alike(piece) if deny else piece))
    chunks[-1].append(_literal(escaped, deny))
    parts = [gap + "".join(chunk) for gap, chunk in zip(gaps, chunks, strict=True)]
    middle = "".join(f"(?>{part})" for part in parts[1:-1])
    return re.compile(parts[0] + middle + "".join(parts[1:][-1:]), re.DOTALL)


def _literal(escaped: bytearray, deny: bool) -> str:
    text = escaped.decode("utf-8", "replace")
    escaped.clear()
    return re.escape(alike(text) if deny else text)
