"""Hard cases for a shell: what is run, and bash's own answer. Each is for a fresh session."""

from __future__ import annotations

from typing import Any, NamedTuple


class Step(NamedTuple):
    """One command and what must come of it. `err` None: anything."""

    text: str | bytes
    out: str | bytes | None
    code: int
    err: str | bytes | None
    exited: bool
    reason: str | None
    options: dict[str, Any]


def s(
    text: str | bytes,
    out: str | bytes | None = "",
    code: int = 0,
    err: str | bytes | None = "",
    *,
    exited: bool = False,
    reason: str | None = None,
    **options: Any,
) -> Step:
    return Step(text, out, code, err, exited, reason, options)


BIG = "x" * (1 << 20)
ALL_BYTES = bytes(range(1, 256))
#: As bash prints it for a script: no file of ours is named.
_SYNTAX_ERROR = "bash: line 1: syntax error near unexpected token `)'\nbash: line 1: `echo a; )'\n"

# With `set -x` bash shows two signs: it reads a text as a script, one level deeper than its prompt.
CASES: dict[str, list[Step]] = {
    # What lives across runs.
    "a variable": [s("x=1"), s("echo $x", "1\n")],
    "an export": [s("export E=v"), s("env | grep ^E=", "E=v\n")],
    "an unexported variable": [s("U=v"), s("env | grep ^U=", code=1), s("echo $U", "v\n")],
    "an array": [s("a=(1 'b c' 3); a[7]=x"), s('echo "${!a[@]}|${a[1]}"', "0 1 2 7|b c\n")],
    "an associative array": [s("declare -A h=([k e]=v)"), s('echo "${h[k e]}"', "v\n")],
    "an integer": [s("declare -i n=1"), s("n+=2; echo $n", "3\n")],
    "a readonly": [
        s("readonly r=1"),
        s("r=2", code=1, err="bash: r: readonly variable\n"),
        s("echo $r", "1\n"),
    ],
    "a nameref": [s("t=5; declare -n n=t"), s("n=6; echo $t", "6\n")],
    "an unset variable": [s("v=1"), s("unset v"), s('echo "${v-gone}"', "gone\n")],
    "declare is global": [s("declare d=1; local_free=2"), s("echo $d$local_free", "12\n")],
    "the directory": [
        s("mkdir d && cd d"),
        s('basename "$PWD"', "d\n"),
        s("cd ..; cd -", None),
        s("pwd | xargs basename", "d\n"),
    ],
    "OLDPWD": [s("cd /usr; cd /bin"), s("echo $OLDPWD", "/usr\n")],
    "a function": [s('f() { echo "f:$1"; }'), s("f 1", "f:1\n")],
    "an alias": [s("alias hi='echo hello'"), s("hi", "hello\n")],
    "set -o": [s("set -o noglob"), s("echo *", "*\n")],
    "shopt": [s("shopt -s nullglob"), s("echo [z]*", "\n")],
    "a trap": [s("trap 'echo usr1' USR1"), s("kill -USR1 $$", "usr1\n")],
    "umask": [s("umask 027"), s("umask", "0027\n")],
    "positional parameters": [s("set -- a 'b c'"), s('echo "$#:$2"; shift', "2:b c\n"), s("echo $#", "1\n")],
    "$?": [s("(exit 7)", code=7), s("echo $?", "7\n"), s("echo $?", "0\n")],
    "$? before an empty command": [s("(exit 7)", code=7), s("", code=0), s("echo $?", "0\n")],
    "$!": [
        s("sleep 0.01 >/dev/null 2>&1 & echo $! >p"),
        s('[ "$!" = "$(cat p)" ] && wait $! && echo same', "same\n"),
    ],
    "jobs": [
        s("sleep 5 >/dev/null 2>&1 &"),
        s("jobs -p | wc -l", "1\n"),
        s("kill %1; wait %1", code=143, err=None),
    ],
    "wait for a job of before": [s("(sleep 0.1; exit 5) >/dev/null 2>&1 &"), s("wait $!", code=5)],
    "a descriptor of its own": [s("exec 7>f7"), s("echo a >&7"), s("exec 7>&-; cat f7", "a\n")],
    "the directory stack": [s("cd /; pushd /usr >/dev/null"), s("popd", "/\n"), s("pwd", "/\n")],
    "SECONDS and RANDOM exist": [s("[ $SECONDS -lt 99 ] && [ -n $RANDOM ]")],
    "getopts goes on": [s("set -- -a -b; getopts ab o"), s("getopts ab o; echo $o", "b\n")],
    # Texts.
    "an empty command": [s(""), s("echo a", "a\n")],
    "a comment": [s("# nothing"), s("echo a # b", "a\n")],
    "several lines": [s("echo a\necho b\n", "a\nb\n")],
    "a heredoc at the end": [s("cat <<E\nhi $((1+1))\nE", "hi 2\n")],
    "an unterminated heredoc": [
        s("cat <<E\nhi", "hi\n", err=None),
        s("echo ok", "ok\n"),
    ],
    "an unterminated double quote": [s('echo "a', code=2, err=None), s("echo ok", "ok\n")],
    "an unterminated single quote": [s("echo 'a", code=2, err=None), s("echo ok", "ok\n")],
    "an unterminated backquote": [s("echo `a", code=2, err=None), s("echo ok", "ok\n")],
    "an unterminated $(": [s("echo $(echo a", code=2, err=None), s("echo ok", "ok\n")],
    "an unterminated if": [s("if true; then", code=2, err=None), s("echo ok", "ok\n")],
    "an unterminated brace": [s("{ echo a", code=2, err=None), s("echo ok", "ok\n")],
    "an unterminated function": [s("f() {", code=2, err=None), s("echo ok", "ok\n")],
    "a trailing backslash": [s("echo a\\", "a\\\n"), s("echo ok", "ok\n")],
    "a trailing and": [s("true &&", code=2, err=None), s("echo ok", "ok\n")],
    "a trailing pipe": [s("echo a |", code=2, err=None), s("echo ok", "ok\n")],
    "a syntax error": [s("echo a; )", code=2, err=_SYNTAX_ERROR), s("echo ok", "ok\n")],
    "a syntax error in a later line": [s("echo a\nfor", "a\n", code=2, err=None), s("echo ok", "ok\n")],
    "a stray done": [s("done", code=2, err=None), s("echo ok", "ok\n")],
    "a large command": [s(f"echo {BIG} | wc -c", f"{len(BIG) + 1}\n"), s("echo ok", "ok\n")],
    "a large quoted word": [s(f"x='{BIG}'; echo ${{#x}}", f"{len(BIG)}\n"), s("echo ${#x}", f"{len(BIG)}\n")],
    "many lines": [s("\n".join(f"v{i}={i}" for i in range(2000)) + "\necho $v1999", "1999\n")],
    "carriage returns": [s("echo a\r\necho b\r\n", "a\r\nb\r\n")],
    "a shorter text after a longer": [s("echo " + "a" * 9000, None), s("echo b", "b\n")],
    "unicode": [s("grün='ö'; echo ü→", "ü→\n", code=0, err=None)],
    "bytes that are not UTF-8": [s(b"echo \xff\xfe | od -An -tx1", " ff fe 0a\n")],
    "a bang": [s('echo "a!b" !x', "a!b !x\n")],
    "a tab": [s("echo 'a\tb'", "a\tb\n")],
    "a command that does not exist": [
        s("nosuchcommand", code=127, err="bash: nosuchcommand: command not found\n")
    ],
    "a directory as a command": [s("/", code=126, err="bash: /: Is a directory\n")],
    # Output.
    "no newline at the end": [s("printf abc", "abc")],
    "blank lines": [s("printf '\\n\\na\\n\\n'", "\n\na\n\n")],
    "both streams": [s("echo o; echo e >&2", "o\n", err="e\n")],
    "all bytes": [
        s(
            b"printf '"
            + ALL_BYTES.replace(b"'", b"'\\''")
            .replace(b"\\", b"\\\\")
            .replace(b"%", b"%%")
            .replace(b"'\\\\''", b"'\\''")
            + b"'",
            ALL_BYTES,
        )
    ],
    "NUL in output": [s("printf 'a\\0b'", b"a\0b")],
    "escape sequences": [s("printf '\\033[1mx\\033[0m'", "\x1b[1mx\x1b[0m")],
    "a lot": [
        s("head -c 20000000 /dev/zero | tr '\\0' a | wc -c; seq 1 200000 | tail -1", "20000000\n200000\n")
    ],
    "a lot on both streams": [
        s("seq 1 60000; seq 1 60000 >&2", "".join(f"{i}\n" for i in range(1, 60001)), err=None)
    ],
    "what looks like our answer": [
        s("echo hello.5.2. /x.0.h..; echo 0 >&2", "hello.5.2. /x.0.h..\n", err="0\n")
    ],
    "output of a process substitution": [s("echo a > >(cat)", "a\n")],
    "standard error through a filter": [s("ls /nosuch 2> >(wc -l >&2)", code=2, err="1\n")],
    # Ends of the shell.
    "exit": [s("x=1"), s("exit 3", code=3, exited=True), s("echo $x $?", "1 3\n")],
    "exit takes the state of its own command along": [
        s("cd /usr; y=2; exit 4", code=4, exited=True),
        s("echo $y $PWD", "2 /usr\n"),
    ],
    "exit in a function": [
        s("die() { exit 9; }"),
        s("die", code=9, exited=True),
        s("type -t die", "function\n"),
    ],
    "exit in a subshell": [s("(exit 5)", code=5), s("x=1; (x=2; exit 3); echo $x", "1\n")],
    "exit with an EXIT trap": [
        s("trap 'echo bye' EXIT"),
        s("exit 2", "bye\n", code=2, exited=True),
        s("echo ok", "ok\n"),
    ],
    "exit keeps everything": [
        s(
            "a=(1 2); declare -A h=([x]=y); declare -i n=3; readonly r=4; export e=5"
            "\nf() { echo f; }; alias l=echo"
        ),
        s("set -f; shopt -s extglob; umask 077; set -- p q; trap 'echo t' USR2; mkdir d; cd d; unset HOME"),
        s("exit", code=0, exited=True),
        s("n+=1"),
        s(
            'echo "${a[1]} ${h[x]} $n $r $e $(f) $# $(umask) ${PWD##*/} ${HOME-gone}"',
            "2 y 4 4 5 f 2 0077 d gone\n",
        ),
        s(
            "shopt extglob; trap -p USR2; l z; echo *",
            "extglob        \ton\ntrap -- 'echo t' SIGUSR2\nz\n*\n",
        ),
        s("r=1", code=1, err=None),
    ],
    "exec": [s("x=1"), s("exec echo hi", "hi\n", exited=True), s("echo $x", "1\n")],
    "exec of what does not exist": [s("exec nosuchprogram", code=127, err=None, exited=None)],  # type: ignore[arg-type]
    "set -e": [
        s("x=1; set -e"),
        s("false; echo no", code=1, exited=True),
        s("echo $x; set +e", "1\n"),
        s("false", code=1),
        s("echo ok", "ok\n"),
    ],
    "set -e in one text": [
        s("set -e; x=2; false; echo no", code=1, exited=True),
        s("set +e; echo $x", "2\n"),
    ],
    "set -eux": [s("set -eux; x=1; false; echo no", code=1, err="++ x=1\n++ false\n", exited=True)],
    "kill -9 $$": [s("x=1"), s("kill -9 $$", code=137, exited=True), s("echo $x", "1\n")],
    "kill -HUP $$": [
        s("x=1"),
        s("kill -HUP $$; sleep 1", code=129, exited=True, err=None),
        s("echo $x", "1\n"),
    ],
    "kill $$ is ignored": [s("kill $$; echo on", "on\n")],
    "a child kills the shell": [
        s("x=1"),
        s("sh -c 'kill -9 $PPID'", code=137, exited=True),
        s("echo $x", "1\n"),
    ],
    "logout": [s("logout", code=1, err=None, exited=None), s("echo ok", "ok\n")],  # type: ignore[arg-type]
    "return": [s("return 5", code=5), s("echo $?", "5\n")],
    "suspend": [s("suspend", None, code=1, err=None), s("echo ok", "ok\n")],
    "TMOUT": [s("x=1; TMOUT=1"), s("sleep 0.05"), s("TMOUT=; echo $x", "1\n")],
    # Descriptors.
    "closing stdin": [s("exec 0<&-"), s("cat; echo ok", "ok\n")],
    "closing stdout": [s("exec 1>&-; echo lost", code=1, err=None), s("echo ok", "ok\n")],
    "closing stderr": [s("exec 2>&-; nosuch", code=127), s("echo ok >&2", err="ok\n")],
    "redirecting stdout for good": [s("exec >f; echo a"), s("cat f", "a\n")],
    "redirecting both": [s("exec >f 2>&1; echo a; echo b >&2"), s("cat f", "a\nb\n")],
    "closing all descriptors": [
        s("x=1"),
        s('for i in {3..255}; do eval "exec $i>&-"; done; echo done', "done\n", err=None, exited=None),  # type: ignore[arg-type]
        s("echo $x", "1\n"),
    ],
    "few open files": [
        s("x=1"),
        s("ulimit -n 5", err=None, exited=None, code=0),
        s("echo $x", "1\n", err=None, exited=None),
    ],  # type: ignore[arg-type]
    "very few open files": [s("x=1"), s("ulimit -n 3", err=None, exited=None), s("echo $x", "1\n")],  # type: ignore[arg-type]
    "few processes or little memory": [
        s("ulimit -c 0; ulimit -s 4096; ulimit -S -v 2000000"),
        s("/bin/echo ok", "ok\n"),
    ],
    # Names and modes.
    "IFS": [s("IFS=:/."), s("x=a:b; echo $x", "a b\n"), s("echo ok", "ok\n")],
    "IFS of our own characters": [s("IFS='.$?/0123456789abcdef'"), s("echo ok", "ok\n"), s("false", code=1)],
    "PATH unset": [
        s("unset PATH"),
        s("echo ok", "ok\n"),
        s("ls", code=127, err="bash: ls: No such file or directory\n"),
    ],
    "aliases over builtins": [
        s("alias echo='false' :='exit' .='exit' source='exit' builtin='exit' trap='exit' '{'='exit'"),
        s("\\echo ok", "ok\n"),
        s("unalias -a"),
        s("echo ok", "ok\n"),
    ],
    "functions over builtins": [
        s(
            "echo() { :; }; printf() { :; }; test() { :; }; true() { :; }"
            "\ncd() { :; }; declare() { :; }; trap() { :; }"
        ),
        s("echo hidden; builtin echo ok", "ok\n"),
        s("exit 3", code=3, exited=True),
        s("echo hidden; builtin echo ok", "ok\n"),
    ],
    "a function over the colon": [
        s(":() { echo colon; }"),
        s("false", code=1),
        s(":", "colon\n"),
        s("echo $?", "0\n"),
    ],
    "a function over the dot": [
        s(".() { echo dot; }"),
        s("echo ok", "ok\n"),
        s(". x", "dot\n"),
        s("false", code=1),
        s("echo $?", "1\n"),
    ],
    "a function over return": [
        s("return() { echo mine; }"),
        s("false", code=1),
        s("echo $?", "1\n"),
        s("return", "mine\n"),
    ],
    "functions over dot, source and return": [
        s("x=1; .() { echo d; }; source() { echo s; }; return() { :; }"),
        s("echo ok", "ok\n"),
        s("(exit 3)", code=3),
        s("echo $? $x", "3 1\n"),
        s(". a; source b", "d\ns\n"),
    ],
    "functions over dot, source and builtin": [
        s(".() { echo d; }; source() { echo s; }; builtin() { echo b; }"),
        s("echo ok", "ok\n"),
        s("(exit 3)", code=3),
        s("echo $?; builtin x", "3\nb\n"),
    ],
    "the dot disabled": [
        s("enable -n ."),
        s("echo ok", "ok\n"),
        s("(exit 3)", code=3),
        s("echo $?", "3\n"),
        s("enable .; type -t .", "builtin\n"),
    ],
    "dot and source disabled": [
        s("enable -n . source"),
        s("echo ok", None, err=None, code=0),
        s("echo ok", "ok\n"),
    ],
    "a DEBUG trap": [
        s("trap 'echo dbg' DEBUG"),
        s("echo a", "dbg\na\n"),
        s("trap - DEBUG", "dbg\n"),
        s("echo b", "b\n"),
    ],
    "an ERR trap": [
        s("trap 'echo err' ERR"),
        s("true"),
        s("false", "err\n", code=1),
        s("true"),
        s("echo a", "a\n"),
    ],
    "enable -n of all ways to read a text": [
        s("x=1"),
        s("enable -n . source builtin"),
        s("echo $x", "1\n"),
    ],
    "enable -n of everything": [
        s("x=1"),
        s("enable -n $(enable | while read -r _ name; do echo $name; done)"),
        s("echo $x; cd /; pwd", "1\n/\n"),
    ],
    "functions in the place of all that a text is given by": [
        s("x=1"),
        s('for f in . source builtin command eval return enable; do eval "$f() { :; }"; done'),
        s("echo $x", "1\n"),
    ],
    "PROMPT_COMMAND that exits": [
        s("x=1"),
        s("PROMPT_COMMAND=exit", exited=None),
        s("echo $x", "1\n"),
        s("echo $x", "1\n"),
    ],
    "a text that ends within a substitution": [
        s("x=1"),
        s('"true" $(', code=2, err=None),
        s("sleep 0.05; echo $x", "1\n"),
        s("echo $x", "1\n"),
        s("echo $x", "1\n"),
    ],
    "extdebug with a false DEBUG trap": [
        s("x=1"),
        s("shopt -s extdebug; trap false DEBUG"),
        s("echo $x in another shell", "1 in another shell\n"),
    ],
    "a DEBUG trap that vetoes some": [
        s("shopt -s extdebug; trap '[[ $BASH_COMMAND != rm* ]]' DEBUG"),
        s("touch f; rm f; ls f", "f\n"),
        s("trap - DEBUG; shopt -u extdebug; rm f"),
    ],
    "set -x": [
        s("set -x", err=None),
        s("echo a", "a\n", err="++ echo a\n"),
        s("set +x", err="++ set +x\n"),
        s("echo b", "b\n"),
    ],
    "set -v": [
        s("set -v", err=None),
        s("echo a", "a\n", err="echo a\n"),
        s("set +v", err=None),
        s("echo b", "b\n"),
    ],
    "set -u": [
        s("set -u"),
        s("echo $nosuch", code=1, err="bash: nosuch: unbound variable\n"),
        s("echo ok", "ok\n"),
    ],
    "set -n": [s("set -n"), s("echo ok", "ok\n")],
    "set -C": [s("set -C; echo a >f"), s("echo b >f", code=1, err=None), s("cat f", "a\n")],
    "set -H": [s("set -H"), s("echo ok", "ok\n"), s("false", code=1)],
    "set -t": [s("x=1"), s("set -t", exited=None, err=None), s("echo $x", "1\n", exited=None)],  # type: ignore[arg-type]
    "set -r": [s("x=1"), s("set -r", exited=None, err=None), s("echo $x", "1\n")],  # type: ignore[arg-type]
    "posix mode": [
        s("set -o posix"),
        s("false", code=1),
        s("echo $?", "1\n"),
        s("echo $V", "v\n", env={"V": "v"}),
        s("echo ${V-gone}", "gone\n"),
    ],
    "PS1 and PROMPT_COMMAND": [
        s("PS1='p> '; PROMPT_COMMAND='echo prompt; echo prompt >&2'; PS4='@ '"),
        s("echo a", "a\n"),
        s("set -x; :", err="@@ :\n"),
    ],
    "failglob": [
        s("shopt -s failglob"),
        s("echo ok", "ok\n"),
        s("echo nosuch*", code=1, err=None),
        s("echo ok", "ok\n"),
    ],
    "noclobber and nounset together": [
        s("set -Cu"),
        s("echo ok", "ok\n"),
        s("false", code=1),
        s("echo $?", "1\n"),
    ],
    "lastpipe and pipefail": [
        s("set -o pipefail; shopt -s lastpipe"),
        s("false | true", code=1),
        s("echo a | read x; echo $x", "a\n"),
    ],
    "an exported function": [s("f() { echo f; }; export -f f"), s("bash -c f", "f\n")],
    "source": [s("echo 'y=1; return 4' >lib"), s(". ./lib", code=4), s("echo $y", "1\n")],
    "eval": [
        s("eval 'z=1; echo \"$z\"'", "1\n"),
        s("eval 'echo \"'", code=2, err=None),
        s("echo ok", "ok\n"),
    ],
    "a RETURN trap in a function": [
        s("f() { trap 'echo r; trap - RETURN' RETURN; }"),
        s("f", "r\n"),
        s("echo ok", "ok\n"),
    ],
    # Standard input and terminals.
    "read without input": [s("read x", code=1), s("echo ok", "ok\n")],
    "cat without input": [s("cat"), s("echo ok", "ok\n")],
    "input": [s("cat", "a\nb", stdin=b"a\nb"), s("cat")],
    "input for several readers": [s("read a; read b; cat; echo $b$a", "3\n21\n", stdin=b"1\n2\n3\n")],
    "a lot of input": [s("wc -c", "5000000\n", stdin=bytes(5_000_000))],
    "less input after more": [s("cat", "longer", stdin=b"longer"), s("cat", "x", stdin=b"x")],
    "a nested shell": [s("bash"), s("bash -i", err=None), s("echo ok", "ok\n")],
    "a nested shell with input": [s("bash -s", "in\n", stdin=b"echo in\n")],
    "a REPL": [s("python3", None, err=None), s("echo ok", "ok\n")],
    "/dev/tty": [
        s("echo a >/dev/tty", code=1, err=None),
        s("read x </dev/tty", code=1, err=None),
        s("echo ok", "ok\n"),
    ],
    "stdin is no terminal": [s("[ -t 0 ] || [ -t 1 ] || [ -t 2 ] || echo none", "none\n")],
    "/dev/stdout and /dev/stderr": [s("echo a >/dev/stdout; echo b >/dev/stderr", "a\n", err="b\n")],
    # For one command only.
    "env": [s("echo $V; printenv V", "v w\nv w\n", env={"V": "v w"}), s('echo "${V-gone}"', "gone\n")],
    "env over a variable": [s("V=1"), s("echo $V; V=3", "2\n", env={"V": "2"}), s("echo $V", "1\n")],
    "env with quotes": [s('echo "$V"', "a'b\"$x\n", env={"V": "a'b\"$x"})],
    "a large env": [s("echo ${#V}", "100000\n", env={"V": "v" * 100_000}), s("echo ok", "ok\n")],
    "env and $?": [s("false", code=1), s("echo $?$V", "1v\n", env={"V": "v"})],
    "cwd": [
        s("cd /usr; cd /bin"),
        s("pwd; cd /", "/tmp\n", cwd="/tmp"),
        s("echo $PWD $OLDPWD", "/bin /usr\n"),
    ],
    "a relative cwd": [s("mkdir -p d/e"), s("cd d"), s("pwd", None, cwd="e"), s("ls", "e\n")],
    "a cwd that does not exist": [
        s("pwd", code=1, err="bash: cd: /nosuch: No such file or directory\n", cwd="/nosuch"),
        s("echo ok", "ok\n"),
    ],
    "cwd and $?": [
        s("false", code=1),
        s("echo $?", "1\n", cwd="/"),
        s("(exit 4)", code=4, cwd="/"),
        s("echo $?", "4\n"),
    ],
    "a deleted directory": [
        s("mkdir d; cd d; rmdir ../d"),
        s("echo ok", "ok\n"),
        s("cd ..; ls", ""),
        s("echo ok", "ok\n"),
    ],
    "exit in a deleted directory": [
        s("mkdir d; cd d; x=1; rmdir ../d; exit", exited=True),
        s("echo $x; ls", "1\n"),
    ],
    # Time and background.
    "a timeout": [
        s("x=1"),
        s("echo a; sleep 20; echo no", "a\n", code=124, timeout=0.2, reason="timeout"),
        s("echo $x", "1\n"),
    ],
    "a timeout of a busy loop": [
        s("x=1; while :; do x=$((x+1)); done", code=124, timeout=0.2, reason="timeout"),
        s("[ $x -gt 1 ]"),
    ],
    "a timeout of what ignores TERM and INT": [
        s(
            "x=1; bash -c 'trap \"\" TERM INT; sleep 20; sleep 20'",
            code=124,
            err=None,
            timeout=0.2,
            reason="timeout",
        ),
        s("echo $x", "1\n"),
    ],
    "a timeout of what is stopped": [
        s("sh -c 'kill -STOP $$'", code=124, err=None, timeout=0.2, reason="timeout"),
        s("echo ok", "ok\n"),
    ],
    "a timeout of what left its session": [
        s(
            "setsid sleep 77777 & setsid setsid sleep 77777 & sleep 20",
            code=124,
            timeout=0.3,
            reason="timeout",
        ),
        s("ps ax -o args | grep -c '[s]leep 77777'", "0\n", code=1),
    ],
    "a timeout with an INT trap": [
        s(
            "trap 'echo int' INT; while :; do :; done",
            None,
            code=124,
            err=None,
            timeout=0.2,
            reason="timeout",
            exited=None,
        ),
        s("echo ok", "ok\n"),
    ],  # type: ignore[arg-type]
    "a timeout spares jobs of before": [
        s("sleep 20 & echo $! >p"),
        s("sleep 20", code=124, timeout=0.2, reason="timeout"),
        s("kill -0 $(cat p) && echo alive; kill $(cat p)", "alive\n"),
    ],
    "a timeout keeps what the command had changed": [
        s("y=2; cd /usr; sleep 20", code=124, timeout=0.2, reason="timeout"),
        s("echo $y $PWD", "2 /usr\n"),
    ],
    "a timeout of a pipeline": [
        s("yes | head -c 100000000000 | wc -c", None, code=124, timeout=0.3, reason="timeout"),
        s("echo ok", "ok\n"),
    ],
    "a timeout of a read": [
        s("read x <> <(sleep 20)", code=124, err=None, timeout=0.2, reason="timeout"),
        s("echo ok", "ok\n"),
    ],
    "a job that holds the output": [
        s("(sleep 0.3; echo late) & echo now", "now\n"),
        s("sleep 0.5; echo next", "next\n"),
    ],
    "a job that floods": [
        s("yes & echo $! >p; echo now", None),
        s("echo next", "next\n"),
        s("kill $(cat p)"),
        s("echo ok", "ok\n"),
    ],
    "coproc": [
        s("coproc cat"),
        s("echo a >&${COPROC[1]}; read x <&${COPROC[0]}; echo $x", "a\n"),
        s("kill $COPROC_PID", err=None),
    ],
}
