"""Detect this container by evidence, and the options with which it would enforce everything."""
