"""The agent, first process (PID 1) of a session's sandbox, and its file server.

Neither has rights outside.
"""
