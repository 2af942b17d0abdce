"""Secrets: declared values, and names and values that look like secrets. Pure."""

from __future__ import annotations


class Secret(str):
    """A value that results, streams, events, messages and logs hide: `env={"TOKEN": Secret(token)}`.

    It is ordinary text, and programs inside see it unchanged; only its `repr` hides it.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret('(hidden)')"


#: A variable is a secret if one of these is a word of its name...
SECRET_WORDS = frozenset({"AUTH", "COOKIE", "KEY", "PASS", "PASSPHRASE", "PAT", "PRIVATE"})
#: ... or if one of these is a part of its name ...
SECRET_PARTS = ("APIKEY", "CREDENTIAL", "PASSWD", "PASSWORD", "SECRET", "TOKEN")
#: ... or if it has one of these names.
SECRET_NAMES = frozenset({"MYSQL_PWD"})
#: Values with these prefixes and at least this length are keys, regardless of the name.
SHORTEST_KEY = 16
SECRET_VALUES = (
    *("-----BEGIN ", "AKIA", "ASIA", "AGE-SECRET-KEY-", "eyJhbGciOi", "AIza", "SG.", "ya29."),
    *("sk-", "sk_live_", "sk_test_", "rk_live_", "pk_live_", "hf_", "npm_", "pypi-", "dop_v1_", "glpat-"),
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "xoxa-", "xoxb-", "xoxp-", "xoxs-"),
)


def is_secret(name: str, value: str = "") -> bool:
    """Whether a variable looks like a secret."""
    upper = name.upper()
    if upper in SECRET_NAMES or any(part in upper for part in SECRET_PARTS):
        return True
    if not SECRET_WORDS.isdisjoint(upper.replace("-", "_").split("_")):
        return True
    if value.startswith(SECRET_VALUES) and len(value) >= SHORTEST_KEY:
        return True
    # postgres://user:password@host
    scheme, found, rest = value.partition("://")
    return bool(found) and " " not in scheme and "@" in rest.partition("/")[0]
