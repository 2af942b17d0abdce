"""Layouts of toolchains on disk, as data: files that identify them, and the parts that they need."""

from __future__ import annotations

#: Always on the PATH inside.
SYSTEM = frozenset(
    (
        "/usr/local/sbin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
        "/usr/games",
        "/usr/local/games",
    )
)

#: (name, a program, any of these next to it) of toolchains in one directory with a `bin`.
PREFIXES = (
    ("python", "bin/python3", ("lib/python3*",)),
    ("node", "bin/node", ("lib/node_modules", "include/node")),
    ("go", "bin/go", ("pkg/tool",)),
    ("rust", "bin/rustc", ("lib/rustlib",)),
    ("java", "bin/java", ("lib/modules", "release", "jre/lib")),
    ("ruby", "bin/ruby", ("lib/ruby",)),
    ("erlang", "bin/erl", ("lib/erlang", "erts-*")),
    ("elixir", "bin/elixir", ("lib/elixir",)),
    ("php", "bin/php", ("lib/php",)),
    ("perl", "bin/perl", ("lib/perl5", "lib/5*")),
    ("flutter", "bin/flutter", ("packages/flutter",)),
    ("dart", "bin/dart", ("lib/core",)),
    ("maven", "bin/mvn", ("lib/maven-*", "boot")),
    ("gradle", "bin/gradle", ("lib/gradle-*",)),
    ("kotlin", "bin/kotlinc", ("lib/kotlin-*",)),
    ("julia", "bin/julia", ("lib/julia",)),
    ("ghc", "bin/ghc", ("lib/ghc*",)),
    ("npm", "bin", ("lib/node_modules", "package.json")),
)
#: Directories of its prefix that a Python interpreter needs.
INTERPRETER = ("bin", "lib", "include")
#: (name, a program, the needed files) of toolchains whose directory is on the PATH; the second file must
#: exist. A dotnet home also contains private keys.
FLAT = (
    ("zig", "zig", ("zig", "lib", "doc")),
    ("dotnet", "dotnet", ("dotnet", "shared", "host", "sdk", "packs", "sdk-manifests", "templates")),
)

#: Directories of the home that contain the programs of one tool, and nothing else.
PROGRAMS = {
    "go/bin": "go",
    ".bun/bin": "bun",
    ".deno/bin": "deno",
    ".dotnet/tools": "dotnet",
    ".local/share/pnpm": "pnpm",
    ".yarn/bin": "yarn",
    ".ghcup/bin": "ghc",
    ".cabal/bin": "cabal",
    ".mix/escripts": "elixir",
    ".composer/vendor/bin": "php",
}
#: Directories of the home into which tools install programs.
INSTALLED = frozenset({".cargo/bin", *PROGRAMS})
#: Programs that are complete toolchains, in any directory.
SINGLE = frozenset(
    (
        "uv",
        "uvx",
        "mise",
        "deno",
        "bun",
        "bunx",
        "fnm",
        "poetry",
        "pdm",
        "hatch",
        "pixi",
        "micromamba",
        "just",
        "ruff",
    )
)

#: Version managers for one language, with the file and the variable that choose a version.
MANAGERS = {
    "pyenv": (".python-version", "PYENV_VERSION"),
    "rbenv": (".ruby-version", "RBENV_VERSION"),
    "nodenv": (".node-version", "NODENV_VERSION"),
    "goenv": (".go-version", "GOENV_VERSION"),
    "phpenv": (".php-version", "PHPENV_VERSION"),
    "plenv": (".perl-version", "PLENV_VERSION"),
}

#: Parts of a Homebrew in its own directory. Not `var` (databases), and only certificates from `etc`.
HOMEBREW = (
    *("bin", "sbin", "Cellar", "opt", "lib", "libexec", "share", "include"),
    *("etc/ca-certificates", "etc/openssl@3", "etc/openssl@1.1"),
)

#: Hidden in every toolchain, because they may contain the password of a package index.
SECRETS = ("pip.conf", "etc/npmrc", "etc/pip.conf", ".condarc", "condarc", ".npmrc", "conf/settings.xml")

#: Usual names of a virtual environment in a workspace.
ENVIRONMENTS = (".venv", "venv", "env", ".env")


def tool_versions(text: str) -> dict[str, list[str]]:
    """Return the versions that a `.tool-versions` file chooses. Pure."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return {words[0]: words[1:] for words in lines if len(words) > 1}


def mise_tools(text: str) -> dict[str, list[str]]:
    """Return the versions that a mise configuration chooses; none if it is invalid. Pure."""
    if "[tools]" not in text:
        return {}
    import tomllib

    try:
        tools = tomllib.loads(text)["tools"]
    except (tomllib.TOMLDecodeError, KeyError):
        return {}
    chosen: dict[str, list[str]] = {}
    for tool, versions in tools.items() if isinstance(tools, dict) else ():
        several = versions if isinstance(versions, list) else [versions]
        found = [one.get("version") if isinstance(one, dict) else one for one in several]
        chosen[tool] = [version for version in found if isinstance(version, str) and "/" not in version]
    return chosen


def rust_channel(text: str) -> str:
    """Return the toolchain that a rustup file chooses: a name, `channel` or `default_toolchain`. Pure."""
    words = text.split()
    if len(words) == 1:
        return words[0]
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key.strip() in ("channel", "default_toolchain"):
            return value.strip().strip("\"'")
    return ""


def volta_tools(text: str) -> list[tuple[str, str]]:
    """Return (tool, version) of each tool in a volta platform file. Pure."""
    import json

    try:
        found = json.loads(text)
        chosen = {
            "node": found["node"]["runtime"],
            **{tool: found.get(tool) for tool in ("npm", "pnpm", "yarn")},
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    return [
        (tool, version) for tool, version in chosen.items() if isinstance(version, str) and "/" not in version
    ]
