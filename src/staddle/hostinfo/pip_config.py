"""Read the configuration of pip and uv: their files, and variables that override them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from .package_sources import HostFiles, Sources

DEFAULT = "https://pypi.org/simple"
#: The host of the packages that the default index lists.
DEFAULT_FILES = "https://files.pythonhosted.org/"
#: Sections of pip.conf with package sources; later ones win.
_SECTIONS = ("global", "download", "install", "wheel")


def read(place: HostFiles, found: Sources) -> None:
    """Add the sources of pip and uv to `found`."""
    settings = _settings(place)
    index = settings.get("index-url")
    if not _is_true(settings.get("no-index", ("", ""))[0]):
        url, origin = index or (DEFAULT, "pip's default")
        found.add("pip", url, "index-url", origin)
        if _is_default(url):
            found.add("pip", DEFAULT_FILES, "files", origin)
        for url, origin in _each(settings.get("extra-index-url")):
            found.add("pip", url, "extra-index-url", origin)
    for url, origin in _each(settings.get("find-links")):
        found.add("pip", url, "find-links", origin)
    for url, origin in _each(settings.get("proxy")):
        found.add_proxy("pip", url, origin)
    certificate = settings.get("cert")
    if certificate is not None:
        found.add_certificate(certificate[0].strip())
    _uv(place, found)


def _settings(place: HostFiles) -> dict[str, tuple[str, str]]:
    """Return each setting with the file or variable that sets it."""
    settings: dict[str, tuple[str, str]] = {}
    for path in _files(place):
        text = place.text(path)
        if text is not None:
            settings.update(_of_a_file(text, path))
    for name, value in place.environ.items():
        if name.startswith("PIP_") and value.strip():
            settings[name.removeprefix("PIP_").lower().replace("_", "-")] = (value, name)
    return settings


def _files(place: HostFiles) -> Iterator[str]:
    """Yield the configuration files in the order in which pip reads them."""
    named = place.environ.get("PIP_CONFIG_FILE", "")
    if named == "/dev/null":
        return
    directories = place.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    yield from (f"{directory}/pip/pip.conf" for directory in directories.split(":") if directory)
    yield "/etc/pip.conf"
    yield f"{place.home}/.pip/pip.conf"
    yield f"{place.environ.get('XDG_CONFIG_HOME') or f'{place.home}/.config'}/pip/pip.conf"
    if environment := place.environ.get("VIRTUAL_ENV", ""):
        yield f"{environment}/pip.conf"
    if named:
        yield named


def _of_a_file(text: str, path: str) -> dict[str, tuple[str, str]]:
    import configparser

    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    return {
        key.replace("_", "-"): (value, path)
        for section in _SECTIONS
        if parser.has_section(section)
        for key, value in parser.items(section)
    }


def _each(setting: tuple[str, str] | None) -> Iterator[tuple[str, str]]:
    """Split a setting that is a list into its words."""
    if setting is not None:
        yield from ((word, setting[1]) for word in setting[0].split())


def _is_true(value: str) -> bool:
    return value.strip().lower() in ("1", "true", "yes", "on", "y", "t")


def _is_default(url: str) -> bool:
    return url.rstrip("/").removesuffix("/simple") == DEFAULT.removesuffix("/simple")


# ---------------------------------------------------------------- uv


def _uv(place: HostFiles, found: Sources) -> None:
    for names, kind in (
        (("UV_DEFAULT_INDEX", "UV_INDEX_URL"), "index-url"),
        (("UV_INDEX", "UV_EXTRA_INDEX_URL"), "extra-index-url"),
        (("UV_FIND_LINKS",), "find-links"),
    ):
        for name in names:
            for word in place.environ.get(name, "").replace(",", " ").split():
                found.add("pip", _without_name(word), kind, name)
    certificate = place.variable("SSL_CERT_FILE")
    if certificate is not None:
        found.add_certificate(certificate[1])
    home = place.environ.get("XDG_CONFIG_HOME") or f"{place.home}/.config"
    for path in ("/etc/uv/uv.toml", f"{home}/uv/uv.toml"):
        text = place.text(path)
        if text is not None:
            _uv_file(text, path, found)


def _uv_file(text: str, path: str, found: Sources) -> None:
    import tomllib

    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        found.unread.append((path, "it is not TOML"))
        return
    pip = data.get("pip")
    for table in (data, pip if isinstance(pip, dict) else {}):
        for key in ("index-url", "extra-index-url", "find-links"):
            for url in _texts(table.get(key)):
                found.add("pip", url, key, path)
        for index in _tables(table.get("index")):
            for url in _texts(index.get("url")):
                kind = "index-url" if index.get("default") is True else "extra-index-url"
                found.add("pip", url, kind, path)


def _texts(value: object) -> list[str]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, str)]


def _tables(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _without_name(word: str) -> str:
    """Remove the name from `name=https://...`, uv's syntax for a named index."""
    name, equals, rest = word.partition("=")
    return rest if equals and "://" in rest and "/" not in name else word
