"""The files of a sandbox: in layers on the workspace, in a copy of it, kept by name; and snapshots."""
