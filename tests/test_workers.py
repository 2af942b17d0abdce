"""`--workers`: tests run in forks, and are reported as if they ran here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFTEST = """
import os
from tests.conftest import pytest_addoption, pytest_runtestloop
import pytest

@pytest.fixture(scope="session")
def once():
    yield os.getpid()
    with open("ends", "a") as file:
        file.write(f"{os.getpid()}\\n")
"""
FIRST = """
import os, signal, warnings
import pytest

def test_says_why(once):
    print("in", os.getpid())
    assert once == 7

def test_warns(once): warnings.warn("careful")
def test_ends_its_worker(once): os.kill(os.getpid(), signal.SIGKILL)
def test_comes_after_it(once, tmp_path): assert once == os.getpid()
@pytest.mark.skip(reason="of no use")
def test_is_skipped(): pass
@pytest.fixture
def broken():
    yield
    raise ValueError("torn down")
def test_is_not_cleaned_up(broken): pass
"""
OTHER = "import os\ndef test_passes(once): assert os.getppid() == int(os.environ['PARENT'])\n"


def run(place: Path, *words: str) -> str:
    code = (
        "import os, sys, pytest; os.environ['PARENT'] = str(os.getpid()); sys.exit(pytest.main(sys.argv[1:]))"
    )
    options = ["-c", os.devnull, "--rootdir", str(place), "-p", "no:cacheprovider", "-ra", "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-c", code, *options, *words, str(place)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/src", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_first.py").write_text(FIRST)
    for name in ("b", "c", "d"):
        (tmp_path / f"test_{name}.py").write_text(OTHER)
    return tmp_path


def test_whatever_becomes_of_a_test_is_reported(place: Path) -> None:
    said = run(place)
    assert "2 failed, 6 passed, 1 skipped, 1 warning, 1 error" in said
    assert "FAILED test_first.py::test_says_why - assert" in said
    assert "Captured stdout call" in said
    assert "test_ends_its_worker - its worker has ended with -9" in said
    assert "UserWarning: careful" in said
    assert ": of no use" in said
    assert "ValueError: torn down" in said
    ends = (place / "ends").read_text().split()
    assert len(ends) == len(set(ends)) == 2, "each worker that was not killed cleans up, once"


def test_after_the_first_failure_nothing_more_is_begun(place: Path) -> None:
    said = run(place, "-x")
    assert "1 failed" in said
    assert "test_ends_its_worker" not in said
