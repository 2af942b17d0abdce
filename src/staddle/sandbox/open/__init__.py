"""Opens a sandbox from its settings, with its limits, network and agent on the host."""
