"""The network of a sandbox: names, addresses, the gateway process and forwarded ports.

A sandbox has only its own loopback interface. Our resolver answers allowed names with addresses that are
routed to loopback. The listening sockets for these addresses are created inside, but a process on the host,
the gateway, owns them. It reads the destination from the socket, decides, connects and relays. Programs
inside need no settings and can reach nothing else.

    rules       parsing and decisions, pure
    namespace   sets up the sandbox's network namespace, and hands its sockets out
    gateway     the process on the host; gateway/http_proxy replaces it on macOS
    host        called by the launcher and by the process that starts it
"""
