"""Policies against a reference that knows nothing of how they are compiled."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staddle import Limits, Network, Plan, Policy
from staddle.errors import PathEscape, PolicyError
from staddle.hostnames import canonical, parse
from staddle.paths import declared
from staddle.policy.compiler import compile as compile_policy
from staddle.policy.limits import parse_size

RANK = {"none": 0, "read": 1, "write": 2}
PROTECTED = {".vscode", ".claude"}

plain = st.sampled_from(["a", "b", "c-", "c"])
any_name = st.sampled_from(["a", "b", "c", ".vscode", ".claude"])


def paths(name: st.SearchStrategy[str], deepest: int = 4) -> st.SearchStrategy[str]:
    return st.lists(name, min_size=1, max_size=deepest).map("/".join)


@contextlib.contextmanager
def tree(places: set[str], links: dict[str, str] | None = None) -> Iterator[str]:
    root = os.path.realpath(tempfile.mkdtemp())
    try:
        for place in places:
            Path(root, place).mkdir(parents=True, exist_ok=True)
        for link, target in (links or {}).items():
            with contextlib.suppress(OSError):
                Path(root, link).symlink_to(target if target.startswith("..") else f"{root}/{target}")
        yield root
    finally:
        shutil.rmtree(root)


def covers(above: str, path: str) -> bool:
    return path == above or path.startswith(above + "/")


def seen(plan: Plan, path: str) -> str:
    """What the plan lets be done with the host's own `path`; private directories are not the host's."""
    innermost = max((item.path for item in plan.scratch if covers(item.path, path)), key=len, default="")
    if any(len(grant.path) >= len(innermost) and covers(grant.path, path) for grant in plan.grants):
        return plan.access(path)
    return "none"


def expected(path: str, read: set[str], write: set[str], deny: set[str]) -> str:
    if any(covers(item, path) for item in deny):
        return "none"
    if any(covers(item, path) for item in write):
        return "write"
    return "read" if any(covers(item, path) for item in read) else "none"


def compiled(root: str, read: set[str], write: set[str], deny: set[str]) -> Plan:
    return compile_policy(Policy(read, write, deny, system=False), base=root, cwd="/", home=root)


some = st.sets(paths(plain), max_size=5)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(places=some, read=some, write=some, deny=some, asked=st.sets(paths(plain, 5), max_size=10))
def test_a_plan_allows_exactly_what_the_rules_say(
    places: set[str], read: set[str], write: set[str], deny: set[str], asked: set[str]
) -> None:
    with tree(places | read | write) as root:
        plan = compiled(root, read, write, deny)
        for path in places | read | write | deny | asked:
            assert seen(plan, f"{root}/{path}") == expected(path, read, write, deny), path


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(places=st.sets(paths(any_name), max_size=8), write=st.sets(paths(any_name, 3), max_size=4), deny=some)
def test_protected_names_are_readable_only_and_opened_by_naming_them(
    places: set[str], write: set[str], deny: set[str]
) -> None:
    with tree(places | write) as root:
        plan = compiled(root, set(), write, deny)
        there = [str(path.relative_to(root)) for path in Path(root).rglob("*")]
        for path in there:
            answer = expected(path, set(), write, deny)
            granted = [item for item in write if covers(item, path)]
            if answer == "write" and not any(item.rpartition("/")[2] in PROTECTED for item in granted):
                below = path[len(max(granted, key=len)) :].split("/")
                answer = "read" if PROTECTED & set(below) else "write"
            assert seen(plan, f"{root}/{path}") == answer, path


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    places=some,
    links=st.dictionaries(
        paths(plain, 3), paths(plain, 3) | st.sampled_from(["..", "../a", "../../b"]), max_size=4
    ),
    read=some,
    write=st.sets(paths(plain), max_size=2),
    deny=some,
)
def test_links_lead_where_the_kernel_says_or_nowhere_at_all(
    places: set[str], links: dict[str, str], read: set[str], write: set[str], deny: set[str]
) -> None:
    with tree(places, links) as root:
        real = {path: os.path.realpath(f"{root}/{path}") for path in read | write | deny}
        missing = [path for path in read | write if not os.path.exists(f"{root}/{path}")]
        outside = [path for path in real.values() if not covers(root, path) or path == root]
        try:
            plan = compiled(root, read, write, deny)
        except PathEscape:
            assert any(real[path] != f"{root}/{path}" for path in read | write)
            return
        except PolicyError:
            assert missing or outside
            return
        assert not missing
        rules = [{real[path] for path in field} for field in (read, write, deny)]
        for directory, names, _ in os.walk(root):
            for name in names:
                path = f"{directory}/{name}"
                if not os.path.islink(path) and covers(root, path):
                    assert seen(plan, path) == expected(path, *rules), path
        for path in read | write:
            planted = f"{root}/{path}"
            while planted != root:
                if os.path.islink(planted):
                    parent = os.path.realpath(os.path.dirname(planted))
                    assert not any(covers(item, parent) for item in rules[1]), planted
                planted = os.path.dirname(planted)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(places=some, read=some, write=some, deny=some, more=paths(plain, 5), seed=st.integers())
def test_order_is_neutral_and_a_deny_never_widens(
    places: set[str], read: set[str], write: set[str], deny: set[str], more: str, seed: int
) -> None:
    shuffled = [list(field) * 2 for field in (read, write, deny)]
    for field in shuffled:
        random.Random(seed).shuffle(field)  # noqa: S311
    assert Policy(read, write, deny) == Policy(*shuffled)
    with tree(places | read | write) as root:
        plan = compiled(root, read, write, deny)
        assert plan == compile_policy(Policy(*shuffled, system=False), base=root, cwd="/", home=root)
        narrower = compiled(root, read, write, deny | {more})
        for path in places | read | write | deny | {more, f"{more}/x"}:
            before, after = seen(plan, f"{root}/{path}"), seen(narrower, f"{root}/{path}")
            assert RANK[after] <= RANK[before], path
        assert seen(narrower, f"{root}/{more}") == "none"


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(read=some, write=some, deny=some)
def test_a_plan_has_no_rule_that_another_one_makes_needless(
    read: set[str], write: set[str], deny: set[str]
) -> None:
    with tree(read | write) as root:
        plan = compiled(root, read, write, deny)
        paths_of = [grant.path for grant in plan.grants]
        assert len(set(paths_of)) == len(paths_of)
        for grant in plan.grants:
            others = [other for other in plan.grants if other is not grant and covers(other.path, grant.path)]
            assert all(other.access == "read" and grant.access == "write" for other in others)
            assert not any(covers(item.path, grant.path) for item in plan.hidden)
        for item in plan.hidden:
            assert any(covers(path, item.path) and path != item.path for path in paths_of)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40) | st.binary(max_size=40))
def test_any_text_is_a_path_with_one_spelling_or_a_sentence(text: str | bytes) -> None:
    try:
        kept = declared(text, "read")
    except PolicyError:
        return
    assert declared(kept, "read") == kept
    assert ".." not in kept.split("/")
    assert "\0" not in kept


host_text = st.text(
    st.sampled_from("aZ09.-_*:/[]!@%,xé。\0 \n") | st.characters(max_codepoint=0x3FF), max_size=20
)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(
    host_text
    | st.from_regex(r"!?(udp://)?(\*\.)?[a-z0-9.-]{1,12}(/[0-9]{1,3})?(:[0-9,]{1,8})?", fullmatch=True)
)
def test_any_text_is_a_host_with_one_spelling_or_a_sentence(text: str) -> None:
    try:
        rule = parse(text)
    except PolicyError:
        pass
    else:
        assert parse(str(rule)) == rule
        assert str(rule).isascii()
    assert Network.allow("example.com").permits(text, 443) == (_canonical(text) == "example.com")


def _canonical(text: str) -> str | None:
    try:
        name = canonical(text)
    except PolicyError:
        return None
    assert canonical(name) == name
    return name


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=12))
def test_any_text_is_a_size_or_a_sentence(text: str) -> None:
    try:
        assert parse_size(text) >= 0
        assert Limits(memory=text).memory
    except PolicyError:
        pass


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=60)
    | st.lists(
        st.sampled_from(
            [
                "read",
                "write",
                "=",
                "[",
                "]",
                '"/a"',
                '"${HOME}"',
                "\n",
                "[network]",
                "[limits]",
                "mode",
                "1",
                "true",
                '"open"',
                "allow",
                "[env]",
                "nan",
                "memory",
                "preset",
                '"agent"',
                ".",
                "{",
                "}",
                ",",
            ]
        ),
        max_size=12,
    ).map(lambda words: " ".join(words).encode())
)
def test_any_file_is_a_policy_or_a_sentence(content: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        problem = ""
        try:
            Policy.from_file(file.name)
        except PolicyError as error:
            problem = str(error)
        assert not problem or file.name in problem
