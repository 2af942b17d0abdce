"""Containers of many kinds: `make test-hosts` runs staddle in each, and writes a page."""
