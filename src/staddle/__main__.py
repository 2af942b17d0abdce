"""`python -m staddle`."""

from .cli import command

command()
