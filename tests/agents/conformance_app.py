"""The server of `staddle mcp` without its token, for the protocol's conformance package, which sends none.

   conformance_app.py WORKSPACE

With the fixtures that the package asks for: tools, resources and prompts of given names. Prints its address.
"""

from __future__ import annotations

import asyncio
import sys

import uvicorn

from staddle.mcp.http import PATH, http_app, loopback_socket
from staddle.mcp.sandboxes import ServerSettings
from staddle.mcp.server import make_server


def main() -> None:
    server = make_server(ServerSettings(sys.argv[1], unasked=frozenset({"commit"})))
    if "fixtures" in sys.argv[2:]:
        from tests.agents.conformance_fixtures import add_fixtures

        add_fixtures(server)
    with loopback_socket(0) as listener:
        port = listener.getsockname()[1]
        print(f"http://127.0.0.1:{port}{PATH}", flush=True)
        config = uvicorn.Config(http_app(server, port), log_level="error", lifespan="on")
        asyncio.run(uvicorn.Server(config).serve([listener]))


if __name__ == "__main__":
    main()
