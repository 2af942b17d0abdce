"""The Python interpreter inside a sandbox; interpreter.py passes this text to `python3 -c`.

Its standard input is a socket. It reads one line of JSON per cell from it and answers with one. Output of
cells, and of programs that they start, goes to files in memory. It trusts its client; the client does not
trust it. Cells may use the notebook's lines `!command` and `%magic`, and `await` outside of functions.

For a snapshot it forks a twin, which waits on a socket of its own. To restore, the client ends the live
interpreter and sends the twin another socket. The twin forks again, and the child continues from the moment
of the snapshot. So the twin stays, and can be used again.
"""

import _socket as socket  # the module `socket` would make every start slower
import array
import ast
import base64
import fcntl
import json
import os
import re
import signal
import stat
import sys
import traceback

FORMATS = {
    "html": "_repr_html_",
    "markdown": "_repr_markdown_",
    "svg": "_repr_svg_",
    "png": "_repr_png_",
    "jpeg": "_repr_jpeg_",
    "pdf": "_repr_pdf_",
    "latex": "_repr_latex_",
    "json": "_repr_json_",
    "javascript": "_repr_javascript_",
}

shown = []


def rich(value, main):
    """Return a value in each form that it offers."""
    made = {"text": repr(value), "is_main_result": main}
    for name, method in FORMATS.items():
        give = None if isinstance(value, type) else getattr(value, method, None)
        if callable(give):
            try:
                data = give()
            except Exception:  # noqa: S112 - skip a form that a value cannot produce
                continue
            data = data[0] if isinstance(data, tuple) else data
            if data is not None:
                made[name] = base64.b64encode(data).decode() if isinstance(data, bytes) else data
    return made


def display(*values):
    """Show values among the results of the cell."""
    shown.extend(rich(value, False) for value in values)


def figures():
    """Add the open matplotlib figures as PNG to the results, and close them."""
    plot = sys.modules.get("matplotlib.pyplot")
    for number in plot.get_fignums() if plot is not None else ():
        import io

        data = io.BytesIO()
        figure = plot.figure(number)
        figure.savefig(data, format="png")
        plot.close(figure)
        shown.append(
            {"text": repr(figure), "is_main_result": False, "png": base64.b64encode(data.getvalue()).decode()}
        )


class MagicError(Exception):
    """The magic is not supported, or not with these arguments."""


class Magics:
    """Handles notebook lines that are not Python: `!command`, `x = !command`, `%magic` and `%%bash`."""

    LINE = re.compile(r"(\s*)([\w.,\s\[\]'\"]+=\s*)?([!%])(.*)")

    def __init__(self, scope):
        self.shells = {"%%bash": "/bin/bash", "%%sh": "/bin/sh"}
        self.scope = scope

    def parsed(self, code):
        """Parse a cell. Lines that are not Python and begin with `!` or `%` become calls of this object."""
        first, _, rest = code.lstrip().partition("\n")
        if first.startswith("%%"):
            if first.strip() not in self.shells:
                self.unknown(first.split()[0])
            return ast.parse(f"__magics__.script({self.shells[first.strip()]!r}, {rest!r})", "<cell>")
        lines = code.split("\n")
        while True:
            try:
                return ast.parse("\n".join(lines), "<cell>")
            except SyntaxError as error:  # at the first such line, or one whose words look like Python
                number = (error.lineno or 0) - 1
                found = self.LINE.fullmatch(lines[number]) if 0 <= number < len(lines) else None
                if found is None:
                    raise
                indent, target, kind, text = found.groups()
                last = number
                while text.endswith("\\") and last + 1 < len(lines):
                    last += 1
                    text, lines[last] = text[:-1] + lines[last].strip(), ""
                name = "magic" if kind == "%" else "lines" if target else "shell"
                lines[number] = f"{indent}{target or ''}__magics__.{name}({text.strip()!r})"

    def filled(self, command):
        """Substitute the values of `{expression}` and `$name` where Python has them."""

        def value(found):
            try:
                return str(eval(found[1] or found[2], {**self.scope, "__builtins__": {}}))  # noqa: S307
            except Exception:
                return found[0]

        return re.sub(r"\{([^{}]+)\}|\$([A-Za-z_]\w*)", value, command)

    def started(self, words, read=False):
        """Run a program to its end. With `read` return its output."""
        import importlib
        import site
        import subprocess

        sys.stdout.flush()
        sys.stderr.flush()
        to = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if read else {}
        program = subprocess.Popen(words, start_new_session=True, **to)
        try:
            output = program.communicate()[0]
        except BaseException:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()
            raise
        self.scope["_exit_code"] = program.returncode
        importlib.invalidate_caches()  # it may have installed a package
        site.addusersitepackages(None)
        return output

    def script(self, shell, text):
        """Run `%%bash`; a failing script is an error of the cell."""
        self.started([shell, "-c", text])
        if self.scope["_exit_code"] != 0:
            from subprocess import CalledProcessError

            raise CalledProcessError(self.scope["_exit_code"], shell)

    def shell(self, command):
        """Run `!command`; its output is the cell's, its exit status is in `_exit_code`."""
        self.started(["/bin/bash", "-c", self.filled(command)])

    def lines(self, command):
        """Run `x = !command`; return the lines of its output."""
        output = self.started(["/bin/bash", "-c", self.filled(command)], read=True)
        return output.decode("utf-8", "replace").splitlines()

    def magic(self, text):
        """Run `%name words`."""
        name, _, words = text.partition(" ")
        offered = getattr(self, f"line_{name}", None)
        return self.unknown(f"%{name}") if offered is None else offered(words.strip())

    def unknown(self, name):
        """Raise MagicError for an unknown magic."""
        known = [f"%{each[5:]}" for each in dir(self) if each.startswith("line_")]
        raise MagicError(f"there is no {name} here: use {', '.join([*known, *self.shells])} or !command")

    def line_pip(self, words):
        """Run pip for this interpreter."""
        import shlex

        self.started([sys.executable, "-m", "pip", *shlex.split(self.filled(words))])

    def line_cd(self, words):
        """Change to another directory, or home."""
        os.chdir(os.path.expanduser(self.filled(words).strip("'\"") or "~"))
        print(os.getcwd())

    def line_pwd(self, words):
        """Return the current directory."""
        return os.getcwd()

    def line_env(self, words):
        """Return all variables or one, or set one: `%env NAME=value`, `%env NAME value`."""
        name, value = re.fullmatch(r"(\w*)\s*=?\s*(.*)", words).groups()
        if not value:
            return os.environ[name] if name else dict(os.environ)
        os.environ[name] = self.filled(value)
        return None

    def line_matplotlib(self, words):
        """Accept `inline`: figures are always results of the cell."""
        if words not in ("", "inline"):
            raise MagicError(f"%matplotlib {words}: figures are shown inline only")

    def line_timeit(self, words):
        """Print the time that a statement takes."""
        import timeit

        number, taken = timeit.Timer(words, globals=self.scope).autorange()
        print(f"{taken / number:.3g} s per loop ({number} loops)")


def packages():
    """Make pip install to the home if the interpreter's virtual environment is read-only."""
    import sysconfig

    place = sysconfig.get_path("purelib")
    if sys.prefix != sys.base_prefix and place in sys.path and not os.access(place, os.W_OK):
        own = os.path.expanduser("~/.local/lib/python{}.{}/venv".format(*sys.version_info))
        sys.path.insert(sys.path.index(place), own)
        path = (own, os.environ.get("PYTHONPATH"))
        os.environ.update(PIP_TARGET=own, PYTHONPATH=":".join(filter(None, path)))
        os.environ["PATH"] = ":".join([own + "/bin", os.environ.get("PATH", os.defpath)])


loops = []


def done(codes, scope):
    """Run the parts of a cell and return the last value. If one of them awaits, all run in an event loop.

    The next cell that awaits uses the same loop.
    """
    awaits = [code.co_flags & 0x80 for code in codes]  # inspect.CO_COROUTINE
    if not any(awaits):
        return [eval(code, scope) for code in codes][-1]  # noqa: S307 - an interpreter evaluates code
    import asyncio

    async def awaited():
        for code, waits in zip(codes, awaits):  # noqa: B905 - runs on Python 3.9
            value = eval(code, scope)  # noqa: S307
            value = await value if waits else value
        return value

    if not loops:
        loops.append(asyncio.new_event_loop())
    asyncio.set_event_loop(loops[0])
    task = loops[0].create_task(awaited())
    try:
        return loops[0].run_until_complete(task)
    except KeyboardInterrupt:
        task.cancel()
        loops[0].run_until_complete(asyncio.wait([task]))
        raise


def told(error):
    """Return the traceback of an exception, starting in the cell."""
    first = error.__traceback__
    while first is not None and first.tb_frame.f_code.co_filename != "<cell>":
        first = first.tb_next
    return "".join(traceback.format_exception(type(error), error, first))


def run(code, scope):
    """Run a cell. Returns its error, or None."""
    del shown[:]
    try:
        scope["__magics__"] = magics = Magics(scope)
        tree = magics.parsed(code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        codes = [compile(tree, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)]
        if last is not None:
            given = ast.Expression(last.value)
            codes.append(compile(given, "<cell>", "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        value = done(codes, scope)
        if last is not None and value is not None:
            shown.append(rich(value, True))
        figures()
    except BaseException as error:
        text = told(error)
        given = getattr(error, "value", None)
        return {"name": type(error).__name__, "value": str(error), "traceback": text, "given": given}
    return None


def taken(number, limit):
    """Read at most `limit` bytes of a memory file and empty it. Returns the text and the bytes omitted."""
    sys.stdout.flush()
    sys.stderr.flush()
    size = os.lseek(number, 0, os.SEEK_END)
    data = os.pread(number, min(size, limit), 0)
    os.ftruncate(number, 0)
    os.lseek(number, 0, os.SEEK_SET)
    return data.decode("utf-8", "replace"), max(0, size - limit)


class ClientChannel:
    """The socket to the client: lines of JSON, some with a descriptor."""

    def __init__(self, number):
        self.socket = socket.socket(fileno=number)
        self.unread = b""
        self.fds = []

    def read(self):
        """Return the next request, or None at the end."""
        while b"\n" not in self.unread:
            data, extra, _, _ = self.socket.recvmsg(65536, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
            for _, _, rights in extra:
                self.fds.extend(array.array("i", rights))
            if not data:
                return None
            self.unread += data
        line, _, self.unread = self.unread.partition(b"\n")
        return json.loads(line)

    def write(self, answer):
        """Send an answer."""
        self.socket.sendall(json.dumps(answer, default=repr).encode() + b"\n")


class OpenFile:
    """An open file of the process. After a fork, parent and child would share its offset."""

    def __init__(self, number):
        status = os.fstat(number)
        self.number, self.path = number, os.readlink(f"/proc/self/fd/{number}")
        self.flags, self.closes = fcntl.fcntl(number, fcntl.F_GETFL), fcntl.fcntl(number, fcntl.F_GETFD)
        self.is_file, self.is_directory = stat.S_ISREG(status.st_mode), stat.S_ISDIR(status.st_mode)
        self.in_memory = self.is_file and self.path.startswith("/memfd:")
        self.is_writable = self.flags & os.O_ACCMODE != os.O_RDONLY
        self.is_named = (self.is_file and status.st_nlink > 0 and not self.in_memory) or self.is_directory
        self.at = os.lseek(number, 0, os.SEEK_CUR) if self.is_file else 0

    def copy(self):
        """Copy a memory file: the same file would be the same memory."""
        made, size = os.memfd_create("output"), os.fstat(self.number).st_size
        while (done := os.lseek(made, 0, os.SEEK_CUR)) < size:
            os.sendfile(made, self.number, done, size - done)
        self._becomes(made)

    def release(self):
        """Close it, and keep its number for `open_again`."""
        self._becomes(os.open(os.devnull, os.O_RDONLY), at=0)

    def open_again(self):
        """Open the file that has this path now."""
        self._becomes(os.open(self.path, self.flags & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)))

    def _becomes(self, made, at=None):
        if self.is_file:
            os.lseek(made, self.at if at is None else at, os.SEEK_SET)
        os.dup2(made, self.number, inheritable=not self.closes)
        os.close(made)


def open_files(but):
    """Return the open files, except the descriptors in `but`."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) not in but:
                found.append(OpenFile(int(name)))
        except OSError:  # the descriptor of listdir itself
            continue
    return found


def go_back(directory, files, lost):
    """Enter the directory and open the files again, by path: what is mounted there now."""
    try:
        os.chdir(directory)
    except OSError as error:
        lost.append(f"{directory}: {error.strerror}")
        os.chdir("/")
    for file in files:
        try:
            if file.is_named:
                file.open_again()
        except OSError as error:
            lost.append(f"{file.path}: {error.strerror}")


def unkept():
    """Return why a twin would not be as this process, or an empty text."""
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        return f"{threading.active_count() - 1} other threads run"
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        if set(map(int, file.read().split())) - twins:
            return "programs that it has started run"
    with open("/proc/self/maps") as file:
        for line in file:
            words = line.split(None, 5)
            if words[1][1] == "w" and words[1][3] == "s":
                return f"it shares memory that it can write: {words[5].strip() if len(words) > 5 else '?'}"
    return ""


#: Event loops of interpreters that came back. Their selectors are shared with the twin: never close them.
former_loops = []
#: Directory and open files before trees were exchanged. Afterwards they have no path.
before_swap = []
PR_SET_DUMPABLE = 4
#: The living twins that this process has forked.
twins = set()


def reap():
    """Wait for twins that have ended: their snapshots were closed."""
    for pid in list(twins):
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                twins.discard(pid)
        except ChildProcessError:  # code of a cell has waited for it
            twins.discard(pid)


def prctl():
    """Return the C library's function. The first call takes some milliseconds: make it before a fork."""
    import ctypes

    return ctypes.CDLL(None).prctl


def twin(channel, request):
    """Fork a twin for a snapshot and answer the request. Return None.

    In an interpreter that continues from the snapshot, return its channel.
    """
    line = channel.fds.pop()
    reap()
    why, pid = unkept(), 0
    if why:
        os.close(line)
        channel.write({"id": request["id"], "why": why})
        return None
    files, directory = open_files({line, channel.socket.fileno()}), os.getcwd()
    before_swap[:] = directory, files
    chance = sys.modules["random"].getstate() if "random" in sys.modules else None
    # Until the twin has files of its own. Our own memory files, the output, are empty.
    written = [file for file in files if file.is_writable and file.number > 2]
    waits = any(file.is_named or file.in_memory for file in written)
    set_up = prctl()
    ready, when_ready = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError as error:
        why = f"no process can be started: {error.strerror}"
    if why or pid:
        os.close(when_ready)
        os.close(line)
        if waits and not why and not os.read(ready, 1):
            why = "its twin has ended"
        if pid:
            twins.add(pid)
        os.close(ready)
        channel.write({"id": request["id"], **({"why": why} if why else {"pid": pid})})
        return None
    try:
        set_up(PR_SET_DUMPABLE, 0, 0, 0, 0)  # no process of the sandbox may read or change its memory
        twins.clear()
        os.setsid()
        channel.socket.close()
        os.close(ready)
        for file in files:
            if file.in_memory:
                file.copy()
            elif file.is_named:
                file.release()
        os.chdir("/")
        if waits:
            os.write(when_ready, b"!")
        os.close(when_ready)
        number = waiting(line)
    except BaseException:
        os._exit(1)
    set_up(PR_SET_DUMPABLE, 1, 0, 0, 0)
    lost = [file.path for file in files if not file.is_named and not file.in_memory and file.number > 2]
    if loops:
        former_loops.append(loops.pop())
    go_back(directory, files, lost)
    for file in files:
        if file.in_memory:
            file.copy()
    if chance is not None:
        sys.modules["random"].setstate(chance)
    made = ClientChannel(number)
    made.write({"ready": True, "pid": os.getpid(), "lost": lost})
    return made


def waiting(line):
    """Be the twin: fork for each socket that arrives on `line`. Return in the child, with that socket."""
    asked = socket.socket(fileno=line)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, extra, _, _ = asked.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        if not message:
            os._exit(0)
        numbers = [number for _, _, rights in extra for number in array.array("i", rights)]
        if os.fork() == 0:
            break
        for number in numbers:
            os.close(number)
    os.setsid()
    asked.close()
    signal.signal(signal.SIGCHLD, before)
    signal.signal(signal.SIGINT, interrupted)
    return numbers[0]


def main():
    """Answer requests until the socket is closed."""
    channel = ClientChannel(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for number in (1, 2):
        kept = os.memfd_create("output")
        os.dup2(kept, number)
        os.close(kept)
    scope = {"__name__": "__main__", "__builtins__": __builtins__, "display": display}
    if os.path.dirname(sys.executable) not in os.get_exec_path():
        os.environ["PATH"] = os.path.dirname(sys.executable) + ":" + os.environ.get("PATH", os.defpath)
    packages()
    channel.write({"ready": True, "pid": os.getpid()})
    while (request := channel.read()) is not None:
        if "code" in request:
            channel.write(answer(request, channel, scope))
        elif request.get("twin"):
            channel = twin(channel, request) or channel
        else:  # other trees are mounted: enter them
            go_back(*before_swap, [])
            reap()


def answer(cell, channel, scope):
    """Run a cell and return the answer."""
    channel.write({"id": cell["id"]})  # the cell has begun
    before = {name: os.environ.get(name) for name in cell["env"]}
    try:
        os.environ.update(cell["env"])
        error = run(cell["code"], scope)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    except KeyboardInterrupt:  # between the cell and its answer
        error = {"name": "KeyboardInterrupt", "value": "", "traceback": "", "given": None}
    out, out_dropped = taken(1, cell["limit"])
    err, err_dropped = taken(2, cell["limit"])
    made = {"id": cell["id"], "stdout": out, "stderr": err, "dropped": out_dropped + err_dropped}
    made.update(results=shown, error=error)
    return made


main()
