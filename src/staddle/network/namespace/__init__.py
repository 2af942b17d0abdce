"""The sandbox's network namespace: what is made in it, by its first process, with rights there alone."""
