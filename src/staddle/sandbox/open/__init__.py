"""From settings to an open sandbox, and what is held of it on the host: its limits, network, agent."""
