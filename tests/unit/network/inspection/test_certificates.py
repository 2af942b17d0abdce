"""The sandbox's authority, as other programs read it."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from staddle.hostnames import parse
from staddle.network.inspection.certificates import Authority


def verified(authority: Authority, name: str, tmp_path: Path) -> str:
    (tmp_path / "ca.pem").write_text(authority.pem())
    (tmp_path / "leaf.pem").write_bytes(authority.leaf(name).public_bytes(Encoding.PEM))
    argv = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", name]
    found = subprocess.run(
        [*argv, "-CAfile", "ca.pem", "leaf.pem"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    return found.stdout + found.stderr


def test_openssl_accepts_permitted_names_only(tmp_path: Path) -> None:
    authority = Authority([parse("api.example:443"), parse("*.wide.example")])
    for name in ("api.example", "a.b.wide.example", "x" * 63 + ".wide.example"):
        assert authority.permits(name)
        assert "leaf.pem: OK" in verified(authority, name, tmp_path)
    assert not authority.permits("evil.example")
    assert not authority.permits("wide.example")
    assert "permitted subtree violation" in verified(authority, "evil.example", tmp_path)


def test_a_leaf_is_made_once() -> None:
    authority = Authority([parse("api.example")])
    assert authority.leaf("api.example") is authority.leaf("api.example")


@pytest.mark.slow
def test_java_reads_the_trust_store(tmp_path: Path) -> None:
    keytool = shutil.which("keytool")
    assert keytool is not None, "install a JDK or JRE: keytool reads the trust store"
    (tmp_path / "trust.p12").write_bytes(base64.b64decode(Authority([parse("api.example")]).truststore()))
    argv = [keytool, "-list", "-keystore", "trust.p12", "-storepass", "changeit"]
    found = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "trustedCertEntry" in found.stdout
