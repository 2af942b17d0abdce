"""The Python interpreter inside a sandbox; interpreter.py passes this text to `python3 -c`.

It reads one line of JSON per cell from its terminal and answers with one. Output of cells, and of programs
that they start, goes to files in memory. It trusts its client; the client does not trust it. Cells may use
the notebook's lines `!command` and `%magic`, and `await` outside of functions.
"""

import ast
import base64
import json
import os
import re
import sys
import traceback
import tty

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
        import signal
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


def main():
    """Answer requests until the terminal is closed."""
    tty.setraw(0)
    asked, answers = os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb", 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number in (1, 2):
        kept = os.memfd_create("output")
        os.dup2(kept, number)
        os.close(kept)
    scope = {"__name__": "__main__", "__builtins__": __builtins__, "display": display}
    if os.path.dirname(sys.executable) not in os.get_exec_path():
        os.environ["PATH"] = os.path.dirname(sys.executable) + ":" + os.environ.get("PATH", os.defpath)
    packages()
    answers.write(b'{"ready": true}\n')
    buffered = b""
    while True:
        while b"\n" not in buffered:
            data = asked.read(65536)
            if not data:
                return
            buffered += data
        line, _, buffered = buffered.partition(b"\n")
        cell = json.loads(line)
        answers.write(json.dumps({"id": cell["id"]}).encode() + b"\n")  # the cell has begun
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
        answer = {"id": cell["id"], "stdout": out, "stderr": err, "dropped": out_dropped + err_dropped}
        answer.update(results=shown, error=error)
        answers.write(json.dumps(answer, default=repr).encode() + b"\n")


main()
