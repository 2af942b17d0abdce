"""Thin kernel bindings: numbers, structures and calls. No policy in here."""
