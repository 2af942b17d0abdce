"""`staddle mcp`: sandboxes as tools of the Model Context Protocol. Needs the extra `mcp`.

Nothing else of staddle imports this room: the SDK takes over a second to load.
"""
