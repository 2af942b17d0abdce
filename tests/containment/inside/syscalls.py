"""System calls by name: on the host staddle's own table, inside the text of that table under this name."""

from staddle.linux.syscalls import call, number

__all__ = ["call", "number"]
