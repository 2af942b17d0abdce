"""Persistent shells in a sandbox: the wire protocol, the driver, and its faces.

opening      from a policy and a workspace to a sandbox that is open
link         the host program's end of the line to the agent inside
protocol     what is said to a shell, and what it answers (pure)
shell        one bash session that cannot be lost
execution    one program without a shell
session      the face of a shell; sandbox: of everything; asynchronous: the same, awaited
result       what came of a command; capture: its output, bounded
streaming    its output while it runs; processes, terminal: what runs beside it
files        the files inside; archives: as tar; clerk: the line to whoever does it there
pool         sandboxes that are opened ahead
"""
