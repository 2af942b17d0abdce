"""The fork server of sessions and the agent that is the first process of each sandbox.

    host program ── line ── zygote ── line ── maker ── clone ── spare = agent (PID 1 inside) ── fork ── shells

    sharing       which part of a view all sandboxes of a plan share, and which is each one's own (pure)
    blueprint     what a zygote is told, as bytes (pure)
    template      the zygote makes the shared part, once
    maker         a fork of the zygote that only clones itself
    spare         the clone, ahead of being asked for; own_view: what it has made of the view
    workspace     the last part: the directory that this sandbox is for
    confinement   what a process of the sandbox does to itself between fork and exec
    rehearsal     what is done ahead so that it is quick, and its memory shared
    zygote        the fork server's loop
    client        the host program's side
    agent ...     what the first process inside does from then on
    clerk ...     a process inside that looks after files for the host program

Only standard library, single-threaded, everything imported before the first clone: the files
of this package are out of sight soon after.
"""
