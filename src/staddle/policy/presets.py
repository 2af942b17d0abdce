"""The rules that presets add, as data. `~` is the home of the user who starts the sandbox."""

from __future__ import annotations

NAMES = ("none", "agent", "coding-agent")

#: Denied by every preset except "none", because they give access to other systems.
SECRETS = (
    # keys and logins
    "~/.ssh",
    "~/.gnupg",
    "~/.netrc",
    "~/.authinfo",
    "~/.authinfo.gpg",
    "~/.password-store",
    "~/.pki",
    "~/.local/share/keyrings",
    "~/.local/share/kwalletd",
    "~/.config/op",
    "~/.config/Bitwarden",
    "~/.config/Bitwarden CLI",
    "~/.config/keepassxc",
    "~/.vault-token",
    "~/.config/sops",
    "~/.age",
    "~/.config/age",
    # clouds and clusters
    "~/.aws",
    "~/.azure",
    "~/.config/gcloud",
    "~/.config/doctl",
    "~/.config/hcloud",
    "~/.config/scw",
    "~/.config/linode-cli",
    "~/.oci",
    "~/.bluemix",
    "~/.kube",
    "~/.docker",
    "~/.config/containers/auth.json",
    "~/.config/helm",
    "~/.terraform.d/credentials.tfrc.json",
    "~/.terraformrc",
    "~/.pulumi",
    "~/.config/rclone",
    "~/.s3cfg",
    "~/.boto",
    "~/.config/wrangler",
    "~/.config/vercel",
    "~/.local/share/com.vercel.cli",
    "~/.config/netlify",
    "~/.fly",
    "~/.config/heroku",
    # code hosts and package registries
    "~/.git-credentials",
    "~/.config/git/credentials",
    "~/.config/gh",
    "~/.config/hub",
    "~/.config/glab-cli",
    "~/.npmrc",
    "~/.yarnrc.yml",
    "~/.pypirc",
    "~/.config/pypoetry/auth.toml",
    "~/.config/pip",
    "~/.pip",
    "~/.cargo/credentials",
    "~/.cargo/credentials.toml",
    "~/.gem/credentials",
    "~/.m2/settings.xml",
    "~/.m2/settings-security.xml",
    "~/.gradle/gradle.properties",
    "~/.nuget/NuGet/NuGet.Config",
    "~/.composer/auth.json",
    "~/.config/composer/auth.json",
    "~/.huggingface",
    "~/.cache/huggingface/token",
    "~/.kaggle",
    # databases and mail
    "~/.pgpass",
    "~/.my.cnf",
    "~/.mylogin.cnf",
    "~/.mongorc.js",
    "~/.msmtprc",
    "~/.fetchmailrc",
    "~/.config/msmtp",
    "~/.thunderbird",
    # browsers and chat (cookies are logins)
    "~/.mozilla",
    "~/.librewolf",
    "~/.config/google-chrome",
    "~/.config/chromium",
    "~/.config/BraveSoftware",
    "~/.config/microsoft-edge",
    "~/.config/vivaldi",
    "~/.config/opera",
    "~/.var/app",
    "~/snap",
    "~/.config/Signal",
    "~/.config/Slack",
    "~/.config/discord",
    "~/.config/Code/User/globalStorage",
    "~/Library/Keychains",
    "~/Library/Cookies",
    "~/Library/Application Support/Google/Chrome",
    "~/Library/Application Support/Firefox",
    # histories of typed commands
    "~/.bash_history",
    "~/.zsh_history",
    "~/.local/share/fish/fish_history",
    "~/.python_history",
    "~/.psql_history",
    "~/.mysql_history",
    "~/.node_repl_history",
    "~/.lesshst",
)

#: A directory with one of these is treated as a home, so SECRETS are denied in it.
MARKS_OF_A_HOME = (".ssh", ".gnupg", ".bash_history", ".bashrc", ".profile", ".zshrc")

#: Denied by every preset except "none", in case a directory above them is granted: access to these lets a
#: program leave the sandbox. The rest of /run does not exist inside.
DOORS = (
    "/run/user",
    "/run/dbus",
    "/run/systemd",
    "/run/docker",
    "/run/docker.sock",
    "/run/containerd",
    "/run/crio",
    "/run/podman",
    "/run/libvirt",
    "/run/snapd.sock",
    "/run/snapd-snap.socket",
    "/run/secrets",
    "/run/credentials",
    "/run/screen",
    "/run/tmux",
    "/run/sudo",
    "/tmp/.X11-unix",
    "/tmp/.ICE-unix",
)

#: Denied only by "agent": logins of coding agents. "coding-agent" runs such an agent, which needs its own.
AGENT_LOGINS = (
    "~/.claude/.credentials.json",
    "~/.claude.json",
    "~/.codex/auth.json",
    "~/.gemini/oauth_creds.json",
    "~/.gemini/google_accounts.json",
    "~/.qwen/oauth_creds.json",
    "~/.cursor/cli-config.json",
    "~/.copilot",
    "~/.config/github-copilot",
    "~/.local/share/opencode/auth.json",
    "~/.config/goose/secrets.yaml",
    "~/.aider.conf.yml",
    "~/.continue",
)

#: Writable in "coding-agent" if they exist. All are protected names, so a grant makes the whole directory
#: writable.
AGENT_CONFIG = (
    "~/.claude",
    "~/.claude.json",
    "~/.codex",
    "~/.gemini",
    "~/.qwen",
    "~/.cursor",
    "~/.copilot",
    "~/.config/opencode",
    "~/.config/goose",
    "~/.config/crush",
    "~/.aider.conf.yml",
)

#: Readable in "coding-agent" if they exist.
AGENT_TOOLS = (
    "~/.local/bin",
    "~/.local/share/mise",
    "~/.local/share/claude",
    "~/.local/share/cursor-agent",
)

#: Before the usual PATH in "coding-agent".
AGENT_PATH = (".local/bin", ".local/share/mise/shims")


def denied(preset: str) -> tuple[str, ...]:
    """Return the paths that `preset` hides, even below a grant."""
    return {
        "none": (),
        "agent": (*SECRETS, *DOORS, *AGENT_LOGINS),
        "coding-agent": (*SECRETS, *DOORS),
    }[preset]
