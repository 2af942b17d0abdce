"""Lines as agents type them that were trained on plain Debian containers, and what they get there and here.

The first number is the exit status in a container with an ordinary user that may use sudo: as root, the lines
are run in one as well, with the options of an engine, over this system. Where ours is another one, the reason
stands with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from staddle import Sandbox
from tests.support.containers import Container

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
    ("sudo no-such-program", 1, 127, "a shell's status for a program that does not exist; sudo's own is 1"),
    ("su -c 'id -u'", 1, 0, "no password is asked for: whoever is inside may be the sandbox's root"),
    ("sudo useradd builder && id -u builder", 0),
    ("sudo mkdir /app", 0),
    ("sudo dpkg --list > /dev/null", 0),
    ("sudo -u nobody whoami", 0, 1, "sudo gives root only: use user='nobody'"),
    # paths under the root
    ("sudo mkdir -p /app/src && sudo chown $(id -u):$(id -g) /app /app/src && touch /app/src/main.py", 0),
    ("cd /app && ls src && cd /workspace", 0),
    ("sudo mkdir /testbed /data /logs && sudo chmod 777 /data && echo x > /data/x && cat /data/x", 0),
    ("sudo git init -q /repo && sudo ls -a /repo/.git > /dev/null", 0),
    ("sudo cp -r /app /app2 && sudo mv /app2 /app3 && sudo rm -rf /app3 && ls -d /app3", 2),
    ("sudo ln -s /app /srv/app && readlink -f /srv/app", 0),
    ("ls -d /mnt /media /srv /opt /home /root", 0),
    ("sudo mkdir /home/builder2 && ls -d /home/builder2", 0),
    ("stat -c '%a %U' /tmp /var/tmp", 0),
    ("test -d /.staddle", 1),
    ("sudo touch /marker && sudo rm /marker", 0),
    ("sudo tee /etc/app.conf > /dev/null <<'EOF'\nkey = value\nEOF", 0),
    ("grep -c key /etc/app.conf", 0),
    ("find / -maxdepth 1 -name app", 0),
    ("du -sh /app", 0),
    ("df / > /dev/null", 0),
    ("sudo rmdir /testbed && ls /testbed", 2),
    ("touch /proc/x", 1),
    ("rm -rf /app/src/main.py && rmdir /app/src", 0),
    # packages
    ("dpkg -l bash | grep -q ^ii", 0),
    ("dpkg -S /bin/bash > /dev/null 2>&1 || dpkg -S /usr/bin/bash > /dev/null 2>&1 || true", 0),
    ("dpkg --print-architecture", 0),
    ("apt-cache policy bash > /dev/null 2>&1; true", 0),
    ("apt-get --version > /dev/null", 0),
    ("apt-get install -y hello > /dev/null 2>&1", 100),
    ("sudo apt-get install -y no-such-package-at-all > /dev/null 2>&1", 100),
    ("sudo dpkg --configure -a", 0),
    ("pip --version", 0),
    ("pip list > /dev/null", 0),
    ("pip install no-such-package-at-all-x > /dev/null 2>&1", 1),
    ("python3 -m venv --without-pip env1 && env1/bin/python -c 'import sys; print(sys.prefix)'", 0),
    ("source env1/bin/activate && command -v python && deactivate", 0),
    ("node --version 2>/dev/null || true", 0),
    # git, more
    ("git clone -q repo clone && git -C clone log --oneline | wc -l", 0),
    ("git -C clone checkout -q no-such-branch", 1),
    ("git -C repo worktree list | wc -l", 0),
    ("git -C repo diff --exit-code HEAD~1 > /dev/null", 1),
    ("git -C repo log --format=%an -1 | grep -q .", 0),
    ("git -C clone remote -v | grep -q origin", 0),
    ("git clone -q /no/such/repository", 128),
    ("cd repo && git grep -q two; cd /workspace", 0),
    ("git -C repo blame one > /dev/null && git -C repo show --stat HEAD > /dev/null", 0),
    # processes
    ("ps aux > /dev/null || true", 0),
    ("sleep 100 & kill $!; wait $! 2> /dev/null", 143),
    ("kill -0 $$", 0),
    ("kill 999999", 1),
    ("(trap 'exit 7' TERM; kill -TERM $BASHPID; sleep 1)", 7),
    ("nice -n 5 true", 0),
    ("setsid true", 0),
    ("xargs -n 1 -P 4 echo < abc.txt > /dev/null", 0),
    ("time true", 0),
    ("coproc cat; kill $COPROC_PID; wait $COPROC_PID 2> /dev/null; true", 0),
    ("yes | head -n 1", 0),
    ("mkfifo pipe && (echo through > pipe &) && cat pipe && rm pipe", 0),
    ("python3 -c 'import os; os.kill(os.getpid(), 11)'", 139),
    ("bash -c 'exec 3<>/dev/tcp/127.0.0.1/1' 2> /dev/null", 1),
    # servers, more
    ("(cd /tmp; exec python3 -m http.server 8001 --bind 127.0.0.1 &> log8001) & echo $! > /tmp/pid", 0),
    ("for i in $(seq 200); do curl -sf http://127.0.0.1:8001/ > /dev/null && break; sleep 0.1; done", 0),
    ("curl -s -o /dev/null -w '%{http_code}' http://localhost:8001/ | grep -q 200", 0),
    ("curl -sf http://127.0.0.1:8001/nope > /dev/null", 22),
    ("curl -s http://127.0.0.1:8002/ > /dev/null", 7),
    ("kill $(cat /tmp/pid)", 0),
    ("wget -q -O /dev/null http://127.0.0.1:8002/", 4),
    ("sudo python3 -c 'import socket; socket.create_server((\"0.0.0.0\", 443))'", 0),
    ("python3 -c 'import socket; print(socket.gethostbyname(\"localhost\"))'", 0),
    # text, archives and the rest
    ("zip -q x.zip abc.txt 2> /dev/null || python3 -m zipfile -c x.zip abc.txt", 0),
    ("python3 -m zipfile -l x.zip > /dev/null && rm x.zip", 0),
    ("gzip -k abc.txt && zcat abc.txt.gz | wc -l && rm abc.txt.gz", 0),
    ("sha256sum abc.txt > sums && sha256sum -c --quiet sums", 0),
    ("base64 abc.txt | base64 -d | cmp - abc.txt", 0),
    ("seq 10 | shuf | sort -n | tail -1", 0),
    ("perl -ne 'print if /B/' abc.txt", 0),
    ("tr a-z A-Z < abc.txt | rev | nl > /dev/null", 0),
    ("comm -12 <(sort abc.txt) <(sort abc.txt) | wc -l", 0),
    ("envsubst < /dev/null 2> /dev/null || true", 0),
    ("locale -a | grep -qi utf", 0),
    ("LC_ALL=C.UTF-8 python3 -c 'print(\"ä\")'", 0),
    ("timeout 1 cat /dev/zero > /dev/null", 124),
    ("head -c 1M /dev/zero > big && stat -c %s big && rm big", 0),
    ("truncate -s 1G sparse && rm sparse", 0),
    ("crontab -l 2> /dev/null || true", 0),
    ("sudo -i whoami", 0),
    ("sudo -u root id -u", 0),
    ("sudo sh -c 'id -u > /srv/who' && sudo cat /srv/who", 0),
    ("sudo test -s /srv/who", 0),
    ("sudo groupadd builders && getent group builders", 0),
    ("sudo -iu root pwd", 0),
    ("sudo -s whoami", 0),
    ("sudo su - -c whoami", 0),
    ("sudo -k", 0),
    ("sudo -l > /dev/null", 0),
    ("echo password | sudo -S true", 0),
    ("sudo KEY=1 sh -c 'test $KEY = 1'", 0),
    ("sudo chown nobody /opt && sudo chown root /opt", 0),
    ("sudo mkdir -p /var/lib/thing /var/log/thing && sudo touch /var/log/thing/log", 0),
    ("sudo ln -sf /usr/share/zoneinfo/UTC /etc/localtime && date +%Z", 0),
    ("sudo mount -t tmpfs none /mnt", 32),
    ("sudo chroot / true", 0, 125, "no process of a sandbox changes its root: its mounts are fixed"),
    ("sudo chmod u+s /bin/ls", 0, 1, "a setuid bit gives nothing inside, and is not set"),
    ("cat /proc/1/cmdline > /dev/null", 0),
    ("groups && id", 0),
    ("df -h > /dev/null", 0),
    ("ulimit -a > /dev/null", 0),
    ("sleep 100 & kill %%; wait", 0),
    ("kill %9", 1),
    ("fg", 1),
    ("read -r word <<< hi && test $word = hi", 0),
    ("touch /dev/shm/a && rm /dev/shm/a", 0),
    ("env -i bash -c 'echo $PATH' | grep -q bin", 0),
    ("bash -lc 'command -v ls'", 0),
    ("python3 -c 'import pwd, os; pwd.getpwuid(os.getuid())'", 0),
    ("python3 -c 'import multiprocessing as m; print(m.Pool(2).map(abs, [1]))'", 0),
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


#: Lines whose status depends on what a container is connected to, or on the engine's settings for ports.
NOT_MEASURED = ("curl -s --max-time 5 https://", "ping ", "python3 -c 'import socket; socket.create_server")

MEASURE = r"""
import json, os, subprocess, sys
subprocess.run(
    "useradd -m -u 1500 -s /bin/bash user; mkdir -p /workspace /etc/sudoers.d; chown user:user /workspace;"
    "echo 'user ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/user; chmod 440 /etc/sudoers.d/user;"
    "chmod 1777 /tmp;"
    "git config --system user.name user; git config --system user.email user@box",
    shell=True, capture_output=True,
)
with open("/tmp/lines", "wb") as file:
    file.write(b"".join(line.encode() + b"\0" for line in json.loads(sys.argv[1])))
with open("/tmp/drive", "w") as file:
    file.write('cd /workspace\nwhile IFS= read -r -d "" line <&7; do ')
    file.write('eval "$line" </dev/null >/dev/null 2>&1; ')
    file.write("echo $? >&8; done 7</tmp/lines 8>/tmp/statuses\n")
open("/tmp/statuses", "w").close()
os.chmod("/tmp/statuses", 0o666)
variables = "HOME=/home/user USER=user LOGNAME=user SHELL=/bin/bash LANG=C.UTF-8".split()
path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
user = ["setpriv", "--reuid", "1500", "--regid", "1500", "--init-groups", "env", "-i", *variables, path]
subprocess.run([*user, "bash", "/tmp/drive"], stdin=subprocess.DEVNULL, capture_output=True)
print(json.dumps(open("/tmp/statuses").read().split()))
"""


@pytest.mark.slow
@pytest.mark.needs_root
def test_the_first_column_is_what_a_container_gives() -> None:
    lines = [f"({line[0]})" if line[0].startswith("exit ") else line[0] for line in LINES]
    statuses = map(int, Container().python(MEASURE, json.dumps(lines)))
    found = [(line[0], line[1], status) for line, status in zip(LINES, statuses, strict=True)]
    others = [row for row in found if row[1] != row[2] and not row[0].startswith(NOT_MEASURED)]
    assert not others
