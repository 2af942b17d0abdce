"""Read the configuration of apt: sources.list and deb822 files, proxies, certificates and auth.conf."""

from __future__ import annotations

from .package_sources import Credential

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .package_sources import HostFiles, Sources


#: The sources of an unconfigured Debian, for a Debian base on a host without apt.
DEFAULTS = ("http://deb.debian.org/debian", "http://security.debian.org/debian-security")


def read(place: HostFiles, found: Sources) -> None:
    """Add the sources of apt to `found`."""
    for path in _files(place, "/etc/apt/sources.list", "/etc/apt/sources.list.d", (".list", ".sources")):
        text = place.text(path)
        if text is None:
            continue
        urls = of_a_list(text) if path.endswith(".list") else of_sources(text)
        for url in urls:
            plain = _over_http(url)
            if plain:
                found.add("apt", plain, "sources", path)
    if not found.of("apt") and all(item.manager != "apt" for item in found.directories):
        for url in DEFAULTS:
            found.add("apt", url, "sources", "Debian's default")
    for path in _files(place, "/etc/apt/apt.conf", "/etc/apt/apt.conf.d", (".conf", "")):
        for key, value in options(place.text(path) or ""):
            words = key.lower().split("::")
            if words[0] == "acquire" and "proxy" in words:
                found.add_proxy("apt", value, path)
            elif words[0] == "acquire" and words[-1] == "cainfo":
                found.add_certificate(value)
    for path in _files(place, "/etc/apt/auth.conf", "/etc/apt/auth.conf.d", (".conf",)):
        _credentials(place.text(path) or "", found)


def _files(place: HostFiles, file: str, directory: str, ends: tuple[str, ...]) -> Iterator[str]:
    """Yield the files that apt reads. It ignores other suffixes and odd names, such as backups."""
    yield file
    for name in place.names(directory):
        if _counts(name, ends):
            yield f"{directory}/{name}"


def _counts(name: str, ends: tuple[str, ...]) -> bool:
    plain = all(char.isalnum() or char in "-_." for char in name) and not name.startswith(".")
    wanted = any(name.endswith(end) for end in ends if end)
    return plain and (wanted or ("" in ends and "." not in name))


def of_a_list(text: str) -> Iterator[str]:
    """Yield the URLs of a sources.list: `deb [options] URL suite component...`. Pure."""
    for line in text.splitlines():
        words = line.partition("#")[0].replace("[", " [ ").replace("]", " ] ").split()
        if not words or words[0] not in ("deb", "deb-src"):
            continue
        rest = words[1:]
        if rest and rest[0] == "[" and "]" in rest:
            rest = rest[rest.index("]") + 1 :]
        if rest:
            yield rest[0]


def of_sources(text: str) -> Iterator[str]:
    """Yield the URLs of a deb822 file: stanzas of fields, which may span several lines. Pure."""
    for stanza in _stanzas(text):
        if stanza.get("enabled", "yes").strip().lower() not in ("no", "false", "0", "off"):
            yield from stanza.get("uris", "").split()


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    name = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif line[0] in " \t" and name:
            fields[name] += " " + line.strip()
        else:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()


def _over_http(url: str) -> str:
    """Return the http or https URL in an apt URL, which may have a transport prefix; else empty."""
    transport, colon, _ = url.partition(":")
    inner = transport.rpartition("+")[2]
    return inner + url[len(transport) :] if colon and inner in ("http", "https") else ""


def options(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of every setting in an apt.conf, including nested ones. Pure."""
    scopes: list[str] = []
    words: list[str] = []
    for word in _words(text):
        if word == "{":
            scopes.append(words[0] if words else "")
            words = []
        elif word in (";", "}"):
            if len(words) >= 2:
                yield "::".join(scope for scope in (*scopes, words[0]) if scope), words[1]
            words = []
            if word == "}" and scopes:
                scopes.pop()
        else:
            words.append(word)


def _words(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        char = text[at]
        if text.startswith("//", at) or char == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif text.startswith("/*", at):
            end = text.find("*/", at)
            at = len(text) if end < 0 else end + 2
        elif char == '"':
            end = text.find('"', at + 1)
            end = len(text) if end < 0 else end
            yield text[at + 1 : end]
            at = end + 1
        elif char in "{};":
            yield char
            at += 1
        elif char.isspace():
            at += 1
        else:
            end = at
            while end < len(text) and not text[end].isspace() and text[end] not in '{};"':
                end += 1
            yield text[at:end]
            at = end


def _credentials(text: str, found: Sources) -> None:
    """Parse auth.conf, which has the netrc format: machine [scheme://]host[:port][/path], login, password."""
    words = text.split()
    said: dict[str, str] = {}
    for key, value in [*zip(words[::2], words[1::2], strict=False), ("machine", "")]:
        if key == "machine" and said.get("login"):
            _assign(said, found)
        if key == "machine":
            said = {}
        said[key] = value


def _assign(said: dict[str, str], found: Sources) -> None:
    machine = said.get("machine", "").partition("://")[2] or said.get("machine", "")
    host, _, path = machine.partition("/")
    for index in found.of("apt"):
        named = host in (index.host, f"{index.host}:{index.port}")
        if named and index.path.startswith(f"/{path}"):
            found.credentials.setdefault(index, Credential(said["login"], said.get("password", "")))
