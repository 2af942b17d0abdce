"""Lines as agents type them that were trained on plain Debian containers, and what they get there and here.

The first number is the exit status in a plain Debian container with an ordinary user that may use sudo. It
is written down from the documentation of these programs and from experience, and was not measured beside
this test. Where ours is another one, the reason stands with it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from staddle import Sandbox

#: A line, its exit status in a container; for some ours, and why.
LINES: list[tuple[str, int] | tuple[str, int, int, str]] = [
    # who and where
    ("whoami", 0),
    ("id -u", 0),
    ("pwd", 0),
    ("hostname", 0),
    ("uname -a", 0),
    ("cat /etc/os-release", 0),
    ("echo $HOME $USER $SHELL", 0),
    ("env | sort | head", 0),
    ("date", 0),
    ("nproc", 0),
    ("free -m || cat /proc/meminfo | head -3", 0),
    ("df -h .", 0),
    ("ls -la", 0),
    ("ls -la /", 0),
    ("ls /nonexistent", 2),
    ("cat /etc/shadow", 1),
    ("which python3 bash git", 0),
    ("which no-such-program", 1),
    ("type cd", 0),
    ("command -v git >/dev/null && echo yes", 0),
    ("no-such-program", 127),
    ("./not-executable", 127),
    ("touch ne && ./ne", 126),
    ("(exit 42)", 42),
    ("false || true", 0),
    ("true && false", 1),
    ("sh -c 'kill -9 $$'", 137),
    ("timeout 0.1 sleep 5", 124),
    # files
    ("mkdir -p src/app tests && touch src/app/__init__.py", 0),
    ("mkdir src", 1),
    ("mkdir -p a/b/c && rmdir a/b/c && rm -r a", 0),
    ("cat > hello.py <<'EOF'\nprint('hello')\nEOF", 0),
    ("cat <<EOF > conf.ini\n[main]\nuser=$USER\nEOF", 0),
    ("python3 hello.py | grep -q hello", 0),
    ("printf 'a\\nb\\nc\\n' | tee abc.txt | wc -l", 0),
    ("sed -i 's/b/B/' abc.txt && grep -n B abc.txt", 0),
    ("grep -rn nothing-like-this .", 1),
    ("find . -name '*.py' -type f | xargs wc -l", 0),
    ("awk '{print NR\": \"$0}' abc.txt", 0),
    ("sort -r abc.txt | uniq -c | head -n 2", 0),
    ("cut -d= -f1 conf.ini", 0),
    ("diff abc.txt hello.py", 1),
    ("cp -r src src2 && mv src2 src3 && rm -rf src3", 0),
    ("ln -s hello.py link.py && readlink link.py", 0),
    ("chmod +x hello.py && stat -c %a hello.py", 0),
    ("chown root hello.py", 1),
    ("tar czf all.tgz src && tar tzf all.tgz && rm all.tgz", 0),
    ("head -c 16 /dev/urandom | od -An -tx1", 0),
    ("dd if=/dev/zero of=zeros bs=1k count=4 status=none && rm zeros", 0),
    ("echo test > /dev/null", 0),
    ("echo err >&2", 0),
    ("cat < /dev/null", 0),
    ("test -f hello.py && [ -d src ] && [[ hello.py -nt /etc/passwd || true ]]", 0),
    ("touch /tmp/t && rm /tmp/t", 0),
    ("touch /etc/not-mine", 1),
    ("touch /usr/not-mine", 1),
    ("mkdir /not-mine", 1),
    ("mktemp -d | xargs rmdir", 0),
    # the shell
    ("export FOO=bar; echo $FOO", 0),
    ("echo $FOO | grep -q bar", 0),
    ("cd src && pwd && cd -", 0),
    ("for i in 1 2 3; do echo $i; done", 0),
    ("x=$(date +%s); echo $((x + 1))", 0),
    ('f() { echo "f: $1"; return 3; }; f x', 3),
    ("set -o pipefail; false | true; r=$?; set +o pipefail; (exit $r)", 1),
    ("arr=(a b c); echo ${arr[1]} ${#arr[@]}", 0),
    ("if [ -f nope ]; then echo a; else echo b; fi", 0),
    ("case $USER in root) echo r;; *) echo other;; esac", 0),
    ('while read -r l; do echo "$l"; done < abc.txt', 0),
    ("echo 'unterminated", 2),
    ("if then", 2),
    ("source /nonexistent", 1),
    ("alias ll='ls -l'; shopt -s expand_aliases", 0),
    ("history | tail -1", 0),
    ("jobs; wait", 0),
    ("(sleep 0.1; echo late) & wait $!", 0),
    ("nohup sleep 1000 > /dev/null 2>&1 & echo started; kill $!", 0),
    ("trap 'echo bye' EXIT; trap - EXIT", 0),
    ("ulimit -n", 0),
    ("umask 022 && umask", 0),
    # git
    ("git init -q repo && cd repo", 0),
    ("git status --short", 0),
    ("echo one > one && git add -A && git commit -qm first", 0),
    ("git log --oneline | wc -l", 0),
    ("git checkout -qb feature && echo two >> one && git diff --stat", 0),
    ("git commit -qam second && git checkout -q - && git merge -q feature", 0),
    ("git stash list && git tag v1 && git describe --tags", 0),
    ("git rev-parse HEAD~5", 128),
    ("git worktree add -q ../wt 2>/dev/null && ls ../wt", 0),
    ("git config user.name Someone && git commit -q --amend --reset-author --no-edit", 0),
    ("cd /workspace", 0),
    # python
    ("python3 -c 'print(1 + 1)'", 0),
    ("python3 -c 'import sys; sys.exit(3)'", 3),
    ("python3 -c 'raise ValueError(1)'", 1),
    ("python3 - <<'EOF'\nimport json\nprint(json.dumps({'a': 1}))\nEOF", 0),
    ("python3 -m json.tool <<< '{\"a\": 1}'", 0),
    ("python3 -m py_compile hello.py", 0),
    ("python3 -m no_such_module", 1),
    ("python3 -m unittest discover -s src -t . -q 2>&1 | tail -1", 0),
    # servers and ports
    ("python3 -m http.server 8000 --bind 127.0.0.1 >server.log 2>&1 & echo $! > pid; sleep 0", 0),
    ("for i in $(seq 200); do (echo > /dev/tcp/127.0.0.1/8000) 2>/dev/null && break; sleep 0.1; done", 0),
    ("python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8000/\").status)'", 0),
    ("kill $(cat pid)", 0),
    ("python3 -c 'import socket; socket.create_server((\"127.0.0.1\", 80))'", 0),
    ("python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 9), 1)' 2>/dev/null", 1),
    # root
    ("sudo whoami", 0),
    ("sudo -n true", 0),
    ("sudo -E env | grep -q FOO=bar", 0),
    ("sudo touch /etc/mark /usr/local/bin/mark && ls /etc/mark", 0),
    ("sudo sh -c 'echo hi > /opt/hi' && cat /opt/hi", 0),
    ("echo 127.0.0.9 myhost | sudo tee -a /etc/hosts > /dev/null && grep -q myhost /etc/hosts", 0),
    ("sudo chown root:root hello.py && sudo chmod 644 hello.py && rm -f hello.py", 0),
    ("sudo bash -c 'exit 9'", 9),
    ("sudo no-such-program", 1, 127, "a shell's status for a program that is not there; sudo's own is 1"),
    ("su -c 'id -u'", 1, 0, "no password is asked for: whoever is inside may be the sandbox's root"),
    ("sudo useradd builder && id -u builder", 0),
    ("sudo mkdir /app", 0, 1, "`/` itself is read-only, for root too: use workspace_at='/app'"),
    ("sudo dpkg --list > /dev/null", 0),
    ("sudo -u nobody whoami", 0, 1, "sudo gives root only: use user='nobody'"),
    # a network that is denied
    ("curl -s --max-time 5 https://example.com > /dev/null", 0, 6, "the network is denied by default"),
    ("ping -c 1 -W 1 example.com > /dev/null 2>&1", 0, 2, "the network is denied by default"),
    ("getent hosts localhost", 0),
    ("exit 5", 5),
    ("echo still here; echo $FOO | grep -q bar", 0),
]


@pytest.fixture(scope="module")
def answers() -> Iterator[dict[str, int]]:
    with Sandbox(backend="namespaces") as sb:
        yield {line[0]: sb.run(line[0], timeout=250).exit_code for line in LINES}


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[0][:50])
def test_a_line_ends_as_in_a_container_or_says_why_not(
    answers: dict[str, int], line: tuple[str, int] | tuple[str, int, int, str]
) -> None:
    ours = line[2] if len(line) == 4 else line[1]
    assert answers[line[0]] == ours
