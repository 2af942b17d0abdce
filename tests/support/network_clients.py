"""Clients of every kind, as a script each: fetch the host's word from `@host@`, and print it.

None of them is told of a proxy, and none has a time limit of its own. What they trust is in
/etc/ssl/certs, as on any machine; those that bring their own list are told to look there.
"""

from __future__ import annotations

import sys

from tests.support.network_offers import PACKAGE

_TRUST = "/etc/ssl/certs/ca-certificates.crt"
_PYTHON = f"{sys.prefix}/bin/python"
_SSH = (
    "ssh -F none -i $HOME/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
    "-o BatchMode=yes -o LogLevel=ERROR"
)
_REQUEST = r"GET /word HTTP/1.0\r\nHost: @host@\r\n\r\n"

_PIP = f"""
d=$(mktemp -d)
{_PYTHON} -m pip install -q --no-cache-dir --disable-pip-version-check --no-deps --retries 0 --target $d \\
    --cert {_TRUST} --index-url https://@host@/simple/ {PACKAGE} && cat $d/hello_staddle.py
"""
_NPM = f"""
d=$(mktemp -d); cd $d
npm install --no-audit --no-fund --no-update-notifier --loglevel=error --fetch-retries=0 --cache $d/cache \\
    --cafile {_TRUST} --replace-registry-host=always --registry https://@host@/ {PACKAGE} \\
    && cat node_modules/{PACKAGE}/index.js
"""
_GIT = "d=$(mktemp -d); git {options} clone -q {url} $d/clone && cat $d/clone/word"
_ASYNCIO = """
python3 -c '
import asyncio, ssl
async def main():
    r, w = await asyncio.open_connection("@host@", 443, ssl=ssl.create_default_context())
    w.write(b"GET /word HTTP/1.0\\r\\nHost: @host@\\r\\n\\r\\n")
    print((await r.read()).decode())
asyncio.run(main())'
"""
_RAW = """
python3 -c '
import socket
s = socket.create_connection(("@host@", 80))
s.sendall(b"GET /word HTTP/1.0\\r\\nHost: @host@\\r\\n\\r\\n")
while data := s.recv(4096): print(data.decode())'
"""
_NODE = """
node --use-openssl-ca -e '
fetch("https://@host@/word").then(r => r.text())
  .then(console.log, e => { console.error(e); process.exit(1) })'
"""

SCRIPTS = {
    "curl": "curl -sS http://@host@/word",
    "curl over TLS": "curl -sS https://@host@/word",
    "wget": "wget -qO- --tries=1 http://@host@/word",
    "wget over TLS": "wget -qO- --tries=1 https://@host@/word",
    "git over https": _GIT.format(options="", url="https://@host@/repo.git"),
    "git over ssh": (
        "test -f ~/key || { cp key ~/key && chmod 600 ~/key; }; "
        + _GIT.format(options=f'-c core.sshCommand="{_SSH}"', url="git@@host@:@repository@")
    ),
    "pip": _PIP,
    "npm": _NPM,
    "urllib": "python3 -c 'import urllib.request as u; print(u.urlopen(\"https://@host@/word\").read())'",
    "requests": (
        f"{_PYTHON} -c 'from pip._vendor import requests; "
        f'print(requests.get("https://@host@/word", verify="{_TRUST}").text)\''
    ),
    "a raw socket": _RAW,
    "asyncio": _ASYNCIO,
    "node": _NODE,
    "psql": "psql -X -At -U me -d postgres -h @host@ -c \"select 'hello ' || 'from the made-up host'\"",
    "/dev/tcp": f"exec 3<>/dev/tcp/@host@/80 && printf '{_REQUEST}' >&3 && cat <&3",
    "a static program": "./fetch @host@",
    "getent": "getent hosts @host@ && echo hello from the made-up host",
    "ping": "ping -c 1 @host@ && echo hello from the made-up host",
}

#: Linked with nothing: what no library and no variable can reach.
STATIC = r"""
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found, *each;
    if (getaddrinfo(argv[1], "80", &hints, &found)) return 2;
    for (each = found; each; each = each->ai_next) {
        int s = socket(each->ai_family, each->ai_socktype, each->ai_protocol);
        char text[4096];
        ssize_t size = snprintf(text, sizeof text, "GET /word HTTP/1.0\r\nHost: %s\r\n\r\n", argv[1]);
        if (connect(s, each->ai_addr, each->ai_addrlen)) { close(s); continue; }
        if (write(s, text, size) != size) return 4;
        while ((size = read(s, text, sizeof text)) > 0) fwrite(text, 1, size, stdout);
        return size < 0 ? 5 : 0;
    }
    return 3;
}
"""
