"""The public objects: a sandbox, its sessions, results. Runs in the host program, with its rights.

open/        from settings to an agent that answers; open_sandbox: all that is held of an open sandbox
workspace/   where its changes are: in layers, in a copy, under a name; snapshots of them
aio/         the same, awaited

sandbox      `Sandbox`; workspace_methods: diff, commit, snapshot and so on; session: one shell of it
arguments    checks of what a caller gives; capture: a command with its output, bounded; result
spawn        starts programs; execution: drives one in the foreground, or a shell's command
stream       the output of a command while it runs; processes, terminal: programs beside it
files        the files inside; archives: as tar; file_client: requests to the file server
environment  the tools of an agent; pool: prewarmed sandboxes
"""
