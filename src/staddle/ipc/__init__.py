"""Messages between our own processes: bytes, descriptors, and every message type."""
