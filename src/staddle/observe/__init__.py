"""Capture, redact and record what commands do: bounded output, secrets, the audit log."""
