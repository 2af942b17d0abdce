"""Persistent shells in a sandbox: the wire protocol, the driver, and its faces."""
