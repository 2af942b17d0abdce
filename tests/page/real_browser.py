"""The page of `staddle serve` in Debian's chromium, used by mouse and keys. `make test-page` runs it."""

from __future__ import annotations

import http.server
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import staddle
from staddle.server.client import Client, ServerSandbox
from tests.support.chromium import BrowserPage, Chromium
from tests.support.server_process import ServerProcess

#: Where pictures go; `make test-page` names docs/images.
PICTURES = os.environ.get("STADDLE_PAGE_PICTURES")
PAYLOAD = "<img src=x onerror=window.hit=1><script>window.hit=1</script>"
CONTROL, SHIFT = 2, 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("page"), "--page") as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as found:
        yield found


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with staddle.connect(server.path) as found:
        yield found
        for sandbox in found.list():
            sandbox.close()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path fits into a picture."""
    with tempfile.TemporaryDirectory(prefix="page-") as found:
        yield Path(found)


def opened(browser: Chromium, server: ServerProcess, sandbox: ServerSandbox, **options: Any) -> BrowserPage:
    """A page that shows this sandbox."""
    page = browser.page(**options)
    page.open(server.facts["page"])
    page.click(f'[data-id="{sandbox.id}"]')
    page.until("!!document.querySelector('#tab-Terminal')")
    return page


def picture(page: BrowserPage, name: str) -> None:
    if PICTURES:
        page.picture(Path(PICTURES) / f"page-{name}.png")


def project(directory: Path) -> Path:
    made = directory / "project"
    made.mkdir()
    (made / "app.py").write_text('def greet(name):\n    return "hello " + name\n\n\nprint(greet("you"))\n')
    (made / "notes.md").write_text("# Notes\n\nOne.\nTwo.\nThree.\n")
    return made


def test_a_person_works_in_a_sandbox(
    browser: Chromium, server: ServerProcess, client: Client, short_path: Path
) -> None:
    """Type in the terminal, see the change, open its diff, restore from the graph, approve a host, commit."""
    work = project(short_path)
    sb = client.create(
        work, name="greeting", labels={"agent": "claude", "task": "greet"}, ask=True, history=True
    )
    client.create(name="docs", labels={"for": "docs"}).start("while :; do sleep 1; done")
    page = opened(browser, server, sb)
    assert "token" not in page.js("location.href"), "the token stays in the address"

    page.click("Open a terminal")
    page.until("document.querySelector('.xterm-rows')?.innerText.includes('$')")
    page.type("sed -i 's/hello/good day,/' app.py && echo 'Four.' >> notes.md\n")
    page.type("mkdir -p .git/hooks; echo 'make test' > .git/hooks/pre-commit\n")
    page.type("printf '\\e[38;2;200;90;20mdone\\e[0m\\n'; ls -l --color\n")
    page.until("document.querySelector('.xterm-rows').innerText.includes('notes.md')")
    page.until(
        "[...document.querySelectorAll('.xterm-rows span')].some((each) => each.innerText === 'done'"
        " && getComputedStyle(each).color !== getComputedStyle(document.body).color)"
    )
    page.press("Escape", SHIFT)
    assert page.js("document.activeElement.innerText") == "Terminal"
    if PICTURES:
        page.until("document.querySelector('.line').points.numberOfItems > 12")
    picture(page, "terminal")

    page.click("#tab-Changes")
    page.see("notes.md")
    page.click("[title=modified]")
    page.see("good day")
    assert page.js("[...document.querySelectorAll('.diff mark')].map((each) => each.innerText)") == [
        "hello",
        "good day,",
    ]
    picture(page, "diff")

    page.click("#tab-Snapshots")
    page.js("document.querySelector('[placeholder=Label]').focus()")
    page.type("greets politely\n")
    page.see("greets politely")
    sb.run("rm app.py; mv notes.md NOTES.md")
    page.type("tidied up\n")
    page.see("tidied up")
    page.click("Restore greets politely")
    page.click("Restore")  # in the dialog
    page.until("document.querySelector('.graph .current').innerText.startsWith('greets politely')")
    assert "good day" in sb.files.read("app.py")
    sb.run("echo '[tool]' > pyproject.toml")
    page.js("document.querySelector('[placeholder=Label]').focus()")
    page.type("another way\n")
    page.see("another way")
    page.click("Compare tidied up")
    page.click("Compare another way")
    page.see("From tidied up to another way")
    page.click("[title=added]")
    page.see("good day")
    picture(page, "snapshots")

    page.click("#tab-Network")
    stream = sb.stream("curl -sm 10 http://a.invalid/; curl -sm 10 http://b.invalid/")
    page.click("Approve a.invalid:80")
    page.see("the host's nameserver knows no address for it")  # it was tried
    page.click("Refuse b.invalid:80")
    page.see("it was not allowed when asked")
    list(stream)
    page.click("#tab-Commands")
    page.click("#panel .item")
    page.see("exit code")

    (work / "notes.md").write_text("# Notes of the host\n")
    page.click("#tab-Changes")
    page.click("Review and commit…")
    page.see("Held back (1)")
    page.see("Conflicts (1)")
    page.dark(True)
    page.click("[title=modified]")
    page.see("# Notes of the host")
    picture(page, "commit")
    page.click("Commit 2 changes")
    page.see("2 changes were committed")
    assert "good day" in (work / "app.py").read_text()
    assert (work / "pyproject.toml").exists()
    assert (work / "notes.md").read_text() == "# Notes of the host\n"
    assert not (work / ".git").exists(), "a held-back name was committed"
    page.click("Review and commit…")
    page.click("[aria-label='commit notes.md']")
    page.click("Commit 1 change")
    page.see("1 change was committed")
    assert "Four." in (work / "notes.md").read_text()

    page.resize(380, 780)
    page.click("#tab-Snapshots")
    page.see("another way")
    while page.js("!!document.querySelector('.message button')"):
        page.js("document.querySelector('.message button').click()")
    picture(page, "phone")
    assert page.complaints == []
    page.click("Close…")
    page.click("Close")
    page.see("This sandbox is closed")


def test_what_comes_from_inside_stays_text(
    browser: Chromium, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """Names, labels, files, diffs, commands, output, snapshots, terminals. Elsewhere the payload works."""
    control = browser.page()
    control.js(f"document.body.innerHTML = {json.dumps(PAYLOAD)}")
    control.until("window.hit === 1")

    work = tmp_path / "work"
    work.mkdir()
    (work / "f").write_text("before\n")
    sb = client.create(work, name=PAYLOAD, labels={PAYLOAD: PAYLOAD}, ask=True, history=True)
    page = opened(browser, server, sb)
    page.click("Open a terminal")
    page.until("document.querySelector('.xterm-rows')?.innerText.includes('$')")
    link = "\\e]8;;javascript:window.hit=1\\e\\\\link\\e]8;;\\e\\\\"
    page.type(f"printf '%s\\n{link}\\e]0;<b>title</b>\\a' '{PAYLOAD}'\n")
    page.see("link")
    sb.files.write("/workspace/in.txt", PAYLOAD)
    name = "<img src=x onerror=window.hit=1>\u202e\n\udcff"
    sb.files.write(f"/workspace/{name}", f"{PAYLOAD}\u202e\n")
    sb.run(f"echo '{PAYLOAD}' | tee f; echo '{PAYLOAD}' >&2; printf '\\e]0;x\\a\\u202e'")
    sb.snapshot(PAYLOAD)
    for tab in ("Commands", "Changes", "Snapshots", "Network"):
        page.click(f"#tab-{tab}")
        if tab == "Changes":
            for number in range(3):
                row = f"document.querySelectorAll('#panel .item')[{number}]"
                page.until(f"!!{row}")
                page.js(f"{row}.click()")
                page.until(
                    f"{row}.ariaPressed === 'true' && !{row}.disabled && !!document.querySelector('.diff')"
                )
            page.see("\\u{202e}\\x0a\\xff")
        if tab == "Network":
            stream = sb.stream("curl -sm 5 'http://<img/'; curl -sm 5 http://x.invalid/")
            page.click("Refuse x.invalid:80")
            list(stream)
            page.see("it was not allowed when asked")
        else:
            page.until(f"document.querySelector('#panel').innerText.includes({json.dumps(PAYLOAD)})")
    assert page.js("window.hit") is None
    assert page.js("document.querySelectorAll('img, main script, b, iframe, a[href^=java]').length") == 0
    assert page.complaints == []
    # And if a module had a mistake: the browser refuses to parse text as markup, or to run it.
    for mistake in ("document.body.innerHTML = 'x'", "eval('1')", "document.write('x')"):
        failed = f"(() => {{ try {{ {mistake}; return '' }} catch (error) {{ return error.name }} }})()"
        assert page.js(failed) in ("TypeError", "EvalError"), mistake


class Foreign(http.server.BaseHTTPRequestHandler):
    """Another site."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><body>another site")

    def log_message(self, *_: object) -> None:
        pass


def test_a_page_of_another_site_reaches_nothing(
    browser: Chromium, server: ServerProcess, client: Client
) -> None:
    """Requests, forms, WebSockets and frames, even with the token. The own page can do each."""
    sb = client.create(name="target")
    terminal = sb.terminal(["cat"])
    url, token = server.facts["url"], server.facts["page"].partition("#token=")[2]
    words = f"['staddle.terminal', 'staddle.token.' + btoa({json.dumps(token)}).replace(/=/g, '')]"
    socket_url = f"{url.replace('http', 'ws')}/v1/sandboxes/{sb.id}/terminals/{terminal.id}/attach"
    headers = f"{{headers: {{Authorization: 'Bearer {token}'}}}}"
    tried = {
        "read": f"fetch('{url}/v1/sandboxes', {headers}).then((reply) => reply.ok, () => false)",
        "simple": f"fetch('{url}/v1/sandboxes', {{mode: 'no-cors', method: 'POST', body: '{{}}'}})"
        ".then((reply) => reply.ok, () => false)",
        "socket": f"new Promise((done) => {{ const made = new WebSocket('{socket_url}', {words});"
        " made.onopen = () => done(true); made.onerror = () => done(false); })",
    }
    own = opened(browser, server, sb)
    assert own.js(tried["read"]) is True
    assert own.js(tried["socket"]) is True
    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    count = len(client.list())
    try:
        page = browser.page()
        page.open(f"http://127.0.0.1:{listener.server_port}/")
        page.see("another site")
        for name, expression in tried.items():
            assert page.js(expression) is False, name
        page.js(
            f"const form = document.createElement('form'); form.method = 'post'; form.target = '_blank';"
            f" form.action = '{url}/v1/sandboxes'; document.body.append(form); form.submit();"
            f" const frame = document.createElement('iframe'); frame.src = '{url}/';"
            " document.body.append(frame);"
        )
        page.until("document.querySelector('iframe').contentDocument === null")  # an error page, of no origin
        time.sleep(1)
        assert any("frame-ancestors" in each or "403" in each for each in page.complaints), page.complaints
        assert len(client.list()) == count, "a form has opened a sandbox"
    finally:
        listener.shutdown()
        listener.server_close()


def test_a_foreign_name_of_this_machine_is_refused(browser: Chromium, server: ServerProcess) -> None:
    """As after DNS rebinding: the browser connects to 127.0.0.1 for a foreign name. Its own names work."""
    port, fragment = server.facts["url"].rpartition(":")[2], server.facts["page"].partition("/#")[2]
    page = browser.page()
    page.open(f"http://evil.localhost:{port}/#{fragment}")
    page.see("the server has another name")
    page.open(f"http://localhost:{port}/#{fragment}")
    page.see("live")


def test_the_page_asks_for_a_token_that_is_missing_or_wrong(browser: Chromium, server: ServerProcess) -> None:
    """It shows nothing before. The right one, pasted, connects."""
    for fragment in ("", "#token=wrong"):
        page = browser.page()
        page.open(server.facts["url"] + "/" + fragment)
        page.see("The server wants its token")
        assert "Sandboxes" not in page.text()
        page.js("document.querySelector('input').focus()")
        page.type(server.facts["page"] + "\n")
        page.see("Sandboxes")
        page.see("live")


def test_keys_reach_everything_and_everything_has_a_name(
    browser: Chromium, server: ServerProcess, client: Client
) -> None:
    """And nothing is wider than a phone."""
    sb = client.create(name="keys", history=True)
    sb.run("echo a > a")
    sb.snapshot("one")
    page = browser.page(380, 780)
    page.open(server.facts["page"])
    page.see("keys")

    def until_focus(name: str) -> None:
        for _ in range(40):
            page.press("Tab")
            if page.js("document.activeElement?.innerText?.trim().startsWith(" + json.dumps(name) + ")"):
                return
        pytest.fail(f"the keys do not reach {name}: {page.js('document.activeElement.outerHTML')}")

    until_focus("keys")
    page.press("Enter")
    page.see("Open a terminal")
    until_focus("Terminal")
    for tab in ("Commands", "Changes", "Snapshots", "Network"):
        page.press("ArrowRight")
        page.until(f"document.querySelector('#tab-{tab}').ariaSelected === 'true'")
        time.sleep(0.3)
        assert page.js("document.documentElement.scrollWidth") <= 380, tab
        for node in page.call("Accessibility.getFullAXTree")["nodes"]:
            role = node.get("role", {}).get("value")
            if (
                role in ("button", "textbox", "checkbox", "tab", "combobox", "img", "region")
                and not node["ignored"]
            ):
                assert node.get("name", {}).get("value"), f"{tab}: a {role} has no name: {node}"
    page.press("ArrowRight")
    until_focus("Open a terminal")
    page.press("Enter")
    page.until("document.activeElement.classList.contains('xterm-helper-textarea')")
    assert page.complaints == []


def test_a_flood_of_output_and_a_lost_server(browser: Chromium, client: Client, tmp_path: Path) -> None:
    """The page stays usable while a program prints without end. It says that the server is gone."""
    with ServerProcess(tmp_path, "--page") as server, staddle.connect(server.path) as own:
        sb = own.create(name="flood")
        page = opened(browser, server, sb)
        page.click("Open a terminal")
        page.until("document.querySelector('.xterm-rows')?.innerText.includes('$')")
        page.type("yes a-long-line-of-a-flood\n")
        for _ in range(5):
            time.sleep(0.5)
            began = time.monotonic()
            page.js("new Promise((done) => requestAnimationFrame(done))")
            assert time.monotonic() - began < 2
        page.press("c", CONTROL)
        page.type("echo calm-$((6 * 7))\n")
        page.until("document.querySelector('.xterm-rows').innerText.includes('calm-42')")
        page.call("Page.reload")
        page.until("document.querySelector('.xterm-rows')?.innerText.includes('calm-42')")
        server.kill()
        page.see("The server does not answer")
