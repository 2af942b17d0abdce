"""Our code between clone and exec, and inside the sandbox: build it, drop privileges, exec the command."""
