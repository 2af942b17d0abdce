"""Ready-made rules, as data: tools that programs for agents often have an own way for."""

from __future__ import annotations

#: The kinds: why an agent should leave them alone, and the commands. The owner is the caller's to say.
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "git": (
        "history is changed by another tool",
        ("git", "git-*", "gh", "glab", "hub", "tea"),
    ),
    "docker": (
        "containers are run by another tool",
        (
            *("docker", "docker-*", "podman", "podman-*", "nerdctl", "buildah", "skopeo", "ctr", "crictl"),
            *("runc", "crun"),
        ),
    ),
    "nix": (
        "packages and systems of nix are built by another tool",
        ("nix", "nix-*", "nixos-*", "home-manager", "devenv", "guix"),
    ),
    "kubectl": (
        "clusters are changed by another tool",
        ("kubectl", "kubectl-*", "oc", "k9s", "kustomize", "kubeadm", "kubectx", "kubens"),
    ),
    "helm": ("releases are made by another tool", ("helm", "helmfile")),
    "curl": ("the network is used by another tool", ("curl", "curlie", "xh", "xhs", "http", "https")),
    "wget": ("the network is used by another tool", ("wget", "wget2", "aria2c")),
    "packages": (
        "packages are installed by another tool",
        (
            *("apt", "apt-get", "aptitude", "dpkg", "dnf", "dnf5", "microdnf", "yum", "rpm", "pacman", "apk"),
            *("zypper", "emerge", "xbps-install", "brew", "port", "snap", "flatpak"),
            *("pip", "pip3*", "pipx", "pipenv", "python* -m pip", "uv", "uvx", "poetry", "pdm", "conda"),
            *("mamba", "micromamba", "npm", "npx", "pnpm", "pnpx", "yarn", "bun", "bunx", "corepack"),
            *("gem", "bundle", "cargo install", "go install", "go get", "composer", "luarocks", "cpan"),
        ),
    ),
}
