"""Paths that spell a protected name in another way, and paths that only look like one."""

from __future__ import annotations

#: The path of a file, and the protected name that it is or lies below.
SPELLED = {
    # Every file that a tool reads.
    "lefthook.yaml": "lefthook.yaml",
    ".lefthook.toml": ".lefthook.toml",
    "lefthook-local.yml": "lefthook-local.yml",
    ".lefthook-local.json": ".lefthook-local.json",
    ".config/lefthook.jsonc": "lefthook.jsonc",
    ".lefthook/pre-commit/run.sh": ".lefthook",
    "mise.local.toml": "mise.*.toml",
    ".mise.dev.local.toml": ".mise.*.toml",
    ".mise/config.toml": ".mise",
    "mise/config.toml": "mise/config.toml",
    ".config/mise.toml": "mise.toml",
    ".config/mise/conf.d/x.toml": ".config/mise",
    ".jj/repo": ".jj/repo",
    ".sl/config": ".sl/config",
    ".git/sl/config": ".git/sl/config",
    ".pdbrc.py": ".pdbrc.py",
    ".huskyrc.json": ".huskyrc.*",
    ".zshrc.zwc": ".zshrc.zwc",
    # Case, as a file system folds it.
    ".ba\u017fhrc": ".bashrc",
    ".\u212ashrc": ".kshrc",
    ".\u00dfh/config": ".ssh",
    ".g\u0131t/config": ".git/config",
    ".git/HOOKS/pre-commit": ".git/hooks",
    ".config/code/x": ".config/Code",
    # Windows: short names, dots and spaces at the end, streams.
    "git~1": ".git",
    "GIT~1/hooks/pre-commit": ".git/hooks",
    "bashrc~2": ".bashrc",
    "PRE-CO~1.YAM": ".pre-commit-config.yaml",
    "gi7eba~1": ".gitmodules",
    ".git ": ".git",
    ".git.": ".git",
    ".git. . /config": ".git/config",
    ".git/hooks./pre-commit": ".git/hooks",
    ".git::$INDEX_ALLOCATION": ".git",
    ".git::$INDEX_ALLOCATION/config": ".git/config",
    ".envrc:x:$DATA": ".envrc",
    # Characters that HFS+ and a case-folding ext4 leave out.
    ".g\u200cit/config": ".git/config",
    ".gi\ufefft": ".git",
    ".envrc\u2060": ".envrc",
    ".en\u00advrc": ".envrc",
    "lefthook\u200d.YML ": "lefthook.yml",
    ".git/ho\u200coks/pre-commit": ".git/hooks",
}
#: Paths of files that no program obeys.
HARMLESS = (
    "lefthook.md",
    "mise.md",
    "mise/README",
    "premise.toml",
    ".jj/repo/store/x",
    ".sl/store/x",
    "git~",
    "git~9",
    "git~1.txt",
    "bashrc",
    "a.",
    "a ",
    "a:.git",
    "\u200c",
    "...",
    "\u00dfh",
    ".gi\u0301t",
)
