"""The public names of `staddle` are exactly these, and each says what it is: a docstring, and types."""

from __future__ import annotations

import inspect
import re
import types

import pytest

import staddle
from staddle.sandbox.aio.session import AsyncSession, AsyncStream
from staddle.sandbox.session import Session
from staddle.sandbox.stream import Stream

#: The contract. A name is added here on purpose, and goes only with a line in CHANGELOG.md.
PUBLIC = (
    "AsyncPool",
    "AsyncReview",
    "AsyncSandbox",
    "Change",
    "CommandResult",
    "EgressRequest",
    "EgressSecret",
    "Enforcement",
    "Event",
    "ExecutionEnvironment",
    "Gap",
    "HistoryPoint",
    "HttpLimit",
    "HttpRule",
    "Identity",
    "Interpreter",
    "Jail",
    "Limits",
    "LocalEnvironment",
    "Merge",
    "Network",
    "Plan",
    "Policy",
    "PolicyNotEnforceable",
    "Pool",
    "Reason",
    "Result",
    "Review",
    "RunOpts",
    "Sandbox",
    "Secret",
    "Snapshot",
    "StaddleError",
    "Task",
    "Workspace",
    "WrappedCommand",
    "connect",
    "connect_async",
    "default_policy",
    "doctor",
    "kept_sandboxes",
    "new_jail",
    "remove_kept",
    "wrap",
)

#: The public names of what a user holds, in the same way; those of a sandbox are its awaited face's, too.
SANDBOX = """
alive at best_of bisect blame close code commit connect diff discard download_tar drift enforced
environment events exec expose extend files fork from_snapshot frozen history id interrupt keep_downloads
kill labels learned merge name packages pause plan policy processes ps python redo refusals requests reset
restore resume review run session set_network set_timeout snapshot snapshots start state stream terminal
undo upload_tar usage use_downloads violations
"""
SESSION = "close interrupt name restart run state stream"
RESULT = """
as_dict changes check command cwd duration errno exit_code ok reason replace shell_exited signal stderr
stderr_bytes stderr_bytes_dropped stderr_cut stderr_parts stderr_spill stderr_truncated stdout stdout_bytes
stdout_bytes_dropped stdout_cut stdout_parts stdout_spill stdout_truncated text timed_out usage violations why
"""


def names(value: type) -> set[str]:
    """The public names of a class, with the attributes that its `__init__` sets."""
    source = inspect.getsource(vars(value).get("__init__", value))
    set_here = set(re.findall(r"self\.(\w+)(?::[^=]*)? = ", source))
    found = {*dir(value), *getattr(value, "_fields", ()), *set_here}
    return {name for name in found if not name.startswith("_")}


def methods(value: type) -> dict[str, object]:
    """The public methods and properties of a class, its bases included, and `__init__`."""
    found: dict[str, object] = {}
    for base in reversed(value.__mro__):
        if base.__module__.startswith("staddle"):
            for name, item in vars(base).items():
                if name == "__init__" or not name.startswith("_"):
                    found[name] = item
    return found


def plain(item: object) -> object:
    """The function of a method, a property or a class method; anything else as it is."""
    if isinstance(item, property):
        return item.fget
    return item.__func__ if isinstance(item, classmethod | staticmethod) else item


def untyped(function: object) -> list[str]:
    """The parameters of a function that have no annotation, and `return` if that has none."""
    if not isinstance(function, types.FunctionType) or not function.__module__.startswith("staddle"):
        return []
    signature = inspect.signature(function)
    given = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    found = [each.name for each in given if each.annotation is each.empty]
    return found + (["return"] if signature.return_annotation is signature.empty else [])


def test_the_public_names_are_the_contract() -> None:
    assert tuple(staddle.__all__) == PUBLIC
    assert set(PUBLIC) <= set(dir(staddle))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_a_docstring(name: str) -> None:
    value = getattr(staddle, name)
    assert inspect.getdoc(value)
    if isinstance(value, type):
        for method, item in methods(value).items():
            function = plain(item)
            if isinstance(function, types.FunctionType) and method != "__init__":
                assert inspect.getdoc(function), f"{name}.{method} has no docstring"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_typed(name: str) -> None:
    value = getattr(staddle, name)
    functions = methods(value) if isinstance(value, type) else {name: value}
    assert {key: missing for key, item in functions.items() if (missing := untyped(plain(item)))} == {}


def test_the_package_shadows_no_public_function() -> None:
    """A submodule of the same name would take its place once it is imported."""
    for name in PUBLIC:
        assert not isinstance(getattr(staddle, name), types.ModuleType)


def test_what_a_user_holds_has_exactly_these_names() -> None:
    assert names(staddle.Sandbox) == {*SANDBOX.split(), "check"}
    assert names(staddle.AsyncSandbox) == {*SANDBOX.split()}
    assert names(Session) == {*SESSION.split()}
    assert names(AsyncSession) == {*SESSION.split()}
    assert names(staddle.Result) == {*RESULT.split()}
    for stream in (Stream, AsyncStream):
        assert {"close", "result"} <= names(stream)
