"""Values that must not be seen are not, however a stream is cut and whatever is shown."""

from __future__ import annotations

import base64
import html
import json
import pickle
import shlex
import urllib.parse

from staddle import Policy, Secret
from staddle.errors import CommandNotFound, CommandTimeout
from staddle.events import Event
from staddle.observe.redaction import NONE, RedactedTail, Redactor, Secrets, secret_values, secrets_of
from staddle.policy.compiler import compile
from staddle.policy.plan import Variable

KEY = b"sk-0123456789"


def redacted(values: list[bytes], *chunks: bytes) -> bytes:
    redactor = Redactor(values)
    return b"".join([*map(redactor.feed, chunks), redactor.finish()])


def test_what_is_certain_is_not_held_back() -> None:
    redactor = Redactor([KEY])
    assert redactor.feed(b"line\nsk-x") == b"line\nsk-x"
    assert redactor.feed(b"s") == b""
    assert redactor.feed(b"o") == b"so"


def test_an_empty_value_hides_nothing() -> None:
    assert redacted([b"a", b""], b"banana") == b"b(hidden)n(hidden)n(hidden)"
    assert redacted([], b"anything") == b"anything"


def test_the_tail_counts_what_was_still_held_when_the_stream_was_cut_off() -> None:
    kept = RedactedTail(5, [KEY])
    kept.feed(b"abc" + KEY[:6])
    assert (kept.value(), kept.dropped, kept.total) == (b"k-012", 4, 9)


def test_declared_names_are_secret_and_those_that_look_like_it() -> None:
    layers = [
        {"API_KEY": "0123456789", "PLAIN": "visible text", "AUTH": "1", "CERT": "first\nsecond\n"},
        {"DB": "postgres://u:password@host/db", "EMPTY_TOKEN": "", "MINE": " x "},
    ]
    assert secret_values(layers, ["CERT", "MINE", "NOT_SET"]) == (
        "0123456789",
        "first\nsecond",
        "postgres://u:password@host/db",
        "x",
    )


def test_errors_and_events_are_stripped_also_of_a_value_as_python_spells_it() -> None:
    secrets = Secrets(["it's\na key", "täxt"])
    key = "it's\na key"
    error = CommandNotFound(f"there is no {key!r}", why="täxt", fix=key)
    secrets.strip(error)
    assert error.args == (error.what, error.why, error.fix)
    assert "a key" not in str(error) + repr(error)
    assert (error.why, error.fix, error.status) == ("(hidden)", "(hidden)", 127)
    event = Event("violation", "/srv/täxt/.bashrc", "a rule", "täxt\udcff")
    assert secrets.event(event) == Event("violation", "/srv/(hidden)/.bashrc", "a rule", "(hidden)\udcff")


def test_without_secrets_nothing_changes() -> None:
    error, event = CommandTimeout("what", why="why"), Event("note", "what", "rule")
    Secrets(()).strip(error)
    assert (str(error), Secrets(()).event(event), Secrets(()).text("x")) == ("what: why", event, "x")


def test_a_plan_does_not_show_them_when_it_is_printed() -> None:
    secret, plain = Variable("API_KEY", "0123456789", "env", True), Variable("CI", "1", "env")
    assert "0123456789" not in repr((secret,))
    assert "'1'" in repr(plain)
    assert secret.value == "0123456789"


def test_the_usual_spellings_are_found_also_as_a_part() -> None:
    value = "sk-0123456789/+'ü x"
    secrets = Secrets([value])
    data = value.encode()
    spelled = [
        json.dumps(value),
        json.dumps(value, ensure_ascii=False),
        repr(value),
        ascii(value),
        html.escape(value),
        shlex.quote(value),
        urllib.parse.quote(value),
        urllib.parse.quote_plus(value),
        data.hex(),
        base64.b64encode(data).decode(),
        base64.urlsafe_b64encode(data).decode(),
    ]
    for text in spelled:
        assert secrets.text(f"[{text}]").strip("[]\"'") == "(hidden)"
    for before in (b"u", b"u:", b"us:"):
        found = secrets.bytes(base64.b64encode(before + data + b" and more"))
        assert b"(hidden)" in found
        assert base64.b64encode(data)[8:16] not in found


def test_a_long_value_is_found_in_wrapped_base64_and_by_its_lines() -> None:
    body = "\n".join("abcdefghijklmnopqrstuvwxyz0123456789" for _ in range(4))
    secrets = Secrets([f"-----BEGIN KEY-----\n{body}\n-----END KEY-----"])
    assert secrets.text("  abcdefghijklmnopqrstuvwxyz0123456789") == "  (hidden)"
    wrapped = base64.encodebytes(secrets.values[0] + b"\n").decode()
    assert "YWJj" not in secrets.text(wrapped)


def test_what_a_terminal_releases_early_is_followed_by_the_mark() -> None:
    redactor = Redactor([KEY])
    assert redactor.feed(b"x " + KEY[:6]) + redactor.release() == b"x " + KEY[:6]
    assert redactor.feed(KEY[6:8]) + redactor.release() == KEY[6:8]
    assert redactor.feed(KEY[8:] + b" y") == b"(hidden) y"
    assert redactor.feed(KEY[:3]) + redactor.release() == KEY[:3]
    assert redactor.feed(b" no") + redactor.finish() == b" no"


def test_a_secret_hides_in_its_repr_only_and_makes_policies_differ() -> None:
    assert (str(Secret("a")), repr(Secret("a")), f"{Secret('a')}") == ("a", "Secret('(hidden)')", "a")
    plain, secret = Policy(env={"A": "a"}), Policy(env={"A": Secret("a")})
    assert plain != secret
    assert secret == Policy(env={"A": Secret("a")})
    assert "'a'" not in repr(secret.env)
    assert pickle.loads(pickle.dumps(secret)) == secret  # noqa: S301 - our own


def test_a_plan_without_secrets_has_none_and_one_that_redacts_nothing_says_so() -> None:
    assert secrets_of(compile(Policy())) is NONE
    assert secrets_of(compile(Policy(redact=False, env={"A": Secret("a")}))) is None
    found = secrets_of(compile(Policy(redact=["B"], env={"A": Secret("a"), "B": "b", "C": "c"})))
    assert found is not None
    assert found.values == (b"a", b"b")
