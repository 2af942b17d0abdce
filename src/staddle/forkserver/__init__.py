"""The fork server of sessions, both sides of it. A process that it clones becomes the agent of a sandbox.

    host program ── socket ── server ── socket ── cloner ── clone ── spare = agent (PID 1) ── fork ── shells

    client        the host program's side: fork servers by configuration, sandboxes taken from them
    start         its process, which starts before its configuration is known
    connection    one fork server: its process, the socket to it, and the requests
    server        the fork server's loop, and its spares
    server_mounts the shared part of the view, made once, and the directories of each sandbox
    cloner        a fork of the server that only clones itself
    spare         the clone, until it is taken

The server's side uses only the standard library, is single-threaded, and imports everything before the first
clone. Soon after, the files of this package are no longer visible.
"""
