"""The public objects: a sandbox, its sessions, results. Runs in the host program, with its rights.

open/        from settings to a sandbox that is open
workspace/   where its changes are: in layers, in a copy, kept; snapshots of them
aio/         the same, awaited

sandbox      the face of everything; session: of a shell; execution: one program without one
result       what came of a command; capture: its output, bounded
stream       its output while it runs; processes, terminal: what runs beside it
files        the files inside; archives: as tar; file_client: the line to whoever does it there
pool         sandboxes that are opened ahead
"""
