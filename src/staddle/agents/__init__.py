"""`staddle agent`: coding agents whose shell, whose tools or who as a whole run in a sandbox.

A coding agent is started on the host. Its shell is replaced by a small script, the shim, which asks a broker
(`broker.py`, a thread of `staddle agent` or a process that ends with the agent) to run the command in a
sandbox.
"""
