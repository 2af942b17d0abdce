"""What this container is, by evidence, and with which options it would enforce everything."""
