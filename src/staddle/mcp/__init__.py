"""`staddle mcp`: sandboxes as tools of the Model Context Protocol. Needs the extra `mcp`.

No other part of staddle imports this package: the SDK takes over a second to load.
"""
