"""A server that holds sandboxes for other programs: `staddle serve`, and `staddle.connect()`.

It stands on the standard library. One thread serves one connection, and does the work of its requests itself.
`api.py` has the table of routes, `openapi.py` describes it, `sandboxes.py` has a sandbox with all that
clients name.
"""
