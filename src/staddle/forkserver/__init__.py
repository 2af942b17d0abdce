"""The fork server of sessions, both sides of it. What it clones becomes the agent of a sandbox.

    host program ── line ── server ── line ── cloner ── clone ── spare = agent (PID 1) ── fork ── shells

    client        the host program's side; connection: one server, as that has it; requests: what it asks for
    server        the fork server's loop
    template      the server makes the shared part, once
    cloner        a fork of the server that only clones itself
    spare         the clone, ahead of being asked for; spares: those that wait
    workspace     the last part: the directory that this sandbox is for
    prewarm       what is done ahead so that it is quick, and its memory shared

On the server's side only standard library, single-threaded, everything imported before the first
clone: the files of this package are out of sight soon after.
"""
