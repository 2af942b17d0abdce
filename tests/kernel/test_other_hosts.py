"""On a host that refuses, doctor names the true cause and nothing runs with less than was asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_a_child import captured

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"
ROOT = os.geteuid() == 0
BWRAP = "/usr/bin/bwrap"
NAMESPACED = ("namespaces", "bwrap")


def on_host(
    *traits: str, words: list[str], cwd: Path, before: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        str(HERE.parent / "support/other_hosts.py"),
        *traits,
        "--",
        sys.executable,
        "-m",
        "staddle",
        *words,
    ]
    return captured(
        [*(before or []), *command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdin=subprocess.DEVNULL,
        timeout=200,
    )


def diagnosis(*traits: str, cwd: Path, before: list[str] | None = None) -> tuple[dict[str, Any], int]:
    done = on_host(*traits, words=["doctor", "--json"], cwd=cwd, before=before)
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.returncode


def runs(
    *traits: str, cwd: Path, words: list[str] | None = None, before: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    return on_host(*traits, words=["run", *(words or []), "--", "echo", "it ran"], cwd=cwd, before=before)


@pytest.mark.slow
def test_the_control_this_host_confines(tmp_path: Path) -> None:
    found, status = diagnosis(cwd=tmp_path)
    assert (found["auto"], status) == ("namespaces", 0)
    assert runs(cwd=tmp_path).stdout == "it ran\n"


@pytest.mark.slow
def test_namespaces_refused_by_a_filter(tmp_path: Path) -> None:
    found, status = diagnosis("no-namespaces", cwd=tmp_path)
    for name in NAMESPACED:
        backend = found["backends"][name]
        assert not backend["usable"]
        assert "seccomp" in backend["why"]
        assert backend["fix"]
        assert runs("no-namespaces", cwd=tmp_path, words=["--backend", name]).returncode == 125
    assert found["auto"] is None
    done = runs("no-namespaces", cwd=tmp_path)
    assert done.returncode == 125
    assert "it ran" not in done.stdout
    landlock = found["backends"]["landlock"]
    # Root becomes somebody else without a mount namespace, too: it only cannot give that user its files.
    assert landlock["usable"]
    assert status == 0
    assert "--backend landlock" in done.stderr
    assert done.stderr.endswith("export STADDLE_NESTED=1\n")
    anybody = Path("/")  # pytest's directory is only root's
    assert runs("no-namespaces", cwd=anybody, words=["--backend", "landlock"]).stdout == "it ran\n"
    assert runs("no-namespaces", cwd=anybody, words=["--nested"]).stdout == "it ran\n"


@pytest.mark.slow
def test_a_masked_proc_is_named(tmp_path: Path) -> None:
    found, _ = diagnosis("masked-proc", cwd=tmp_path)
    # Root of the machine may mount a new /proc whatever is covered in the old one, and our helper does.
    for name in ("bwrap",) if ROOT else NAMESPACED:
        backend = found["backends"][name]
        assert not backend["usable"]
        assert "/proc" in backend["why"]
        assert "it ran" not in runs("masked-proc", cwd=tmp_path, words=["--backend", name]).stdout
    assert found["auto"] == ("namespaces" if ROOT else None)
    assert ("it ran" in runs("masked-proc", cwd=tmp_path).stdout) == ROOT


@pytest.mark.slow
@pytest.mark.parametrize("how", ["absent", "disabled"])
def test_landlock_switched_off(how: str, tmp_path: Path) -> None:
    found, status = diagnosis(f"no-landlock={how}", cwd=tmp_path)
    landlock = found["backends"]["landlock"]
    assert not landlock["usable"]
    assert "Landlock" in landlock["why"]
    assert (found["auto"], status) == ("namespaces", 0)
    done = runs(f"no-landlock={how}", cwd=tmp_path, words=["--backend", "landlock"])
    assert done.returncode == 125
    assert "it ran" not in done.stdout
    assert runs(f"no-landlock={how}", cwd=tmp_path).stdout == "it ran\n"


def test_nothing_left_to_confine_with(tmp_path: Path) -> None:
    found, status = diagnosis("no-namespaces", "no-landlock", cwd=tmp_path)
    assert not found["can_confine"]
    assert status == 1
    done = runs("no-namespaces", "no-landlock", cwd=tmp_path, words=["--best-effort"])
    assert done.returncode == 125
    assert "it ran" not in done.stdout


def test_no_bwrap(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    found, _ = diagnosis(f"replaced={BWRAP}:{empty}", cwd=tmp_path)
    assert not found["backends"]["bwrap"]["usable"]
    assert found["auto"] == "namespaces"
    assert (
        "it ran" not in runs(f"replaced={BWRAP}:{empty}", cwd=tmp_path, words=["--backend", "bwrap"]).stdout
    )


LIES = {
    "runs nothing": "#!/bin/sh\nexit 0\n",
    "runs the command unconfined": '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n',
    "repeats what it is told": '#!/bin/sh\ncat\nprintf "%s\\n" "$@"\n',
    "fails": "#!/bin/sh\necho broken >&2; exit 1\n",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_bwrap_that_lies_is_found_out(lie: str, tmp_path: Path) -> None:
    fake = tmp_path / "fake-bwrap"
    fake.write_text(lie)
    fake.chmod(0o755)
    trait = f"replaced={BWRAP}:{fake}"
    found, _ = diagnosis(trait, cwd=tmp_path)
    assert not found["backends"]["bwrap"]["usable"], found["backends"]["bwrap"]
    done = runs(trait, cwd=tmp_path, words=["--backend", "bwrap"])
    assert "it ran" not in done.stdout
    assert done.returncode == 125


@pytest.mark.needs_root
def test_root_without_capabilities_is_refused(tmp_path: Path) -> None:
    """Real uid 0 is never mapped: without the means to become another user nothing starts by itself."""
    bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    found, _ = diagnosis(cwd=tmp_path, before=bare)
    assert found["auto"] is None
    for name in NAMESPACED:
        assert not found["backends"][name]["usable"]
        assert "capabilit" in found["backends"][name]["why"].lower()
    assert "root" in [gap["protection"] for gap in found["backends"]["landlock"]["gaps"]]
    for words in ([], ["--backend", "landlock"]):
        done = runs(cwd=tmp_path, before=bare, words=words)
        assert done.returncode == 125
        assert "it ran" not in done.stdout
    assert "it ran" in runs(cwd=tmp_path, before=bare, words=["--nested"]).stdout


@pytest.mark.slow
def test_without_seccomp_nothing_is_started(tmp_path: Path) -> None:
    found, status = diagnosis("no-seccomp-filters", cwd=tmp_path)
    assert status == 1
    assert not found["can_confine"]
    assert "filter" in found["backends"]["namespaces"]["why"]
    assert "it ran" not in runs("no-seccomp-filters", cwd=tmp_path).stdout


def test_with_an_open_network_a_kernel_without_landlock_is_a_gap(tmp_path: Path) -> None:
    """Abstract sockets belong to the network namespace, which is the host's then."""
    words = ["--network", "open"]
    refused = runs("no-landlock", cwd=tmp_path, words=words)
    assert refused.returncode == 125
    assert "abstract" in refused.stderr
    named = runs("no-landlock", cwd=tmp_path, words=[*words, "--backend", "namespaces"])
    assert named.stdout == "it ran\n"


@pytest.mark.slow
def test_where_our_own_namespaces_lack_something_the_next_backend_is_taken(tmp_path: Path) -> None:
    """The command line notices when the start fails, and chooses again, from where it was."""
    (tmp_path / "here").write_text("")
    found, _ = diagnosis("no-move-mount", cwd=tmp_path)
    assert not found["backends"]["namespaces"]["usable"]
    assert "move_mount" in found["backends"]["namespaces"]["why"]
    assert found["auto"] == "bwrap"
    words = ["run", "--json", "--", "ls"]
    done = on_host("no-move-mount", words=words, cwd=tmp_path)
    if ROOT:  # who is not root inside needs them to be shown what root owns
        assert done.returncode == 125
        return
    report = json.loads(done.stdout)
    assert (report["backend"], report["stdout"]) == ("bwrap", "here\n")
    assert on_host("no-move-mount", words=["run", "--", "ls"], cwd=tmp_path).stdout == "here\n"


@pytest.mark.slow
def test_a_kernel_that_is_too_old_is_named_by_every_backend_that_needs_a_newer_one(tmp_path: Path) -> None:
    found, _ = diagnosis("no-mount-attributes", cwd=tmp_path)
    for name in ("namespaces", "bwrap"):
        assert not found["backends"][name]["usable"]
        assert "older than 5.12" in found["backends"][name]["why"]
    refused = on_host("no-mount-attributes", words=["run", "--", "ls"], cwd=tmp_path)
    assert refused.returncode == 125
    assert "5.12" in refused.stderr
