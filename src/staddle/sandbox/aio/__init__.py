"""The sandbox, awaited: `AsyncSandbox` and all that it has."""
