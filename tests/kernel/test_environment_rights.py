"""An agent's tools with fewer rights than usual: root without capabilities, and an ordinary user."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.in_a_child import python

pytestmark = pytest.mark.both_users

NO_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
ONLY_FILES_ARE_OTHERS = [
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search,-fowner",
    "--inh-caps=-dac_override,-dac_read_search,-fowner",
]

#: What the file tools answer in a directory with closed places in it.
FILE_TOOLS = """
    import json
    from staddle import LocalEnvironment
    env = LocalEnvironment({place!r}, ["**"])
    found = {{}}
    for name, attempt in {{
        "write a new file": lambda: env.write_file("new/a", "x"),
        "write over a file": lambda: env.write_file("open", "x"),
        "read": lambda: env.read_file("open"),
        "write in a closed directory": lambda: env.write_file("closed/a", "x"),
        "make a directory in a closed one": lambda: env.write_file("closed/b/c", "x"),
        "write over a closed file": lambda: env.write_file("sealed", "x"),
        "read a closed file": lambda: env.read_file("secret"),
        "remove from a closed directory": lambda: env.remove_file("closed/old"),
        "list": lambda: env.glob("**"),
        "leave": lambda: env.read_file("../outside"),
        "follow": lambda: env.read_file("link"),
    }}.items():
        try:
            found[name] = attempt()
        except Exception as error:
            found[name] = type(error).__name__
    print(json.dumps(found))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    (made / "closed").mkdir(parents=True)
    for name in ("open", "sealed", "secret", "closed/old"):
        (made / name).write_text("old")
    (tmp_path / "outside").write_text("outside")
    (made / "link").symlink_to("../outside")
    (made / "sealed").chmod(0o444)
    (made / "secret").chmod(0o000)
    (made / "closed").chmod(0o555)
    return made


def expected() -> dict[str, object]:
    return {
        "write a new file": None,
        "write over a file": None,
        "read": "x",
        "write in a closed directory": "PermissionError",
        "make a directory in a closed one": "PermissionError",
        "write over a closed file": "PermissionError",
        "read a closed file": "PermissionError",
        "remove from a closed directory": "PermissionError",
        "list": ["closed", "closed/old", "link", "new", "new/a", "open", "sealed", "secret"],
        "leave": "PathEscape",
        "follow": "PathEscape",
    }


def unchanged(place: Path) -> bool:
    (place / "secret").chmod(0o600)
    closed = [(place / name).read_text() for name in ("sealed", "secret", "closed/old")]
    return closed == ["old"] * 3 and os.listdir(place / "closed") == ["old"]


@pytest.mark.needs_root
@pytest.mark.parametrize(
    "around", [NO_CAPABILITIES, ONLY_FILES_ARE_OTHERS], ids=["none", "not those of files"]
)
def test_root_without_capabilities_meets_ordinary_permission_errors(place: Path, around: list[str]) -> None:
    assert json.loads(python(FILE_TOOLS.format(place=str(place)), around=around)) == expected()
    assert unchanged(place)


def test_a_user_meets_the_same_and_root_with_all_rights_does_not(place: Path) -> None:
    found = json.loads(python(FILE_TOOLS.format(place=str(place))))
    if os.geteuid() == 0:
        refused = [name for name, answer in found.items() if answer == "PermissionError"]
        assert refused == [], "the control: nothing but the missing capability refuses root"
        return
    assert found == expected()
    assert unchanged(place)


@pytest.mark.needs_root
def test_root_without_capabilities_starts_nothing_that_would_be_root(place: Path) -> None:
    """No backend can become another user then: the command is refused, or run with the gap recorded."""
    code = f"""
        from staddle import LocalEnvironment
        from staddle.errors import BackendUnavailable, PolicyNotEnforceable
        for backend in ("auto", "bwrap", "landlock"):
            try:
                LocalEnvironment({str(place)!r}, ["**"], backend=backend).exec_command("touch", ["ran"])
            except (BackendUnavailable, PolicyNotEnforceable) as refusal:
                assert "capabilities" in str(refusal), refusal
            else:
                raise SystemExit(backend + " ran it")
        assert not os.path.exists({str(place / "ran")!r})
        recorded = LocalEnvironment({str(place)!r}, ["**"], on_unavailable="record")
        assert recorded.enforced.backend == "landlock"
        assert "root" in [gap.protection for gap in recorded.enforced.gaps]
        assert recorded.exec_command("touch", ["ran"]).exit_code == 0
        print(os.path.exists({str(place / "ran")!r}))
    """
    assert python(code, around=NO_CAPABILITIES) == "True"
