"""Public objects: sandbox, sessions, results. They run in the host program, with its rights.

open/        opens a sandbox: from settings to a running agent; open_sandbox: the state of an open sandbox
workspace/   stores its changes: in layers, in a copy, under a name; snapshots of them
aio/         the same API for asyncio

sandbox      `Sandbox`; changes: diff, commit, restore and so on; session: one shell of it
arguments    checks a caller's arguments; capture: a command and its bounded output; result
spawn        starts programs; execution: runs one in the foreground, or a shell's command
stream       output of a running command; processes, terminal: programs beside the shell
files        files inside, and tar archives of them; file_client: requests to the file server
environment  an agent's tools; pool: prewarmed sandboxes
"""
