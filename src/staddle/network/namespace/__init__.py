"""Set up the sandbox's network namespace. Its first process does this, with rights in that namespace only."""
