"""Agent frameworks over staddle: one file for each, behind an extra of the same name.

A file imports its framework when it is imported, and staddle's public names only. docs/adapters.md has
an example for each.
"""
