"""What our own processes say to each other: bytes and descriptors, and every message there is."""
