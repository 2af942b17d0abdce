"""Toolchains of a hidden home, used inside: they work, and what lies beside them is not there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import LocalEnvironment, Policy, Sandbox, wrap

SYSTEM = "/usr/local/bin:/usr/bin:/bin"
SECRETS = (".cargo/credentials.toml", ".npmrc", ".config/gh/hosts.yml", ".ssh/id_ed25519", "letters/a.txt")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    for name in SECRETS:
        written(made / name, "secret-of-the-host")
    monkeypatch.setenv("HOME", str(made))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return made


@pytest.fixture(autouse=True)
def nothing_beside_is_seen(home: Path) -> Iterator[None]:
    """After every test, with the PATH that it has set: the secrets are hidden."""
    yield
    places = " ".join(str(home / name) for name in SECRETS)
    done = inside(f"cat {places}; ls -A {home}; cat {home}/.config/gh/hosts.yml")
    assert "secret-of-the-host" not in done.stdout
    assert done.stderr.count("No such file") >= len(SECRETS)


def written(path: Path, text: str, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def interpreter(prefix: Path) -> Path:
    """A python of its own: the program, and a library that is the system's."""
    real = os.path.realpath("/usr/bin/python3")
    version = os.path.basename(real)
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib").mkdir()
    os.link(real, prefix / "bin" / version) if same_file_system(real, prefix) else copied(
        real, prefix, version
    )
    (prefix / "bin/python3").symlink_to(version)
    (prefix / "bin/python").symlink_to(version)
    (prefix / "lib" / version).symlink_to(f"/usr/lib/{version}")
    return prefix / "bin"


def same_file_system(real: str, prefix: Path) -> bool:
    return os.geteuid() == 0 and os.stat(real).st_dev == os.stat(prefix).st_dev


def copied(real: str, prefix: Path, version: str) -> None:
    target = prefix / "bin" / version
    target.write_bytes(Path(real).read_bytes())
    target.chmod(0o755)


def use(monkeypatch: pytest.MonkeyPatch, *places: Path) -> None:
    monkeypatch.setenv("PATH", ":".join([*map(str, places), SYSTEM]))


def inside(
    script: str, backend: str = "auto", policy: Policy | None = None
) -> subprocess.CompletedProcess[str]:
    done: subprocess.CompletedProcess[str] = wrap(
        ["sh", "-c", script], policy or Policy.agent(), backend=backend
    ).run(capture_output=True, text=True)
    return done


@pytest.mark.parametrize("backend", ["namespaces", "bwrap", "landlock"])
def test_a_virtual_environment_of_a_hidden_interpreter(
    home: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    bin = interpreter(home / ".local/share/uv/python/cpython-3")
    subprocess.run([bin / "python3", "-m", "venv", "--without-pip", home / "envs/a"], check=True)
    written(home / "envs/a/pip.conf", "secret-of-the-host")
    use(monkeypatch, home / "envs/a/bin")
    done = inside(f"python -c 'import sys, json; print(sys.prefix)'; cat {home}/envs/a/pip.conf", backend)
    # With a mount namespace there is an environment of the sandbox's own before it.
    prefix = f"{home}/envs/a" if backend == "landlock" else "/home/user/.venv"
    assert done.stdout == f"{prefix}\n", done
    off = inside("command -v python", backend, Policy.agent(toolchains=False))
    assert str(home) not in off.stdout


def test_shims_of_a_version_manager(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = home / ".pyenv"
    interpreter(root / "versions/3.99.1")
    written(root / "version", "3.99.1\n")
    shim = f'#!/usr/bin/env bash\nexec "{root}/libexec/pyenv" exec "${{0##*/}}" "$@"\n'
    written(root / "shims/python3", shim)
    written(
        root / "libexec/pyenv", f'#!/bin/sh\nshift; p=$1; shift; exec {root}/versions/3.99.1/bin/$p "$@"\n'
    )
    use(monkeypatch, root / "shims")
    outside = subprocess.run(
        ["python3", "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True
    )
    assert outside.stdout == f"{root}/versions/3.99.1\n", "the control: outside it works so"
    assert inside("python3 -c 'import sys; print(sys.prefix)'").stdout == outside.stdout
    with Sandbox() as sandbox:
        assert sandbox.run("python3 -c 'import sys; print(sys.prefix)'").stdout == outside.stdout
        assert sandbox.run(f"ls {root}").stdout == "versions\n"


def test_node_with_its_global_packages(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = home / ".nvm/versions/node/v20.9.0"
    written(root / "bin/node", '#!/bin/sh\necho node "$@"\n')
    written(root / "lib/node_modules/tool/cli.js", "#!/usr/bin/env node\n")
    (root / "bin/tool").symlink_to("../lib/node_modules/tool/cli.js")
    written(root / "etc/npmrc", "secret-of-the-host")
    written(home / "work/node_modules/here/cli.js", "#!/usr/bin/env node\n")
    (home / "work/node_modules/.bin").mkdir()
    (home / "work/node_modules/.bin/here").symlink_to("../here/cli.js")
    use(monkeypatch, root / "bin")
    with Sandbox(home / "work") as sandbox:
        found = sandbox.run(f"tool x; node_modules/.bin/here y; cat {root}/etc/npmrc")
    assert found.stdout == f"node {root}/bin/tool x\nnode node_modules/.bin/here y\n"


def test_proxies_of_rust(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = """#!/bin/sh
        root=${RUSTUP_HOME:-$HOME/.rustup}
        exec $root/toolchains/$(cat $root/settings.toml)/bin/${0##*/} "$@"
    """
    written(home / ".cargo/bin/rustup", proxy)
    for name in ("cargo", "rustc"):
        (home / f".cargo/bin/{name}").symlink_to("rustup")
        written(home / f".rustup/toolchains/stable/bin/{name}", f"#!/bin/sh\necho {name} of rust\n")
    (home / ".rustup/toolchains/stable/lib/rustlib").mkdir(parents=True)
    written(home / ".rustup/settings.toml", "stable")
    written(home / ".cargo/bin/cargo-tool", "#!/bin/sh\necho of its own\n")
    use(monkeypatch, home / ".cargo/bin")
    done = inside(f"rustc; cargo; cargo-tool; ls -A {home}/.cargo; echo x > {home}/.cargo/bin/x")
    assert done.stdout == "rustc of rust\ncargo of rust\nof its own\nbin\n"
    assert "Read-only" in done.stderr


def test_a_manager_of_many_languages(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = home / ".local/share/mise"
    written(home / ".local/bin/mise", "#!/bin/sh\necho mise itself\n")
    written(home / ".local/bin/deploy", "#!/bin/sh\necho secret-of-the-host\n")
    written(home / ".config/mise/config.toml", '[tools]\nnode = "20"\n[env]\nKEY = "secret-of-the-host"\n')
    for version in ("18.1.0", "20.9.0"):
        written(root / f"installs/node/{version}/bin/node", f"#!/bin/sh\necho node {version}\n")
        (root / f"installs/node/{version}/include/node").mkdir(parents=True)
    (root / "installs/node/20").symlink_to("20.9.0")
    (root / "shims").mkdir()
    (root / "shims/node").symlink_to(home / ".local/bin/mise")
    use(monkeypatch, root / "shims", home / ".local/bin")
    done = inside("node; mise; deploy")
    assert done.stdout == "node 20.9.0\nmise itself\n"
    assert "deploy" in done.stderr


def test_conda(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = home / "miniconda3"
    interpreter(root)
    (root / "conda-meta").mkdir()
    written(root / "condabin/conda", "#!/bin/sh\necho conda\n")
    written(root / ".condarc", "secret-of-the-host")
    use(monkeypatch, root / "bin", root / "condabin")
    done = inside(f"python3 -c 'import sys; print(sys.prefix)'; conda; cat {root}/.condarc")
    assert done.stdout == f"{root}\nconda\n"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["namespaces", "bwrap"])
def test_a_virtual_environment_in_the_workspace_works_as_outside(
    home: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    bin = interpreter(home / ".pyenv/versions/3.99.1")
    work = home / "work"
    work.mkdir()
    subprocess.run([bin / "python3", "-m", "venv", "--without-pip", work / ".venv"], check=True)
    written(
        work / ".venv/bin/tool",
        f"#!{work}/.venv/bin/python\nimport sys; print(sys.prefix, sys.base_prefix)\n",
    )
    written(work / "mine.py", "print('mine')\n")
    packages = next((work / ".venv/lib").glob("python3*")) / "site-packages"
    written(packages / "editable.pth", f"{work}\n")
    script = ".venv/bin/tool; . .venv/bin/activate; tool; python -c 'import mine'"
    outside = subprocess.run(["bash", "-c", script], cwd=work, capture_output=True, text=True, check=True)
    mode = "overlay" if backend == "namespaces" else "bind"
    with monkeypatch.context() as patch:
        use(patch, work / ".venv/bin")  # as after `activate`
        with Sandbox(work, backend=backend, mode=mode) as sandbox:
            found = sandbox.run("tool; command -v python; echo $PATH")
            assert found.stdout.splitlines()[:2] == [
                outside.stdout.splitlines()[0],
                "/workspace/.venv/bin/python",
            ]
            assert str(work) not in found.stdout.splitlines()[2]
    with Sandbox(work, backend=backend, mode=mode) as sandbox:
        found = sandbox.run(script)
        assert (found.stdout, found.stderr) == (outside.stdout, "")
        assert found.cwd == "/workspace"
    with LocalEnvironment(work) as env:
        assert env.exec_command("bash", ["-c", script]).stdout == outside.stdout
    with Sandbox(work, Policy.agent(toolchains=False), backend=backend, mode=mode) as sandbox:
        assert sandbox.run(".venv/bin/tool").exit_code != 0, (
            "the control: without it, the interpreter is hidden"
        )


def test_what_the_explanation_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter(home / "py")
    written(home / "scripts/x", "")
    use(monkeypatch, home / "py/bin", home / "scripts")
    done = subprocess.run(
        [sys.executable, "-m", "staddle", "explain", "--", "true"], capture_output=True, text=True, check=True
    )
    assert f"toolchain python: {home}/py/bin is on the PATH" in done.stdout
    assert f"{home}/scripts' on the PATH is not shown" in done.stdout


def with_pip(programs: Path) -> Path:
    """Let an `interpreter` be one that pip installs for: with pip, and not managed by a distribution."""
    prefix = programs.parent
    (library,) = (prefix / "lib").iterdir()
    system = library.readlink()
    library.unlink()
    library.mkdir()
    for entry in system.iterdir():
        if entry.name not in ("EXTERNALLY-MANAGED", "dist-packages", "site-packages"):
            (library / entry.name).symlink_to(entry)
    import pip

    for name in ("lib/python3/dist-packages", f"lib/{library.name}/site-packages"):  # Debian's, others'
        shutil.copytree(Path(pip.__file__).parent, prefix / name / "pip")
    return programs


@pytest.mark.slow
def test_installs_by_an_interpreter_of_the_home_land_in_the_sandbox(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = with_pip(interpreter(home / ".pyenv/versions/3.11.7"))
    project = tmp_path / "project"
    project.mkdir()
    wheel = project / "tiny_package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        about = "tiny_package-1.0.dist-info"
        made.writestr("tiny_package.py", "")
        made.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n")
        made.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{about}/RECORD", "")
    use(monkeypatch, programs)
    with Sandbox(project) as sb:
        installed = sb.run(f"python3 -m pip install --no-index {wheel.name}", timeout=None)
        assert installed.ok, installed.stderr
        where = sb.run("command -v python3; python3 -c 'import tiny_package; print(tiny_package.__file__)'")
    python, module = where.stdout.splitlines()
    assert python == f"{programs}/python3"
    assert module.startswith("/home/user/")


def test_programs_of_node_modules_in_the_workspace_are_found_and_can_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "node_modules/.bin"
    place.mkdir(parents=True)
    (place / "hello").write_text("#!/bin/sh\necho outside\n")
    (place / "hello").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    with Sandbox(tmp_path) as sb:
        assert sb.run("hello").stdout == "outside\n"
        script = "printf '#!/bin/sh\\necho inside\\n' > node_modules/.bin/hello; hello"
        assert sb.run(script).stdout == "inside\n"
    assert "outside" in (place / "hello").read_text()
