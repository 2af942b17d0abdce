"""The options of a shell, and the first lines it is sent, before it serves commands. Pure."""

from __future__ import annotations

from ...ipc.agent_messages import BRAKE_TRAP

#: A shell that reads its commands from a pipe, and goes on after any error.
SHELL_OPTIONS = (b"--norc", b"--noprofile", b"--noediting", b"-i")

#: It keeps no history, prints no prompt, looks for no mail, and says which it is.
_FIRST_WORDS = b"""\
unset MAILCHECK HISTFILE; set +o history +o histexpand; PS1= PS2= PS0=; shopt -u checkwinsize
trap '%(brake)b' SIGRTMAX
\\. /dev/null </dev/null >%(output)b 2>%(errors)b
((0)) 2>%(done)b >"%(nowhere)b/hello.${BASH_VERSINFO[0]-}.${BASH_VERSINFO[1]-}." || _=
"""


def greeting(paths: tuple[bytes, ...]) -> bytes:
    """The first lines to a shell with its files in these places, in the order of shell_files.NAMES.

    Among them is a command that does nothing, given as all that follow will be: the first one costs
    three times as much as another, and no caller waits for it now. It is not read from the file for
    texts, which may contain the first command of a caller already.
    """
    _, _, done, _, output, errors, nowhere = paths
    named = {b"done": done, b"output": output, b"errors": errors, b"nowhere": nowhere}
    return _FIRST_WORDS % {**named, b"brake": BRAKE_TRAP}
