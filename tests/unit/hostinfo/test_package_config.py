"""What the package managers find inside has no password in it."""

from __future__ import annotations

from staddle.hostinfo.package_config import configuration, npm, pip, uv
from staddle.hostinfo.package_sources import Sources


def found() -> Sources:
    sources = Sources()
    sources.add("pip", "https://me:secret@mirror.example/simple/?token=secret", "index-url", "pip.conf")
    sources.add("pip", "http://plain.example:81/simple", "extra-index-url", "pip.conf")
    sources.add("npm", "https://secret@npm.example/registry/", "registry", ".npmrc")
    return sources


def test_the_indexes_are_the_hosts_without_their_credentials() -> None:
    text = pip(found().of("pip"), "/etc/ssl/certs/ca.pem")
    assert "break-system-packages = true" in text
    assert "index-url = https://mirror.example/simple/\n" in text
    assert "extra-index-url = http://plain.example:81/simple\n" in text
    assert "trusted-host = plain.example\n" in text
    assert "cert = /etc/ssl/certs/ca.pem\n" in text
    assert "registry=https://npm.example/registry/\n" in npm(found().of("npm"))
    assert "secret" not in text + npm(found().of("npm"))
    assert uv(found().of("pip")) == 'index-url = "https://mirror.example/simple/"\n'
    assert uv(found().of("pip"), "/etc/ssl/certs/ca.pem").endswith("native-tls = true\n")
    assert uv(()) == ""


def test_where_nothing_is_reached_nothing_is_told() -> None:
    for mode in ("deny", "loopback"):
        etc, home = configuration(mode)
        assert b"index-url" not in etc["/etc/pip.conf"]
        assert b"registry" not in home[".npmrc"]
