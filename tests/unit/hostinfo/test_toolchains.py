"""Which directories the toolchains on a PATH need, on made-up homes: their roots, and nothing beside them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from staddle.errors import PolicyError
from staddle.hostinfo.toolchains import Toolchains, find
from staddle.paths import absolute, covers
from staddle.policy import Policy
from staddle.policy.compiler import compile
from staddle.policy.presets import denied
from staddle.policy.tools import Disk
from tests.unit.policy.tree import make

Look = Callable[..., Toolchains]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    plant(
        made,
        ".ssh/id",
        ".npmrc",
        ".cargo/credentials.toml",
        ".config/gh/hosts.yml",
        ".local/share/keyrings/x",
    )
    return made


@pytest.fixture
def look(home: Path, tmp_path: Path) -> Look:
    """What is found for a PATH, with `~` for the home; nothing below the temporary directory can be seen."""

    def looked(*path: str, workspace: Path | None = None, **env: str) -> Toolchains:
        found = find(
            ":".join(place.replace("~", str(home)) for place in path),
            str(home),
            Disk(),
            hidden=lambda place: covers(str(tmp_path), place) and not covers(str(workspace or "-"), place),
            denied=[absolute(path, "", str(home)) for path in denied("agent")],
            env=env,
            workspace=None if workspace is None else str(workspace),
        )
        for one in found.toolchains:
            for secret in (
                ".ssh/id",
                ".npmrc",
                ".cargo/credentials.toml",
                ".config/gh",
                ".local/share/keyrings",
            ):
                assert not covers(one.root, f"{home}/{secret}"), one
        return found

    return looked


def plant(root: Path, *names: str, text: str = "") -> None:
    """Programs, and what `make` can make."""
    make(root, *names, text=text, mode=0o755)


def roots(found: Toolchains, home: Path) -> set[str]:
    return {os.path.relpath(one.root, home) for one in found.toolchains}


def search(found: Toolchains, home: Path) -> list[str]:
    return [os.path.relpath(place, home) for place in found.before]


def test_shims_lead_to_the_version_that_is_used(home: Path, look: Look, tmp_path: Path) -> None:
    for version in ("3.11.9", "3.12.4"):
        plant(
            home, f".pyenv/versions/{version}/bin/python3", f".pyenv/versions/{version}/lib/python3.1/os.py"
        )
    plant(home, ".pyenv/shims/python3", ".pyenv/libexec/pyenv")
    plant(home, ".pyenv/version", text="3.12.4\n")
    found = look("~/.pyenv/shims")
    assert roots(found, home) == {".pyenv/versions/3.12.4"}
    assert search(found, home) == [".pyenv/versions/3.12.4/bin"]
    assert found.toolchains[0].what == "python"
    assert "shims" in found.toolchains[0].why
    assert roots(look("~/.pyenv/shims", PYENV_VERSION="3.11.9"), home) == {".pyenv/versions/3.11.9"}
    workspace = tmp_path / "work"
    plant(workspace, ".python-version", text="3.11.9\n3.12.4\n")
    assert search(look("~/.pyenv/shims", workspace=workspace), home) == [
        ".pyenv/versions/3.11.9/bin",
        ".pyenv/versions/3.12.4/bin",
    ]
    for version in ("system", "3.9", "../../.ssh", ""):
        plant(workspace, ".python-version", text=version or "\n")
        plant(home, ".pyenv/version", text=version)
        assert roots(look("~/.pyenv/shims", workspace=workspace), home) == set()


@pytest.mark.parametrize(
    ("root", "program", "beside"),
    [
        (".nvm/versions/node/v20", "bin/node", "lib/node_modules/"),
        ("sdk/go1.22", "bin/go", "pkg/tool/"),
        (".local/share/uv/python/c312", "bin/python3", "lib/python3.12/"),
        ("miniconda3/envs/a", "bin/python", "conda-meta/"),
        ("miniconda3", "condabin/conda", "conda-meta/"),
        (".sdkman/java/21", "bin/java", "release"),
        (".npm-global", "bin/tsc", "lib/node_modules/"),
        (".rbenv/versions/3.3", "bin/ruby", "lib/ruby/"),
    ],
)
def test_a_toolchain_in_one_directory(home: Path, look: Look, root: str, program: str, beside: str) -> None:
    plant(home, f"{root}/{program}", f"{root}/{beside}", f"{root}/etc/npmrc", f"linked -> {root}")
    place = os.path.dirname(program)
    for spelled in (root, "linked"):
        found = look(f"~/{spelled}/{place}")
        assert roots(found, home) == {root}
        assert search(found, home) == [f"{root}/{place}"]
        assert found.denied == (f"{home}/{root}/etc/npmrc",)


@pytest.mark.parametrize("place", ["go/bin", ".bun/bin", ".deno/bin", ".local/share/pnpm"])
def test_where_one_tool_keeps_its_programs(home: Path, look: Look, place: str) -> None:
    plant(home, f"{place}/tool", f"{os.path.dirname(place)}/cache/x")
    assert roots(look(f"~/{place}"), home) == {place}


def test_proxies_of_rust_lead_to_the_toolchain_that_is_used(home: Path, look: Look, tmp_path: Path) -> None:
    plant(home, ".cargo/bin/rustup", ".cargo/bin/cargo -> rustup", ".cargo/registry/x", ".cargo/config.toml")
    assert roots(look("~/.cargo/bin"), home) == set(), "there is nothing that the proxies could lead to"
    for name in ("stable-x86_64-unknown-linux-gnu", "1.75.0-x86_64-unknown-linux-gnu"):
        plant(home, f".rustup/toolchains/{name}/bin/rustc", f".rustup/toolchains/{name}/lib/rustlib/")
    plant(
        home,
        ".rustup/settings.toml",
        text='version = "12"\ndefault_toolchain = "stable-x86_64-unknown-linux-gnu"\n',
    )
    stable, old = (f".rustup/toolchains/{name}-x86_64-unknown-linux-gnu" for name in ("stable", "1.75.0"))
    found = look("~/.cargo/bin")
    assert roots(found, home) == {".cargo/bin", stable}
    assert search(found, home) == [f"{stable}/bin", ".cargo/bin"]
    assert old in roots(look("~/.cargo/bin", RUSTUP_TOOLCHAIN="1.75.0"), home)
    workspace = tmp_path / "work"
    for name, text in (
        ("rust-toolchain", "1.75.0\n"),
        ("rust-toolchain.toml", '[toolchain]\nchannel = "1.75.0"\n'),
    ):
        plant(workspace, name, text=text)
        assert old in roots(look("~/.cargo/bin", workspace=workspace), home)
        (workspace / name).unlink()
    plant(home, "elsewhere/toolchains/mine/bin/rustc", "elsewhere/toolchains/mine/lib/rustlib/")
    assert "elsewhere/toolchains/mine" in roots(look("~/.cargo/bin", RUSTUP_HOME=f"{home}/elsewhere"), home)


def test_volta_leads_to_what_it_is_set_up_to_use(home: Path, look: Look) -> None:
    plant(home, ".volta/bin/volta-shim", ".volta/bin/node -> volta-shim", ".volta/hooks.json")
    assert roots(look("~/.volta/bin"), home) == set()
    plant(
        home,
        ".volta/tools/user/platform.json",
        text='{"node": {"runtime": "20.9.0", "npm": null}, "yarn": "../.."}',
    )
    plant(home, ".volta/tools/image/node/20.9.0/bin/node", ".volta/tools/image/node/20.9.0/include/node/")
    plant(
        home, ".volta/tools/image/packages/tsc/bin/tsc", ".volta/tools/image/packages/tsc/lib/node_modules/"
    )
    found = look("~/.volta/bin")
    assert roots(found, home) == {".volta/tools/image/node/20.9.0", ".volta/tools/image/packages/tsc"}
    assert search(found, home)[0] == ".volta/tools/image/node/20.9.0/bin"
    for text in ("", "[]", "{", "null", '{"node": 3}', "[" * 100_000):
        plant(home, ".volta/tools/user/platform.json", text=text)
        assert ".volta/tools/image/node/20.9.0" not in roots(look("~/.volta/bin"), home)


@pytest.mark.parametrize("manager", [".local/share/mise", ".asdf"])
def test_managers_of_many_languages_are_followed_to_what_is_chosen(
    home: Path, look: Look, tmp_path: Path, manager: str
) -> None:
    for version in ("18.1.0", "20.9.0"):
        plant(
            home,
            f"{manager}/installs/node/{version}/bin/node",
            f"{manager}/installs/node/{version}/include/node/",
        )
    plant(home, f"{manager}/installs/node/20 -> 20.9.0", f"{manager}/installs/node/latest -> 20.9.0")
    plant(
        home, f"{manager}/installs/python/3.12/bin/python3", f"{manager}/installs/python/3.12/lib/python3.12/"
    )
    plant(home, f"{manager}/shims/node", f"{manager}/plugins/")
    found = look(f"~/{manager}/shims")
    assert roots(found, home) == {f"{manager}/installs/node/20.9.0", f"{manager}/installs/python/3.12"}
    plant(home, ".tool-versions", text="node 18.1.0 # old\n")
    assert roots(look(f"~/{manager}/shims"), home) == {
        f"{manager}/installs/node/18.1.0",
        f"{manager}/installs/python/3.12",
    }
    workspace = tmp_path / "work"
    plant(workspace, "mise.toml", text='[tools]\nnode = {version = "20"}\npython = ["3.12", "../../../.."]\n')
    assert f"{manager}/installs/node/20.9.0" in roots(look(f"~/{manager}/shims", workspace=workspace), home)
    plant(workspace, "mise.toml", text="[tools]\nnode = [[[")
    assert f"{manager}/installs/node/18.1.0" in roots(look(f"~/{manager}/shims", workspace=workspace), home)


def test_of_a_directory_of_all_kinds_only_what_belongs_to_a_toolchain(home: Path, look: Look) -> None:
    python = ".local/share/uv/python/cpython-3.12.7"
    plant(
        home, f"{python}/bin/python3.12", f"{python}/bin/python3 -> python3.12", f"{python}/lib/python3.12/"
    )
    plant(home, ".local/share/uv/python/cpython-3.12 -> cpython-3.12.7")
    plant(
        home,
        ".local/share/uv/tools/ruff/pyvenv.cfg",
        text=f"home = {home}/.local/share/uv/python/cpython-3.12/bin\n",
    )
    plant(home, ".local/share/uv/tools/ruff/bin/ruff", ".local/share/uv/tools/ruff/pip.conf")
    plant(home, ".local/share/pipx/venvs/black/pyvenv.cfg", text="home = /usr/bin\n")
    plant(home, ".local/share/pipx/venvs/black/bin/python -> /usr/bin/python3")
    plant(home, ".local/bin/uv", ".local/bin/deploy", "letters/tool")
    plant(home, ".local/bin/python3.12 -> ../share/uv/python/cpython-3.12/bin/python3.12")
    plant(home, ".local/bin/ruff -> ../share/uv/tools/ruff/bin/ruff", ".local/bin/mine -> ../../letters/tool")
    plant(home, ".local/bin/black", text=f"#!{home}/.local/share/pipx/venvs/black/bin/python -I\n")
    found = look("~/.local/bin")
    assert roots(found, home) == {
        python,
        ".local/bin/uv",
        ".local/bin/black",
        ".local/share/uv/tools/ruff",
        ".local/share/pipx/venvs/black",
    }
    links = {os.path.relpath(where, home) for where, _ in found.links}
    assert links >= {".local/bin/python3.12", ".local/bin/ruff", ".local/share/uv/python/cpython-3.12"}
    assert ".local/bin/mine" not in links
    assert found.denied == (f"{home}/.local/share/uv/tools/ruff/pip.conf",)
    assert search(found, home) == [".local/bin"]


def test_of_some_only_parts_are_shown(home: Path, look: Look) -> None:
    plant(
        home, "brew/bin/brew", "brew/Cellar/", "brew/var/postgres/x", "brew/etc/my.cnf", "brew/etc/openssl@3/"
    )
    plant(home, ".dotnet/dotnet", ".dotnet/shared/", ".dotnet/corefx/cryptography/x509stores/my/key")
    plant(
        home, ".volta/bin/volta-shim", ".volta/bin/node -> volta-shim", ".volta/tools/", ".volta/hooks.json"
    )
    found = look("~/brew/bin", "~/.dotnet", "~/.volta/bin")
    assert roots(found, home) == {
        *("brew/bin", "brew/Cellar", "brew/etc/openssl@3", ".dotnet/dotnet", ".dotnet/shared"),
    }


def test_a_directory_that_holds_more_than_a_toolchain_is_none(home: Path, look: Look) -> None:
    for prefix in ("", ".local/", ".config/", ".cargo/"):
        plant(home, f"{prefix}bin/python3", f"{prefix}lib/python3.12/os.py")
    plant(home, "scripts/backup", ".ssh/bin/python3", ".ssh/lib/python3.12/")
    found = look(
        "~/bin", "~/.local/bin", "~/.config/bin", "~/.cargo/bin", "~/scripts", "~/.ssh/bin", "~/gone"
    )
    assert found.toolchains == ()
    assert found.before == ()
    assert {os.path.relpath(place, home) for place in found.left_out} >= {"bin", "scripts", ".ssh/bin"}


def test_the_order_of_the_path_stays(home: Path, look: Look, tmp_path: Path) -> None:
    plant(home, "a/bin/go", "a/pkg/tool/", "b/bin/node", "b/include/node/")
    found = look("", ".", "bin", "~/b/bin", "~/b/bin/", "/usr/bin", "/usr/lib", "~/a/bin", "~/a/../a/bin")
    assert found.before == (f"{home}/b/bin",)
    assert found.after == ("/usr/lib", f"{home}/a/bin")


def test_a_virtual_environment_of_the_workspace_leads_to_its_interpreter(
    home: Path, look: Look, tmp_path: Path
) -> None:
    plant(home, "py/bin/python3.12", "py/lib/python3.12/os.py", "py/settings.env", "other/bin/python3")
    # Another virtual environment, in the directory of a service, is no interpreter.
    plant(home, "svc/bin/python3.12", "svc/lib/python3.12/site-packages/x", "svc/settings.env")
    plant(home, "conda/conda-meta/x", "conda/bin/python3", "conda/secrets")
    workspace = tmp_path / "work"
    plant(workspace, ".venv/pyvenv.cfg", text=f"home = {home}/py/bin\n")
    found = look(workspace=workspace)
    assert roots(found, home) == {"py/bin", "py/lib"}
    assert found.at_its_place
    for pointer in (
        f"{home}/.ssh",
        f"{home}/other/bin",
        f"{home}/svc/bin",
        f"{home}/conda/bin",
        "/",
        str(home),
        f"{home}/bin",
        "relative/bin",
        "\0",
        "",
    ):
        plant(workspace, ".venv/pyvenv.cfg", text=f"home = {pointer}\n")
        assert look(workspace=workspace).toolchains == ()


def test_what_a_sandbox_may_have_planted_leads_nowhere_else(home: Path, look: Look, tmp_path: Path) -> None:
    plant(home, "private/pyvenv.cfg", "private/letters", "private/bin/python3")
    workspace = tmp_path / "work"
    workspace.mkdir()
    (workspace / ".venv").symlink_to(home / "private")
    plant(workspace, "venv/bin/python -> " + str(home / ".ssh/id"), "venv/pyvenv.cfg")
    os.mkfifo(workspace / "pipe")
    (workspace / "env").mkdir()
    (workspace / "env/pyvenv.cfg").symlink_to(workspace / "pipe")
    assert look(workspace=workspace).toolchains == ()


def test_a_policy_says_whether(home: Path, tmp_path: Path) -> None:
    plant(home, "go1/bin/go", "go1/pkg/tool/")
    env = {"PATH": f"{home}/go1/bin:/usr/bin", "HOME": str(home)}

    def compiled(policy: Policy) -> set[str]:
        plan = compile(policy, cwd="/", home=str(home), host_env=env)
        shown = {grant.path for grant in plan.grants}
        assert (f"{home}/go1/bin:" in plan.environment()["PATH"]) == (f"{home}/go1" in shown)
        return shown

    assert f"{home}/go1" in compiled(Policy.agent())
    assert f"{home}/go1" in compiled(Policy(toolchains=True))
    assert f"{home}/go1" not in compiled(Policy.agent(toolchains=False))
    assert f"{home}/go1" not in compiled(Policy())
    assert f"{home}/go1" not in compiled(Policy.agent().replace(system=False, read=()))
    assert f"{home}/go1" not in compiled(Policy.agent().with_deny(home / "go1"))
    assert Policy(preset="agent") == Policy.agent()
    with pytest.raises(PolicyError):
        Policy(toolchains="no")  # type: ignore[arg-type]


def test_why_a_directory_is_shown_can_be_asked(home: Path) -> None:
    plant(home, "go1/bin/go", "go1/pkg/tool/", "scripts/x")
    env = {"PATH": f"{home}/go1/bin:{home}/scripts", "HOME": str(home)}
    plan = compile(Policy.agent(), cwd="/", home=str(home), host_env=env)
    (grant,) = (grant for grant in plan.grants if grant.path == f"{home}/go1")
    assert grant.origin == f"toolchain go: {home}/go1/bin is on the PATH"
    assert [note.text for note in plan.notes if note.origin == "toolchains"] == [
        f"'{home}/scripts' on the PATH is not shown: it is not a toolchain that staddle knows"
    ]


def test_where_tools_install_programs_is_on_the_path_of_the_home_inside(home: Path, tmp_path: Path) -> None:
    searched = f"{home}/.cargo/bin:/usr/bin:{home}/go/bin:{home}/letters:{home}/.cargo/bin"
    made = compile(Policy.agent(), home=str(home), host_env={"PATH": searched, "HOME": str(home)}, cwd="/")
    first = made.environment()["PATH"].split(":")[:3]
    assert first == ["/home/user/.local/bin", "/home/user/.cargo/bin", "/home/user/go/bin"]
    bare = compile(
        Policy.agent(toolchains=False),
        home=str(home),
        host_env={"PATH": searched, "HOME": str(home)},
        cwd="/",
    )
    assert ".cargo" not in bare.environment()["PATH"]
