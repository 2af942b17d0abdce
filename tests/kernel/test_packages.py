"""Packages install inside, by the managers as they are, and the host has no trace of them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from staddle import Network, Policy, Sandbox, wrap
from tests.support.package_indexes import Indexes

#: A build backend of the package's own: nothing else is needed to build it. It compiles a module,
#: and tries to write where it has no business.
BACKEND = """\
import os, subprocess, sysconfig, zipfile

NAME, VERSION, ELSEWHERE = "speaker", "1.0", {elsewhere!r}
CODE = '''
#include <Python.h>
static PyObject *say(PyObject *self, PyObject *args) {{ return PyUnicode_FromString("compiled"); }}
static PyMethodDef methods[] = {{{{"say", say, METH_NOARGS, 0}}, {{0}}}};
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "speaker", 0, -1, methods}};
PyMODINIT_FUNC PyInit_speaker(void) {{ return PyModule_Create(&module); }}
'''

def _write(directory, files):
    info = NAME + "-" + VERSION + ".dist-info"
    tag = "Wheel-Version: 1.0\\nRoot-Is-Purelib: false\\nTag: py3-none-any\\n"
    about = "Metadata-Version: 2.1\\nName: " + NAME + "\\nVersion: " + VERSION + "\\n"
    files = {{**files, info + "/METADATA": about.encode(), info + "/WHEEL": tag.encode()}}
    record = "".join(name + ",,\\n" for name in (*files, info + "/RECORD"))
    wheel = NAME + "-" + VERSION + "-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, wheel), "w") as archive:
        for name, data in {{**files, info + "/RECORD": record.encode()}}.items():
            archive.writestr(name, data)
    return wheel

def build_wheel(directory, settings=None, metadata=None):
    for place in ELSEWHERE:
        try:
            with open(place, "w") as file:
                file.write("planted")
        except OSError:
            pass
    with open("speaker.c", "w") as file:
        file.write(CODE)
    include = sysconfig.get_paths()["include"]
    subprocess.run(["gcc", "-shared", "-fPIC", "-I" + include, "speaker.c", "-o", "speaker.so"], check=True)
    with open("speaker.so", "rb") as file:
        return _write(directory, {{"speaker" + sysconfig.get_config_var("EXT_SUFFIX"): file.read()}})

def build_editable(directory, settings=None, metadata=None):
    return _write(directory, {{"speaker.pth": os.getcwd().encode() + b"\\n"}})
"""
LOCAL = (".local/bin", ".local/lib")
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
HOSTS_OWN = (
    *(
        "/var/lib/dpkg/status",
        "/var/lib/apt/extended_states",
        "/etc/passwd",
        "/etc/group",
        "/etc/ld.so.cache",
    ),
    *("/usr/lib/python3/dist-packages", "/usr/local", "/usr/lib/node_modules", "/var/lib/dpkg/info"),
    *("/usr/sbin", "/usr/bin", "/var/cache/apt", "/var/log/dpkg.log", "/etc/apt"),
)


@pytest.fixture
def indexes(tmp_path: Path) -> Iterator[Indexes]:
    with Indexes(tmp_path / "indexes") as made:
        yield made


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "a workspace"
    place.mkdir(mode=0o755)
    return place


@pytest.fixture
def host() -> Iterator[None]:
    """The host's package databases, caches and installed files are the same afterwards."""
    homes = [f"{Path.home()}/{name}" for name in (".cache/pip", ".npm", ".npmrc", ".config/pip", *LOCAL)]
    before = [fingerprint(path) for path in (*HOSTS_OWN, *homes)]
    yield
    assert [fingerprint(path) for path in (*HOSTS_OWN, *homes)] == before


def fingerprint(path: str) -> object:
    """A file's content; of a directory, when each of its entries was last changed."""
    if os.path.isfile(path):
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    if not os.path.isdir(path):
        return None
    entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    return [(entry.name, entry.stat(follow_symlinks=False).st_mtime_ns) for entry in entries]


def opened(indexes: Indexes, workspace: Path | None = None) -> Sandbox:
    network = Network.loopback(ports=[indexes.port])
    sandbox = Sandbox(workspace, Policy.agent().with_network(network), backend="namespaces")
    sandbox.run(f"export PIP_INDEX_URL={indexes.url}/simple NPM_CONFIG_REGISTRY={indexes.url}")
    return sandbox


def names(sandbox: Sandbox) -> list[tuple[str, str, str]]:
    return [(package.manager, package.name, package.version) for package in sandbox.packages()]


@pytest.mark.slow
@pytest.mark.same_for_everyone
@pytest.mark.usefixtures("host")
def test_pip_installs_upgrades_and_uninstalls(indexes: Indexes, workspace: Path) -> None:
    for version in ("1.0", "2.0"):
        text = f"version = {version!r}\ndef main(): print('greetings', version)\n"
        indexes.wheel("greeter", version, {"greeter.py": text})
    indexes.wheel("other", "3.1", {"other.py": "value = 7\n"})
    (workspace / "requirements.txt").write_text("other>=3\n")
    with opened(indexes, workspace) as sb:
        sb.run("pip install greeter==1.0", check=True, timeout=120)
        assert sb.run("python3 -c 'import greeter; print(greeter.version)'").stdout == "1.0\n"
        assert sb.run("greeter").stdout == "greetings 1.0\n"
        sb.run("python3 -m pip install --upgrade greeter; pip3 install -r requirements.txt", timeout=120)
        assert sb.run("greeter; python3 -c 'import other; print(other.value)'").stdout == "greetings 2.0\n7\n"
        assert names(sb) == [("pip", "greeter", "2.0"), ("pip", "other", "3.1")]
        (fork,) = sb.fork()
        with fork:
            assert fork.run("greeter").stdout == "greetings 2.0\n"
            fork.run("pip uninstall -y greeter", check=True, timeout=120)
            assert names(fork) == [("pip", "other", "3.1")]
        assert sb.run("greeter").ok
        assert sb.diff() == []
        sb.reset()
        assert names(sb) == []
        assert sb.run("greeter").exit_code == 127


@pytest.mark.slow
@pytest.mark.usefixtures("host")
def test_pip_installs_into_an_environment_for_the_user_and_for_everybody(
    indexes: Indexes, workspace: Path
) -> None:
    indexes.wheel("greeter", "1.0", {"greeter.py": "def main(): print('greetings')\n"})
    with opened(indexes, workspace) as sb:
        sb.run("python3 -m venv --without-pip .venv", check=True, timeout=120)
        sb.run("pip --python .venv/bin/python install greeter", check=True, timeout=120)
        assert sb.run(". .venv/bin/activate; which greeter").stdout == "/workspace/.venv/bin/greeter\n"
        assert sb.run("greeter; deactivate").stdout == "greetings\n"
        assert names(sb) == [("pip", "greeter", "1.0")]
        sb.run("rm -r .venv; pip install --user greeter", check=True, timeout=120)
        assert sb.run("which greeter").stdout == "/home/user/.local/bin/greeter\n"
        sb.run("pip uninstall -y greeter", check=True, timeout=120)
        sb.run("/usr/bin/python3 -m pip install greeter", user="root", check=True, timeout=120)
        assert sb.run("which greeter; greeter").stdout == "/usr/local/bin/greeter\ngreetings\n"
        assert names(sb) == [("pip", "greeter", "1.0")]
    assert os.listdir(workspace) == []


@pytest.fixture(scope="module")
def environment_of_the_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that nobody may change. Its pip is a copy of ours, made at once."""
    made = tmp_path_factory.mktemp("environments") / "a"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    (packages,) = made.glob("lib/python*/site-packages")
    pip = distribution("pip")
    for name in ("pip", f"pip-{pip.version}.dist-info"):
        shutil.copytree(str(pip.locate_file(name)), packages / name)
    script = made / "bin/pip"
    script.write_text(
        f"#!{made}/bin/python\nfrom pip._internal.cli.main import main\nraise SystemExit(main())\n"
    )
    script.chmod(0o755)
    return made


@pytest.fixture
def environment(environment_of_the_host: Path, indexes: Indexes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An activated virtual environment of the host, in which greeter 1.0 is installed."""
    made = environment_of_the_host
    for version in ("1.0", "2.0"):
        text = f"version = {version!r}\ndef main(): import other; print('greetings', version, other.value)\n"
        indexes.wheel("greeter", version, {"greeter.py": text})
    indexes.wheel("other", "3.1", {"other.py": "value = 7\n"})
    quiet = ("--disable-pip-version-check", "--index-url", f"{indexes.url}/simple")
    subprocess.run([made / "bin/pip", "install", "-q", *quiet, "greeter==1.0"], check=True)
    monkeypatch.setenv("VIRTUAL_ENV", str(made))
    monkeypatch.setenv("PATH", f"{made}/bin:/usr/local/bin:/usr/bin:/bin")
    return made


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_pip_installs_beside_an_activated_environment_of_the_host(
    environment: Path, indexes: Indexes, workspace: Path
) -> None:
    before = sorted((path, path.lstat().st_mtime_ns) for path in environment.rglob("*"))
    with opened(indexes, workspace) as sb:
        imported = "python -c 'import greeter; print(greeter.version)'"
        assert sb.run(imported).stdout == "1.0\n", "what the host has installed is there"
        assert sb.run("python -c 'import other'").exit_code == 1
        sb.run("pip install other", check=True, timeout=120)
        assert sb.run("greeter").stdout == "greetings 1.0 7\n", "scripts of the host find what is new"
        sb.run("python -m pip install --upgrade greeter", check=True, timeout=120)
        assert sb.run(f"{imported}; greeter").stdout == "2.0\ngreetings 2.0 7\n", "the newer one comes first"
        assert names(sb) == [("pip", "greeter", "2.0"), ("pip", "other", "3.1")]
        assert (
            sb.run("echo $VIRTUAL_ENV; command -v pip").stdout
            == "/home/user/.venv\n/home/user/.venv/bin/pip\n"
        )
        sb.run("pip uninstall -y greeter", check=True, timeout=120)
        assert sb.run(imported).stdout == "1.0\n"
        sb.reset()
        assert sb.run("python -c 'import other'").exit_code == 1
    assert sorted((path, path.lstat().st_mtime_ns) for path in environment.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_single_command_installs_beside_an_environment_of_the_host(
    environment: Path, indexes: Indexes
) -> None:
    policy = Policy.agent().with_network(Network.open()).with_env(PIP_INDEX_URL=f"{indexes.url}/simple")
    command = ["sh", "-c", "pip install -q other && greeter"]
    for backend in ("namespaces", "bwrap"):
        done = wrap(command, policy, backend=backend, cwd="/").run(capture_output=True, text=True)
        assert done.stdout == "greetings 1.0 7\n", done
        assert not list(environment.glob("lib/*/site-packages/other*"))
    landlock = wrap(command, policy, backend="landlock", cwd="/")
    landlock.close()
    assert any(gap.protection == "packages" for gap in landlock.enforced.gaps), "there it is told"


@pytest.fixture
def bare_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment on the PATH, without pip."""
    made = tmp_path / "environments/a"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    monkeypatch.setenv("PATH", f"{made}/bin:/usr/local/bin:/usr/bin:/bin")
    return made


@pytest.mark.slow
def test_an_environment_that_may_be_written_is_used_itself(
    bare_environment: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = ["python", "-c", "import sys; print(sys.prefix)"]
    done = wrap(prefix, Policy.agent().with_write(str(bare_environment)), cwd="/").run(
        capture_output=True, text=True
    )
    assert done.stdout == f"{bare_environment}\n", done
    bare_environment.rename(workspace / ".venv")
    monkeypatch.setenv("PATH", f"{workspace}/.venv/bin:/usr/bin:/bin")
    with Sandbox(workspace, backend="namespaces") as sb:
        assert sb.run("python -c 'import sys; print(sys.prefix)'").stdout == "/workspace/.venv\n"
    for backend in ("namespaces", "bwrap"):
        with Sandbox(workspace, backend=backend, mode="readonly") as sb:
            found = sb.run(
                "python -c 'import sys; print(sys.prefix)'; cd ~/.venv/lib/python3* && touch x && echo new"
            )
            assert found.stdout == "/home/user/.venv\nnew\n", found


def test_a_link_in_an_environment_shows_nothing_that_is_hidden(
    bare_environment: Path, tmp_path: Path
) -> None:
    environment = bare_environment
    secret = tmp_path / "secret"
    secret.write_text(f"#!{environment}/bin/python\nsecret-of-the-host\n")
    (environment / "bin/planted").symlink_to(secret)
    (environment / "bin/open").write_bytes(secret.read_bytes())
    (environment / "pyvenv.cfg").rename(tmp_path / "cfg")
    (environment / "pyvenv.cfg").symlink_to(tmp_path / "cfg")
    script = "cat ~/.venv/bin/open; cat ~/.venv/bin/planted ~/.venv/pyvenv.cfg"
    done = wrap(["sh", "-c", script], Policy.agent(), cwd="/").run(capture_output=True, text=True)
    assert done.stdout == "#!/home/user/.venv/bin/python\nsecret-of-the-host\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
@pytest.mark.usefixtures("host")
def test_a_package_is_compiled_inside_and_writes_nowhere_else(
    indexes: Indexes, workspace: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    elsewhere = [str(outside), "/usr/lib/planted", "/etc/planted", f"{Path.home()}/planted", "/planted"]
    backend = BACKEND.format(elsewhere=elsewhere)
    indexes.sdist("speaker", "1.0", {"pyproject.toml": PROJECT, "backend.py": backend})
    with opened(indexes) as sb:
        sb.run("pip install speaker", check=True, timeout=120)
        assert sb.run("python3 -c 'import speaker; print(speaker.say())'").stdout == "compiled\n"
        assert names(sb) == [("pip", "speaker", "1.0")]
    assert not any(os.path.lexists(place) for place in elsewhere)
    for name, text in {"pyproject.toml": PROJECT, "backend.py": backend, "speaker.py": "x = 5\n"}.items():
        (workspace / name).write_text(text)
    with opened(indexes, workspace) as sb:
        sb.run("pip install -e .", check=True, timeout=120)
        assert sb.run("cd /; python3 -c 'import speaker; print(speaker.x)'").stdout == "5\n"


@pytest.mark.slow
@pytest.mark.usefixtures("host")
def test_downloads_that_were_kept_serve_others_and_cannot_be_changed(
    indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="staddle-test-", dir="/var/tmp") as place:
        os.chmod(place, 0o755)
        monkeypatch.setenv("STADDLE_DOWNLOADS", f"{place}/downloads")
        backend = BACKEND.format(elsewhere=[])
        indexes.sdist("speaker", "1.0", {"pyproject.toml": PROJECT, "backend.py": backend})
        with opened(indexes) as sb:
            sb.use_downloads()  # there are none yet
            sb.run("pip install speaker", check=True, timeout=120)
            assert not os.path.exists(f"{place}/downloads"), "only who is asked to keeps anything"
            assert sb.keep_downloads() > 0
        kept = {path: path.read_bytes() for path in Path(place).rglob("*") if path.is_file()}
        indexes.asked.clear()
        with opened(indexes) as sb:
            sb.use_downloads()
            sb.run("pip install speaker", check=True, timeout=120)
            assert sb.run("python3 -c 'import speaker; print(speaker.say())'").stdout == "compiled\n"
            assert indexes.asked == ["/simple/speaker/"]
            sb.run("find ~/.cache -type f -exec sh -c 'echo planted > $1' sh {} \\;; rm -rf ~/.cache/pip")
            (fork,) = sb.fork()
            fork.close()
        assert {path: path.read_bytes() for path in Path(place).rglob("*") if path.is_file()} == kept


@pytest.mark.slow
@pytest.mark.same_for_everyone
@pytest.mark.usefixtures("host")
def test_npm_installs_in_the_workspace_and_for_the_user(indexes: Indexes, workspace: Path) -> None:
    indexes.node_module("adder", "1.2.3", {"index.js": "module.exports = (a, b) => a + b;\n"})
    indexes.node_module("adding", "1.0.0", {"index.js": "#!/usr/bin/env node\nconsole.log(3 + 4);\n"})
    with opened(indexes, workspace) as sb:
        sb.run("npm init -y && npm i adder", check=True, timeout=120)
        assert sb.run("node -e 'console.log(require(\"adder\")(2, 3))'").stdout == "5\n"
        sb.run("rm -r node_modules && npm ci", check=True, timeout=120)
        assert sb.run("node -e 'console.log(require(\"adder\")(2, 4))'").stdout == "6\n"
        sb.run("npm i -g adder", check=True, timeout=120)
        assert names(sb) == [("npm", "adder", "1.2.3")]
        assert sb.files.exists("/home/user/.local/lib/node_modules/adder/index.js")
        assert sb.run("npx --yes adding", timeout=120).stdout == "7\n"
    assert os.listdir(workspace) == []
