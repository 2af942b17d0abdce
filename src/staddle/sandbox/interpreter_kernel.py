"""The Python interpreter inside a sandbox that _interpreter.py talks to; its text is passed to `python3 -c`.

It reads one line of JSON for each cell from its terminal and answers with one. What cells print, also
programs that they start, goes into files in memory. It trusts who asks; who asks does not trust it.
"""

import ast
import base64
import json
import os
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
    """A value in each form that it offers."""
    made = {"text": repr(value), "is_main_result": main}
    for name, method in FORMATS.items():
        give = None if isinstance(value, type) else getattr(value, method, None)
        if callable(give):
            try:
                data = give()
            except Exception:  # noqa: S112 - a form that a value cannot give is left out
                continue
            data = data[0] if isinstance(data, tuple) else data
            if data is not None:
                made[name] = base64.b64encode(data).decode() if isinstance(data, bytes) else data
    return made


def display(*values):
    """Show values among the results of the cell."""
    shown.extend(rich(value, False) for value in values)


def figures():
    """The open figures of matplotlib, as PNG; they are closed."""
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


def run(code, scope):
    """Run a cell; what went wrong, if something did."""
    del shown[:]
    try:
        tree = ast.parse(code, "<cell>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), scope)  # noqa: S102 - this is what it is for
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), scope)  # noqa: S307
            if value is not None:
                shown.append(rich(value, True))
        figures()
    except BaseException as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__.tb_next))
        given = getattr(error, "value", None)
        return {"name": type(error).__name__, "value": str(error), "traceback": text, "given": given}
    return None


def taken(number, limit):
    """Read and empty a file in memory: at most `limit` bytes of it, and the number of bytes left out."""
    sys.stdout.flush()
    sys.stderr.flush()
    size = os.lseek(number, 0, os.SEEK_END)
    data = os.pread(number, min(size, limit), 0)
    os.ftruncate(number, 0)
    os.lseek(number, 0, os.SEEK_SET)
    return data.decode("utf-8", "replace"), max(0, size - limit)


def main():
    """Answer until the terminal is closed."""
    tty.setraw(0)
    asked, answers = os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb", 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number in (1, 2):
        kept = os.memfd_create("output")
        os.dup2(kept, number)
        os.close(kept)
    scope = {"__name__": "__main__", "__builtins__": __builtins__, "display": display}
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
