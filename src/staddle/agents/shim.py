"""The shim: an executable named `bash` that lets a broker run its arguments in a sandbox.

It is a bash script, because nothing else on every host starts as fast. It sends only a short request: the
broker reads arguments, variables, directory and standard streams of the shim from /proc. It uses only
builtins, and `cat` if a standard stream is a socket, which cannot be opened by name.

It runs outside with the user's rights, beside files that a sandbox can write. So it uses `-p`, with which
bash reads neither BASH_ENV nor functions from the environment. It uses absolute paths and evaluates none of
its arguments. On any error it exits with 125, and never runs the command itself.
"""

from __future__ import annotations

import os
import shlex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: The shim's names. As `bash` it takes bash's arguments, as `prefix` one line of shell.
BASH, PREFIX = "bash", "prefix"
#: Files in a broker's directory: the FIFO for requests, and the broker's identity.
REQUESTS, BROKER = "requests", "broker"
#: Words of the interpreter before the shim's own arguments in /proc/PID/cmdline.
INTERPRETER_WORDS = 3

_SHIM = """\
#!/bin/bash -p
# Made by staddle, not to be edited: runs its arguments in a sandbox. See `staddle docs coding-agents`.
fail() {
  [[ $reader ]] && kill $reader 2>/dev/null
  echo "staddle: $1; the command was not run" >&2
  exit 125
}
alive() {
  [[ -O $home/broker && -p $home/requests ]] && read -r pid started < "$home/broker" &&
    read -r stat 2>/dev/null < "/proc/$pid/stat" && fields=(${stat##*) }) && [[ ${fields[19]} == "$started" ]]
}
%(find)s
in=0 err=2
[[ -S /dev/stdin ]] && { exec {in}< <(exec /bin/cat <&0) && reader=$!; }
if [[ -S /dev/stdout ]]; then exec {out}> >(exec /bin/cat) && writers=$!; else exec {out}>&1; fi
if [[ -S /dev/stderr ]]; then
  if [[ /dev/stdout -ef /dev/stderr ]]; then err=$out
  else exec {err}> >(exec /bin/cat >&2) && writers+=" $!"; fi
fi
# Not 1: that is the request itself while it is written.
exec {reply}<> <(:)
printf '%%d %%d %%d %%d %%d\\n' $$ $in $out $err $reply > "$home/requests" || fail 'no answer'
until read -r -t 5 -u $reply status drained why; do alive || fail 'the broker of the sandbox has exited'; done
[[ $reader ]] && kill $reader 2>/dev/null
[[ $why ]] && { echo "staddle: $why" >&2; exit 125; }
if [[ $writers ]]; then
  exec {out}>&-
  ((err > 2 && err != out)) && exec {err}>&-
  [[ $drained ]] && wait $writers 2>/dev/null
fi
exit $status
"""
_FIXED = "home=%(home)s\nalive || fail 'the sandbox of this shell is closed'"
#: Use the broker of the directory or a parent; else start one for the agent's directory.
_SEARCHED = """\
brokers=%(brokers)s
find() {
  local dir=$PWD
  while :; do
    home=$brokers/${dir//\\//%%}
    alive && return
    [[ $dir ]] || return 1
    dir=${dir%%/*}
  done
}
find || { home=$(%(serve)s $$ </dev/null) && alive || fail 'no sandbox could be opened'; }"""


def fixed_shim(home: str) -> str:
    """The shim for the broker with this directory."""
    return _SHIM % {"find": _FIXED % {"home": shlex.quote(home)}}


def searching_shim(brokers: str, serve: Sequence[str]) -> str:
    """A shim that looks for its broker in `brokers`; else `serve` starts one and prints its directory."""
    serve_line = " ".join(map(shlex.quote, serve))
    return _SHIM % {"find": _SEARCHED % {"brokers": shlex.quote(brokers), "serve": serve_line}}


def write_shims(directory: str, text: str) -> None:
    """Write the shim under its names."""
    for name in (BASH, PREFIX):
        path = f"{directory}/{name}"
        descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o755)
        with open(descriptor, "w") as file:
            file.write(text)
        os.rename(f"{path}.new", path)


def start_ticks(pid: int) -> str:
    """Start time of a process in the kernel's ticks; with its pid, it identifies the process."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b") ")[2].split()[19].decode()
