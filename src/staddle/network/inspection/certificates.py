"""The certificate authority of one sandbox: made in memory, signs for the inspected hosts only."""

from __future__ import annotations

import base64
import ipaddress
import os
from collections import OrderedDict
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...hostnames import HostRule

_LIFE, _LEAF_LIFE, _SLACK = timedelta(days=30), timedelta(days=6), timedelta(hours=1)
_MOST = 1024
#: The password that Java programs expect of a trust store. It protects nothing: certificates are public.
_TRUSTSTORE_PASSWORD = b"changeit"
#: A subject of more than 64 characters is invalid.
_LONGEST_COMMON_NAME = 64


class Authority:
    """Signs a certificate for each inspected name. Clients accept it for `hosts` only.

    RFC 5280 lets a constraint to a name cover its subdomains, so the certificate for `*.example.com` is also
    accepted for example.com. The inspector never signs for it then.
    """

    def __init__(self, hosts: Iterable[HostRule]) -> None:
        self._hosts = tuple(hosts)
        self._key = ec.generate_private_key(ec.SECP256R1())
        #: One key for all leaf certificates. It is as secret as the authority's own key.
        self.leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaves: OrderedDict[str, x509.Certificate] = OrderedDict()
        permitted = sorted({rule.host for rule in self._hosts}) or ["invalid"]
        excluded = [ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")]
        constraints = x509.NameConstraints(
            [x509.DNSName(name) for name in permitted], [x509.IPAddress(network) for network in excluded]
        )
        # Random, because a program may trust the authorities of several sandboxes.
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"staddle sandbox {os.urandom(6).hex()}")])
        public = self._key.public_key()
        identifier = x509.SubjectKeyIdentifier.from_public_key(public)
        self._issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
        self.certificate = (
            _builder(name, name, public, _LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(is_authority=True), critical=True)
            .add_extension(constraints, critical=True)
            .add_extension(identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def pem(self) -> str:
        """Return the authority's certificate."""
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def truststore(self) -> str:
        """Return a PKCS12 trust store for Java as base64."""
        entry = PKCS12Certificate(self.certificate, b"staddle")
        encryption = BestAvailableEncryption(_TRUSTSTORE_PASSWORD)
        return base64.b64encode(serialize_java_truststore([entry], encryption)).decode()

    def permits(self, name: str) -> bool:
        """Whether clients would accept a certificate for `name`."""
        return any(rule.covers(name) for rule in self._hosts)

    def leaf(self, name: str) -> x509.Certificate:
        """Return a certificate for `name`: the same one for a day."""
        found = self._leaves.get(name)
        if found is not None and found.not_valid_after_utc - datetime.now(UTC) > _LEAF_LIFE - timedelta(
            days=1
        ):
            self._leaves.move_to_end(name)
            return found
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, name)] if len(name) <= _LONGEST_COMMON_NAME else []
        public = self.leaf_key.public_key()
        made = (
            _builder(x509.Name(subject), self.certificate.subject, public, _LEAF_LIFE)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            # RFC 5280: critical if the subject is empty.
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=not subject)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(self._issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self._leaves[name] = made
        if len(self._leaves) > _MOST:
            self._leaves.popitem(last=False)
        return made


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)  # clocks differ
        .not_valid_after(now + life)
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
