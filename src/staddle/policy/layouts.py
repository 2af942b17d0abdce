"""Layouts of toolchains on disk, as data: the marks they are recognised by, and the parts that are needed."""

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

#: (what, a program, any of what lies beside it) of a toolchain that is all in one directory with a `bin`.
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
#: What a Python interpreter needs of its prefix.
INTERPRETER = ("bin", "lib", "include")
#: (what, a program, what is needed) of one that is itself on the PATH; the second of these must be there.
#: A home of dotnet holds private keys, too.
FLAT = (
    ("zig", "zig", ("zig", "lib", "doc")),
    ("dotnet", "dotnet", ("dotnet", "shared", "host", "sdk", "packs", "sdk-manifests", "templates")),
)

#: Directories of the home in which one tool keeps its programs, and nothing else is.
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
#: Where in a home tools put the programs that they install.
INSTALLED = frozenset({".cargo/bin", *PROGRAMS})
#: Programs that are toolchains by themselves, wherever they lie.
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

#: Version managers for one language: the file and the variable that choose a version.
MANAGERS = {
    "pyenv": (".python-version", "PYENV_VERSION"),
    "rbenv": (".ruby-version", "RBENV_VERSION"),
    "nodenv": (".node-version", "NODENV_VERSION"),
    "goenv": (".go-version", "GOENV_VERSION"),
    "phpenv": (".php-version", "PHPENV_VERSION"),
    "plenv": (".perl-version", "PLENV_VERSION"),
}

#: Of a Homebrew that lies in a directory of its own. Not `var`: databases; of `etc` only certificates.
HOMEBREW = (
    *("bin", "sbin", "Cellar", "opt", "lib", "libexec", "share", "include"),
    *("etc/ca-certificates", "etc/openssl@3", "etc/openssl@1.1"),
)

#: Hidden in every root: they may hold the password of a package index.
SECRETS = ("pip.conf", "etc/npmrc", "etc/pip.conf", ".condarc", "condarc", ".npmrc", "conf/settings.xml")

#: Where a workspace has its virtual environment, if it has one.
ENVIRONMENTS = (".venv", "venv", "env", ".env")


def tool_versions(text: str) -> dict[str, list[str]]:
    """The versions that a `.tool-versions` chooses. Pure."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return {words[0]: words[1:] for words in lines if len(words) > 1}


def mise_tools(text: str) -> dict[str, list[str]]:
    """The versions that a configuration of mise chooses; none when the text is not one. Pure."""
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
    """The toolchain that a file of rustup chooses: a name, or `channel` or `default_toolchain`. Pure."""
    words = text.split()
    if len(words) == 1:
        return words[0]
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key.strip() in ("channel", "default_toolchain"):
            return value.strip().strip("\"'")
    return ""


def volta_tools(text: str) -> list[tuple[str, str]]:
    """The tools of a volta platform file: (tool, version). Pure."""
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
