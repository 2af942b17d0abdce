"""Decisions about the network: names, addresses, first bytes. Pure."""
