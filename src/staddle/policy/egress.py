"""Prepare a plan for the HTTP inspector: variables with placeholders, and trust in its authority inside.

The inspector answers TLS in the name of the hosts that it inspects, with certificates of an authority of its
own. Only programs of this sandbox trust that authority, because only they see these files.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from ..errors import PolicyError
from ..hostnames import parse
from ..paths import covers
from .http_rules import PORTS
from .plan import Text, Variable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..hostnames import HostRule
    from .egress_secret import EgressSecret
    from .network import Network
    from .plan import Plan
    from .policy import Policy

#: The directory of the files inside, and the origin in the plan.
PLACE, ORIGIN = "/etc/staddle", "http inspector"
#: The authorities of the host and of the inspector; the inspector's alone; and both for Java.
BUNDLE, AUTHORITY, JAVA = (
    f"{PLACE}/{name}" for name in ("authorities.pem", "authority.pem", "authorities.p12")
)
#: Bundles of distributions: Debian, Fedora, openSUSE, Alpine. The first is the host's; inside, all are
#: replaced.
BUNDLES = (
    *("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"),
    *("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem", "/etc/pki/tls/cert.pem"),
)
#: Variables that name a bundle.
_VARIABLES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "AWS_CA_BUNDLE"),
    *("CARGO_HTTP_CAINFO", "DENO_CERT", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"),
)
#: Password of the trust store for Java. It protects nothing: the store has certificates only.
JAVA_PASSWORD = "changeit"  # noqa: S105
_LARGEST_BUNDLE = 4 << 20
#: Modules of the extra `egress` that the inspector imports, and that these import.
_MODULES = ("cryptography", "OpenSSL", "h11", "h2", "hpack", "hyperframe", "_cffi_backend")


def site_packages() -> tuple[str, ...]:
    """Return the directories with the modules of the inspector, without importing them.

    Raises PolicyError if the extra is not installed.
    """
    if missing := missing_modules():
        raise PolicyError(
            "HTTP rules and secrets at egress need the extra `egress`",
            why=f"the package {missing[0]} is not installed",
            fix="pip install 'staddle[egress]'",
        )
    places: dict[str, None] = {}
    for spec in filter(None, map(find_spec, _MODULES)):
        place = os.path.dirname(spec.origin or "")
        places[os.path.dirname(place) if spec.submodule_search_locations else place] = None
    return tuple(places)


def refuse_writable_packages(written: Iterable[str]) -> None:
    """Refuse write grants for the packages that the inspector runs: it has secrets, and runs outside."""
    places = {os.path.realpath(place) for place in site_packages()}
    for path in written:
        for place in places:
            if covers(path, place) or covers(place, path):
                raise PolicyError(
                    "the HTTP inspector's own packages may be written by what it inspects",
                    why=f"{place!r} has them, and {path!r} may be written",
                    fix="install staddle[egress] into an environment elsewhere, or grant less",
                )


def missing_modules() -> list[str]:
    """Return the modules of the extra `egress` that are not installed."""
    found = {name: find_spec(name) for name in _MODULES if name != "_cffi_backend"}  # not in every build
    return [name for name, spec in found.items() if spec is None or spec.origin is None]


def without_sources(
    policy: Policy, env: Mapping[str, str]
) -> tuple[Policy, Mapping[str, str], dict[str, str]]:
    """Return the policy and the host's variables without the sources of its secrets, and placeholders.

    A sandbox must not see a secret in another way than by its placeholder. The placeholders are replaced when
    the sandbox opens.
    """
    network = policy.network
    for secret in policy.secrets:
        for entry in _entries(secret):
            host = f"any.{entry.host}" if entry.kind == "subdomains" else entry.host
            is_reached = any(network.permits(host, port) for port in entry.ports)
            if network.mode != "allow" or not is_reached:
                raise PolicyError(
                    f"the secret {secret.name!r} is for {entry}, which the network does not allow",
                    why=f"the network is {network.mode}: a secret needs an allow list with its hosts",
                    fix=f"use Network.allow({str(entry.replace(ports=()))!r}), or leave the secret out",
                )
    kinds = [secret.shown_source.partition(":") for secret in policy.secrets]
    variables = {rest for kind, _, rest in kinds if kind == "env"}
    if passed := variables.intersection(policy.pass_env):
        raise PolicyError(
            f"pass_env has {min(passed)!r}, and a secret comes from it",
            why="then its value would be inside, and not only its placeholder",
            fix="leave one of them out",
        )
    files = [rest for kind, _, rest in kinds if kind == "file"]
    visible = {name: value for name, value in env.items() if name not in variables}
    placeholders = {secret.name: f"{secret.placeholder}(made at the start)" for secret in policy.secrets}
    return policy.replace(deny=(*policy.deny, *files)), visible, placeholders


def inspected_hosts(plan: Plan, network: Network) -> tuple[str, ...]:
    """Return the hosts, with ports, whose connections go through the inspector while `network` applies."""
    found = {str(rule.host_rule()) for rule in network.http}
    found |= {str(limit.host_rule()) for limit in network.http_limits}
    found |= {str(entry) for secret in plan.secrets for entry in _entries(secret)}
    return tuple(sorted(found))


def request_rules(plan: Plan) -> tuple[str, ...]:
    """Return the rules for the inspector. They allow every request to a host that has only a secret."""
    rules = [str(rule) for rule in plan.network.http]
    with_rules = [rule.host_rule() for rule in plan.network.http]
    for secret in plan.secrets:
        for entry in _entries(secret):
            names = entry.host, f"any.{entry.host}"
            if not any(rule.covers(name) or entry.covers(rule.host) for rule in with_rules for name in names):
                rules.append(f"* {entry}/**")
    return tuple(dict.fromkeys(rules))


def with_trust(plan: Plan, authority: str, java: bytes, placeholders: Mapping[str, str]) -> Plan:
    """Return the plan in which programs trust `authority`, a PEM, and see these placeholders.

    `java` is a PKCS #12 file of the same certificate and the host's.
    """
    if (grant := next((grant for grant in plan.grants if covers(grant.path, PLACE)), None)) is not None:
        raise PolicyError(
            "requests cannot be inspected",
            why=f"the certificates of the inspector are shown in {PLACE}, and {grant.origin} covers it",
            fix="grant less of /etc",
        )
    root = plan.base or "/"
    places = {}
    for path in BUNDLES:
        real = os.path.realpath(os.path.join(root, path.lstrip("/")))
        if os.path.isfile(real) and covers(os.path.realpath(root), real):
            places["/" + os.path.relpath(real, os.path.realpath(root))] = real
    own = os.environ.get("SSL_CERT_FILE") if not plan.base else None
    theirs = _content(own or next(iter(places.values()), ""))
    bundle = theirs + (b"" if not theirs or theirs.endswith(b"\n") else b"\n") + authority.encode()
    contents = {BUNDLE: bundle, AUTHORITY: authority.encode(), JAVA: java} | dict.fromkeys(places, bundle)
    texts = [text for text in plan.texts if text.path not in contents]
    texts += [Text(path, content, ORIGIN) for path, content in contents.items() if content]
    ours = dict.fromkeys(_VARIABLES, BUNDLE) | {"NODE_EXTRA_CA_CERTS": AUTHORITY}
    if java:
        store = f"-Djavax.net.ssl.trustStore={JAVA} -Djavax.net.ssl.trustStorePassword={JAVA_PASSWORD}"
        ours["JAVA_TOOL_OPTIONS"] = store
    found = {variable.name: variable for variable in plan.variables}
    for name, value in ours.items():
        found.setdefault(name, Variable(name, value, ORIGIN))
    for name, value in placeholders.items():
        found[name] = Variable(name, value, "secrets")  # shown in output: it is no secret
    return plan.replace(
        texts=tuple(sorted(texts, key=lambda text: text.path)),
        variables=tuple(found[name] for name in sorted(found)),
    )


def _entries(secret: EgressSecret) -> list[HostRule]:
    entries = [parse(host) for host in secret.hosts]
    return [entry if entry.ports else entry.replace(ports=PORTS) for entry in entries]


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_LARGEST_BUNDLE)
    except OSError:
        return b""  # then programs trust the inspector alone
