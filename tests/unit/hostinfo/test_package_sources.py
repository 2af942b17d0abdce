"""Where a host gets its packages from, by its tools' configuration; and nothing of its credentials."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pytest

from staddle import Network
from staddle.errors import PolicyError
from staddle.hostinfo import package_hosts
from staddle.hostinfo.package_hosts import allowed, read
from staddle.hostinfo.package_sources import Credential, Sources

SECRET = "s3cret-pass"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def found(root: Path, files: dict[str, str], manager: str, **environ: str) -> Sources:
    return read([manager], environ=environ, home="/home/me", root=str(write(root, files)))  # type: ignore[list-item]


def urls(sources: Sources, kind: str | None = None) -> list[str]:
    return [index.url for index in sources.indexes if kind in (None, index.kind)]


# --- pip and uv


def test_without_a_configuration_they_are_the_public_ones(tmp_path: Path) -> None:
    sources = read(environ={}, home="/home/me", root=str(tmp_path))
    assert {index.host for index in sources.indexes} == {
        "pypi.org",
        "files.pythonhosted.org",
        "deb.debian.org",
        "security.debian.org",
        "registry.npmjs.org",
        "registry.yarnpkg.com",
    }


def test_pips_files_in_their_order_and_variables_before_them(tmp_path: Path) -> None:
    files = {
        "/etc/pip.conf": "[global]\nindex-url = https://one.test/simple\ncert = /etc/own.pem\n",
        "/home/me/.config/pip/pip.conf": "[global]\nindex_url=http://two.test:8080/simple\n"
        "extra-index-url =\n    https://three.test/a\n    https://four.test/b\nproxy = http://proxy.test:3128\n",
    }
    sources = found(tmp_path, files, "pip")
    assert urls(sources, "index-url") == ["http://two.test:8080/simple"]
    assert urls(sources, "extra-index-url") == ["https://three.test/a", "https://four.test/b"]
    assert sources.certificates == ["/etc/own.pem"]
    assert [proxy.url for proxy in sources.proxies] == ["http://proxy.test:3128"]
    sources = found(tmp_path, {}, "pip", PIP_INDEX_URL="https://five.test/simple", PIP_EXTRA_INDEX_URL="")
    assert urls(sources, "index-url") == ["https://five.test/simple"]


def test_pip_may_be_told_to_read_another_file_or_none(tmp_path: Path) -> None:
    files = {
        "/etc/pip.conf": "[global]\nindex-url = https://one.test/s\n",
        "/x": "[install]\nfind-links = /wheels\n",
    }
    assert urls(found(tmp_path, files, "pip", PIP_CONFIG_FILE="/dev/null"), "index-url") == [
        "https://pypi.org/simple"
    ]
    sources = found(tmp_path, {}, "pip", PIP_CONFIG_FILE="/x", PIP_NO_INDEX="1")
    assert sources.indexes == []
    assert [(item.path, item.kind) for item in sources.directories] == [("/wheels", "find-links")]


def test_uv(tmp_path: Path) -> None:
    files = {
        "/home/me/.config/uv/uv.toml": '[[index]]\nurl = "https://a.test/s"\ndefault = true\n'
        '[[index]]\nurl = "https://b.test/s"\n[pip]\nextra-index-url = ["https://c.test/s"]\n',
        "/etc/uv/uv.toml": "not toml",
    }
    sources = found(tmp_path, files, "pip", UV_INDEX="mine=https://d.test/s https://e.test/s")
    for host in "abcde":
        assert f"https://{host}.test/s" in urls(sources)
    assert sources.unread == [("/etc/uv/uv.toml", "it is not TOML")]


# --- apt


def test_apts_lists_and_sources(tmp_path: Path) -> None:
    files = {
        "/etc/apt/sources.list": "deb [arch=amd64 signed-by=/k] http://one.test/debian bookworm main # x\n"
        "#deb http://no.test/ x y\ndeb-src mirror+https://two.test/debian bookworm main\n"
        "deb cdrom:[Debian]/ bookworm main\ndeb file:/srv/local x y\n",
        "/etc/apt/sources.list.d/a.sources": "Types: deb\nURIs: https://three.test/a\n https://four.test/b\n\n"
        "Enabled: no\nURIs: https://no.test/\n\n# a comment\nuris: http://five.test/\n",
        "/etc/apt/sources.list.d/b.list.disabled": "deb http://no.test/ x y\n",
        "/etc/apt/sources.list.d/odd name.list": "deb http://no.test/ x y\n",
    }
    hosts = [index.host for index in found(tmp_path, files, "apt").indexes]
    assert hosts == ["one.test", "two.test", "three.test", "four.test", "five.test"]


def test_apts_proxies_certificates_and_credentials(tmp_path: Path) -> None:
    files = {
        "/etc/apt/sources.list": "deb https://one.test/debian x y\ndeb https://two.test/debian x y\n",
        "/etc/apt/apt.conf": 'Acquire::http::Proxy "http://proxy.test:3128/";\n'
        'Acquire::https::Proxy "DIRECT";\n',
        "/etc/apt/apt.conf.d/90x": '/* no */ Acquire { https { Proxy "http://other.test:1"; '
        'CAInfo "/ca.pem"; }; };'
        '\n// Acquire::http::Proxy "http://no.test";\n',
        "/etc/apt/auth.conf.d/a.conf": f"machine one.test/debian login me password {SECRET}\n"
        "machine x login y\n",
    }
    sources = found(tmp_path, files, "apt")
    assert [proxy.url for proxy in sources.proxies] == ["http://proxy.test:3128/", "http://other.test:1"]
    assert sources.certificates == ["/ca.pem"]
    assert list(sources.credentials.items()) == [(sources.indexes[0], Credential("me", SECRET))]


# --- npm and yarn


def test_npm_and_yarn(tmp_path: Path) -> None:
    files = {
        "/etc/npmrc": "registry=https://one.test/npm\n",
        "/home/me/.npmrc": "; comment\nregistry = https://${MIRROR}/npm/\n@corp:registry=https://three.test/\n"
        f"//two.test/npm/:_authToken={SECRET}\nhttps-proxy=http://proxy.test:1\ncafile=/ca.pem\n",
        "/home/me/.yarnrc.yml": 'npmRegistryServer: "https://four.test"\n',
    }
    sources = found(tmp_path, files, "npm", MIRROR="two.test")
    assert urls(sources, "registry") == ["https://two.test/npm/"]
    assert urls(sources, "@corp") == ["https://three.test/"]
    assert urls(sources, "yarn") == ["https://four.test"]
    assert sources.credentials[sources.indexes[0]] == Credential("", SECRET)
    assert sources.certificates == ["/ca.pem"]
    sources = found(tmp_path, {}, "npm", npm_config_registry="http://five.test:4873/")
    assert urls(sources, "registry") == ["http://five.test:4873/"]


# --- credentials


def test_nothing_that_can_be_shown_holds_a_credential(tmp_path: Path) -> None:
    sources = found(
        tmp_path, {}, "pip", PIP_INDEX_URL=f"https://me:{SECRET}@one.test/simple?token={SECRET}#{SECRET}"
    )
    index = sources.indexes[0]
    assert index.url == "https://one.test/simple"
    assert sources.credentials[index] == Credential("me", SECRET)
    for shown in (
        repr(sources),
        repr(index),
        repr(sources.credentials),
        str(index.as_dict()),
        repr(vars(sources)),
    ):
        assert SECRET not in shown
        assert "me:" not in shown
    with pytest.raises(TypeError):
        pickle.dumps(sources.credentials[index])


@pytest.mark.parametrize(
    "key", ["a8f5f167f44f4964e6c998dee827110c", "Xk3vB9qLm2Zt7RwY", "glpat-0123456789abcdef"]
)
def test_a_key_in_the_path_is_a_credential(tmp_path: Path, key: str) -> None:
    index = (sources := found(tmp_path, {}, "pip", PIP_INDEX_URL=f"https://one.test/{key}/simple")).indexes[0]
    assert index.url == "https://one.test/"
    assert sources.credentials[index] == Credential("", f"/{key}/simple")


@pytest.mark.parametrize(
    "path", ["/repository/pypi-proxy/simple", "/api/v4/projects/12345678/packages/pypi/simple"]
)
def test_a_path_of_words_is_none(tmp_path: Path, path: str) -> None:
    sources = found(tmp_path, {}, "pip", PIP_INDEX_URL=f"https://one.test{path}")
    assert urls(sources, "index-url") == [f"https://one.test{path}"]
    assert sources.credentials == {}


def test_what_is_no_url_is_said_without_it(tmp_path: Path) -> None:
    for bad in (f"ftp://me:{SECRET}@x/", f"https://{SECRET}@exa mple/", f"https://x:99999/{SECRET}", SECRET):
        sources = found(tmp_path, {}, "pip", PIP_INDEX_URL=bad)
        assert urls(sources) == []
        assert sources.unread[0][0] == "PIP_INDEX_URL"
        assert SECRET not in repr(sources.unread)


# --- the allow list


def test_every_index_and_proxy_is_allowed_at_its_port(tmp_path: Path) -> None:
    environ = {
        "PIP_INDEX_URL": "https://me:pw@mirror.test/simple",
        "PIP_EXTRA_INDEX_URL": "http://127.0.0.1:3141/x http://localhost:3142/x https://[2001:db8::1]/x",
        "https_proxy": "http://proxy.test:3128",
    }
    known = {"mirror.test": ["10.0.0.7", "93.184.216.34"], "proxy.test": ["192.168.1.1", "fe80::1"]}
    made = allowed(found(tmp_path, {}, "pip", **environ), lambda name: known.get(name, []))
    assert set(made) == {
        "mirror.test:443",
        "10.0.0.7:443",
        "127.0.0.1:3141",
        "127.0.0.1:3142",
        "[::1]:3142",
        "[2001:db8::1]:443",
        "proxy.test:3128",
        "192.168.1.1:3128",
        "[fe80::1]:3128",
    }
    network = Network.allow(*made)
    assert network.permits("mirror.test", 443)
    assert not network.permits("mirror.test", 80)
    assert not network.permits("93.184.216.34", 443)
    assert "pw" not in repr(network)


def test_a_ready_allow_list_is_of_this_host_and_of_what_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:{SECRET}@127.0.0.1:3141/simple")
    network = Network.packages("api.example.com:443", managers=["pip"])
    assert network.permits("127.0.0.1", 3141)
    assert network.permits("api.example.com", 443)
    assert not network.permits("pypi.org", 443)
    assert SECRET not in repr(network) + str(network)
    with pytest.raises(PolicyError, match="no package manager 'brew'"):
        Network.packages(managers=["brew"])


def test_all_names_are_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["one.test", "two.test", "three.test", "four.test"]
    every = threading.Barrier(len(names), timeout=20)

    def addresses(name: str) -> tuple[str, ...]:
        every.wait()  # breaks if a name waits for another one's answer
        return (f"of {name}",)

    monkeypatch.setattr(package_hosts, "addresses", addresses)
    assert package_hosts.every_address(names) == {name: (f"of {name}",) for name in names}
