"""Agent frameworks over staddle: one file for each, behind an extra of the same name.

A file imports its framework at import time, and only staddle's public names. docs/adapters.md has an example
for each.
"""
