"""Code that runs inside the sandbox: attacks that must fail, and benign twins that must work.

The whole package is sent in as text and run by the confined interpreter, so it uses the
standard library only, and nothing of staddle but the table of system call numbers.
"""
