"""Files of a sandbox: in layers over the workspace, in a copy, or kept by name; and snapshots."""
