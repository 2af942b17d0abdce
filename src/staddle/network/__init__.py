"""The network of a sandbox: names, addresses, the gateway that dials, and forwards into it.

A sandbox has no interface but its own loopback. What the policy allows is made reachable
there: our resolver answers allowed names with addresses that are routed to loopback, and the
sockets that listen for them, made inside, are held by the gateway, a process on the host. It
knows the destination from the socket, decides, dials and relays. Programs inside need no
settings, and nothing else exists that they could reach.

    rules       pure: what is read and decided
    namespace   what is made in the sandbox's network namespace, and handed out of it
    gateway     the process on the host; gateway/http_proxy: in its place on macOS
    host        called by the launcher, and by its starter
"""
