import functools
from . import session, namespaces, checks
from .checks import Containment


@functools.cache
def rep(network):
    return session.run("landlock", network=network, deny_below="readable")


class TestLandlock(Containment):
    backend = "landlock"
    networks = ("deny", "open")

    def report(self, network="deny"):
        return rep(network)

    def in_a_process(self, arguments):
        return checks.in_a_process(
            {"backend": "landlock", "deny_below": "readable", **arguments}, around=namespaces.same_user()
        )

    def in_a_terminal(self, arguments):
        return checks.in_a_terminal({"backend": "landlock", "deny_below": "readable", **arguments})
