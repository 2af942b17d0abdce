"""The program that `wrap_bash_command` puts before a command: see `landlock_exec.run_jail_exec`."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Appended, so that no file next to the package can replace a module of the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from staddle.environment.landlock_exec import run_jail_exec

    sys.exit(run_jail_exec(sys.argv[1:]))
