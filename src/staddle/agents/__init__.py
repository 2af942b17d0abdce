"""`staddle agent`: run a coding agent's shell, its tools or the whole agent in a sandbox.

A coding agent starts on the host. A small script, the shim, replaces its shell and asks a broker
(`broker.py`, a thread of `staddle agent` or a process that ends with the agent) to run the command in a
sandbox.
"""
