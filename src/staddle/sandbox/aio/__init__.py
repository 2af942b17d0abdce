"""`AsyncSandbox` and its parts: the sandbox for asyncio."""
