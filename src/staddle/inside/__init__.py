"""Ours between clone and exec, and in the sandbox: make it, let go of every right, become the command."""
