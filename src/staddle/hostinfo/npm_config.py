"""Read the configuration of npm and yarn: npmrc files, yarnrc files, and variables that override them."""

from __future__ import annotations

from .package_sources import Credential

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .package_sources import HostFiles, Sources

DEFAULT = "https://registry.npmjs.org/"
DEFAULT_YARN = "https://registry.yarnpkg.com/"
_TOKENS = ("_authToken", "_auth", "_password")


def read(place: HostFiles, found: Sources) -> None:
    """Add the sources of npm and yarn to `found`."""
    settings = _settings(place)
    url, origin = settings.get("registry", (DEFAULT, "npm's default"))
    found.add("npm", url, "registry", origin)
    if url.rstrip("/") == DEFAULT.rstrip("/"):
        found.add("npm", DEFAULT_YARN, "yarn", "yarn's default")
    for key, (url, origin) in settings.items():
        if key.startswith("@") and key.endswith(":registry"):
            found.add("npm", url, key.removesuffix(":registry"), origin)
        elif key in ("proxy", "https-proxy", "http-proxy"):
            found.add_proxy("npm", url, origin)
        elif key == "cafile":
            found.add_certificate(url)
    for url, origin in _yarn(place):
        found.add("npm", url, "yarn", origin)
    _credentials(settings, found)


def _settings(place: HostFiles) -> dict[str, tuple[str, str]]:
    """Return each setting with the file or variable that sets it. Later ones win."""
    settings: dict[str, tuple[str, str]] = {}
    for path in _files(place):
        for key, value in of_a_file(place.text(path) or "", place.environ):
            settings[key] = (value, path)
    for name, value in place.environ.items():
        if name.lower().startswith("npm_config_") and value.strip():
            key = name[len("npm_config_") :]
            settings[key.lower().replace("_", "-")] = (value, name)
    return settings


def _files(place: HostFiles) -> tuple[str, ...]:
    user = place.environ.get("NPM_CONFIG_USERCONFIG") or place.environ.get("npm_config_userconfig")
    system = place.environ.get("NPM_CONFIG_GLOBALCONFIG") or place.environ.get("npm_config_globalconfig")
    places = (system,) if system else ("/usr/etc/npmrc", "/usr/local/etc/npmrc", "/etc/npmrc")
    return (*places, user or f"{place.home}/.npmrc")


def of_a_file(text: str, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (key, value) of each line, with variables replaced. Pure."""
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and key and key[0] not in "#;[":
            yield key.strip(), _filled(value.strip().strip("\"'"), environ)


def _filled(value: str, environ: Mapping[str, str]) -> str:
    """Replace `${NAME}` as npm does; an unset variable stays unchanged."""
    out = []
    while True:
        before, opened, rest = value.partition("${")
        name, closed, after = rest.partition("}")
        out.append(before)
        if not opened or not closed:
            return "".join([*out, opened + rest])
        out.append(environ.get(name, f"${{{name}}}"))
        value = after


def _yarn(place: HostFiles) -> Iterator[tuple[str, str]]:
    """Yield the registries of both yarn files, if written as one setting per line."""
    for name, key in ((".yarnrc", "registry"), (".yarnrc.yml", "npmRegistryServer:")):
        path = f"{place.home}/{name}"
        for line in (place.text(path) or "").splitlines():
            words = line.split(None, 1)
            if len(words) == 2 and words[0] == key:
                yield words[1].strip().strip("\"'"), path


def _credentials(settings: Mapping[str, tuple[str, str]], found: Sources) -> None:
    """Assign `//host/path/:_authToken=...` to every registry with this prefix."""
    for key, (value, _) in settings.items():
        place, _, name = key.rpartition(":")
        if name not in _TOKENS or not place.startswith("//"):
            continue
        for index in found.of("npm"):
            if index.url.partition(":")[2].startswith(place):
                found.credentials.setdefault(index, Credential("", value))
