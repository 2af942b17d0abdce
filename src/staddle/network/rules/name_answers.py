"""The answers of a resolver of ours: allowed names get their synthetic addresses, others do not exist. Pure.

Nothing is asked outside: whether a name has an address is known when it is dialled. So a name that is
not allowed cannot carry anything out, and one that is allowed answers at once.
"""

from __future__ import annotations

from . import dns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .synthetic import Addresses


def answer(
    packet: bytes, addresses: Addresses, named: Callable[[dns.DnsQuestion, str], bytes], *, over_tcp: bool
) -> bytes | None:
    """The answer to one message; None when it deserves none. `named` answers for a host name."""
    try:
        question = dns.parse(packet, over_tcp)
    except dns.Unanswerable as error:
        return error.answer
    except dns.DnsFormatError:
        return None
    code = dns.problem(question)
    if code is not None:
        return dns.error_answer(question, code)
    name = question.name
    if name is None:
        return dns.error_answer(question, dns.NO_SUCH_NAME)
    if name == "localhost" or name.endswith(".localhost"):
        return dns.address_answer(question, bytes((127, 0, 0, 1)), bytes(15) + b"\1")
    if name.endswith(".arpa"):
        packed = dns.address_in(name)
        known = addresses.name(packed) if packed else None
        if known is None:
            return dns.error_answer(question, dns.NO_SUCH_NAME)
        if question.kind in (dns.PTR, dns.ANY):
            return dns.pointer_answer(question, known)
        return dns.error_answer(question, dns.OK)
    return named(question, name)
