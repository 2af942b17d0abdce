"""`staddle claude`: a whole coding agent on a layer of the project, then a review of its changes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import threading
import time

from ..agents.home import KNOWN_HOSTS, AgentHome, own_certificates
from ..agents.keys import outside_keys
from ..agents.launch import installation_of, program_of
from ..agents.repository import make_repository, outer_objects, project_of, remote_hosts
from ..agents.servers import servers
from ..agents.table import CODING_AGENTS
from ..display import counted, shown
from ..errors import CommandNotFound, LayerError, PolicyNotEnforceable, StaddleError, UsageError
from ..layers.persistent_store import is_claimed
from ..paths import WORKSPACE_PATH
from ..policy import Network
from ..sandbox.sandbox import Sandbox
from ..sandbox.workspace import persistent
from .allow import Questions
from .options import asked_of, with_requests, working_directory
from .report import notify, say, say_gaps, say_violations
from .running_review import ReviewServer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..agents.keys import OutsideKeys
    from ..agents.ssh_agent import SshAgentRelay
    from ..jail.agents import Agent
    from ..policy import Policy
    from .options import Parsed

#: Seconds between two looks at new servers and at the agent's state.
_PAUSE = 2.0
_LONGEST_NAME = 40
_GIT_BELOW = f"{WORKSPACE_PATH}/.git/"
#: Ports that no development server uses; and the number of servers that are shown.
_FIRST_PORT, _MOST_PORTS = 1024, 16


class NoLayers(Exception):
    """This host has no layers, and the user accepts what it has."""


class AgentSession:
    """One run of a coding agent: what it needs from the user's home, project and network.

    `tell` is called with a sentence about each use of an ssh key.
    """

    def __init__(self, agent: Agent, parsed: Parsed, tell: Callable[[str], object] = notify) -> None:
        self.agent, self.parsed = agent, parsed
        self.here = os.path.realpath(parsed.one("workspace") or working_directory())
        if not os.path.isdir(self.here):
            raise UsageError(f"the workspace {self.here!r} is not a directory", fix="name one that exists")
        self.project = project_of(self.here)
        self.mode = parsed.one("mode") or "overlay"
        if self.mode not in ("overlay", "bind", "readonly"):
            raise UsageError(f"there is no mode {self.mode!r}", fix="choose overlay, bind or readonly")
        if parsed.on("keep") and self.mode != "overlay":
            raise UsageError(
                f"--keep and --mode {self.mode} contradict each other",
                why="only changes in a layer of its own can be kept",
                fix="leave one of them out",
            )
        self.keys = _keys(agent, parsed)
        self.home = AgentHome(agent, self.project)
        self.home.outside = tuple(secret.name for secret in self.keys.secrets)
        if f"{self.home.home}/".startswith(f"{self.project.rstrip('/')}/"):
            raise UsageError(
                f"the project would be {self.project!r}",
                why="your home is in it, with your keys and everything else",
                fix="change to the directory of a project: cd",
            )
        self.program = program_of(CODING_AGENTS[agent.name])
        self.ssh: SshAgentRelay | None = None
        if parsed.on("ssh-agent"):
            from ..agents.ssh_agent import SshAgentRelay

            self.ssh = SshAgentRelay(lambda key: tell(f"your ssh key {shown(key)} signs for the agent"))
        try:
            if self.keys.secrets:
                from ..network.host.inspector_process import PREWARMED

                PREWARMED.make()
            self.policy = self._policy()
            self.servers = servers(agent, self.project, self.policy.network)
            self.policy = self.policy.with_read(*(path for each in self.servers for path in each.paths))
        except BaseException:
            self.close()
            raise
        #: The name of the kept sandbox; empty without a layer.
        self.name = ""

    @property
    def argv(self) -> list[str]:
        """The agent's command line, in the user's directory: a kept shell may be in another one."""
        agent, words = self.agent, list(self.parsed.words)
        if self.parsed.on("continue"):
            at = 1 if words and words[0] in agent.free_of else 0  # of one prompt, not of a conversation
            latest = (agent.latest if at else agent.interactive_latest) or agent.latest
            words = [*words[:at], *latest, *words[at:]]
        return ["env", "-C", self.here, f"PWD={self.here}", self.program, *agent.freely(words, self.project)]

    def opened(self, **options: Any) -> Sandbox:
        """Open the sandbox, and prepare the agent's home and repository in it."""
        self.home.begin()
        options = {
            "backend": self.parsed.one("backend") or "auto",
            "best_effort": self.parsed.on("best-effort"),
            "audit": self.parsed.one("audit"),
            "workspace_at": self.project,
            **options,
        }
        if self.mode == "overlay":
            sandbox = self._kept(options)
        else:
            granted = self.policy.with_write if self.mode == "bind" else self.policy.with_read
            del options["workspace_at"]
            sandbox = Sandbox(None, granted(self.project), **options)
        try:
            self.home.enter(sandbox, signing=self.ssh is not None)
            if self.name:
                make_repository(sandbox, self.project)
                sandbox.history()  # a point of the preparation, so that the agent's has only its own work
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def ended(self, sandbox: Sandbox, status: int) -> None:
        """Take a point of everything that the agent has changed, under its command line."""
        if sandbox._history is not None:
            command = shlex.join([self.agent.name, *self.parsed.words])
            sandbox._history.program_ended(command, status)

    def _kept(self, options: dict[str, Any]) -> Sandbox:
        """Open the project's kept sandbox for this agent; the next one if that is in use."""
        asked = self.parsed.one("keep")
        names = [asked] if asked else _names(self.agent.name, self.project)
        for self.name in names:
            if not asked and is_claimed(self.name):
                continue
            try:
                return Sandbox(self.project, self.policy, keep=self.name, history=True, **options)
            except (PolicyNotEnforceable, LayerError) as error:
                if not asked and is_claimed(self.name):
                    continue  # another program was faster
                if self.parsed.on("nested"):
                    raise NoLayers(error) from None
                error.fix = f"{error.fix}; or add --nested, to work on a git worktree with less protection"
                raise
        raise LayerError(
            f"{len(names)} sandboxes of this project are in use",
            why="each agent has its own",
            fix="end one of them; `staddle ls` lists them",
        )

    def _policy(self) -> Policy:
        from ..policy.compiler import compile

        parsed, policy = self.parsed, self.home.policy()
        if parsed.one("policy"):
            raise UsageError(
                "--policy is not for a whole agent",
                why="its row in staddle's table decides what it needs",
                fix="use --read, --write, --deny and --allow, or `staddle run --policy FILE -- AGENT`",
            )
        options = {name: values for name, values in parsed.options.items() if name not in ("allow", "dns")}
        policy = asked_of(policy, parsed.replace(options=options)).with_limits(timeout=None)
        if parsed.one("network") in (None, "allow", "packages"):
            hosts = (*self.agent.hosts, *_hosts_of_variables(self.agent), *remote_hosts(self.project))
            models = (host for secret in self.keys.secrets for host in secret.hosts)
            policy = policy.with_network(
                Network.packages(*hosts, *models, *parsed.many("allow"), dns=parsed.many("dns"))
            )
            policy = with_requests(policy.replace(secrets=self.keys.secrets), parsed)
        elif parsed.many("allow"):
            raise UsageError(
                f"--allow and --network {parsed.one('network')} contradict each other",
                fix="leave one of them out",
            )
        if self.ssh is not None:
            policy = policy.with_sockets(self.ssh.path).with_env(
                SSH_AUTH_SOCK=self.ssh.path, GIT_SSH_COMMAND=f"ssh -o UserKnownHostsFile=~/{KNOWN_HOSTS}"
            )
        policy = policy.with_read(*installation_of(self.program), self.program, *outer_objects(self.project))
        # A launcher in a directory of links, such as ~/.npm-global/bin, needs its interpreter too.
        found = (shutil.which(name) for name in (self.program, "node"))
        path = dict.fromkeys(os.path.dirname(each) for each in found if each)
        plan = compile(policy, cwd="/", base=working_directory())
        return policy.with_env(PATH=":".join((*path, plan.environment().get("PATH", os.defpath))))

    def introduction(self, sandbox: Sandbox) -> list[str]:
        """Describe what the agent can do, and the options for more, in a few lines."""
        title, where = self.agent.title, shown(os.path.basename(self.project))
        if self.name:
            waiting = len([each for each in sandbox.diff() if not f"{each.path}/".startswith(_GIT_BELOW)])
            more = f", with {counted(waiting, 'change')} from before" if waiting else ""
            lines = [
                f"{title} works on a copy of {where}{more}; nothing reaches your files before the review"
            ]
        elif self.mode == "bind":
            lines = [f"{title} works in {where} itself: there is no review"]
        else:
            lines = [f"{title} reads {where}, and changes nothing there"]
        network = sandbox.plan.network
        reach = (
            "its model, package indexes and the hosts of your git remotes"
            if network.mode == "allow"
            else str(network)
        )
        lines.append(f"network: {reach}; --allow HOST adds a host")
        lines.append("your home and keys are not there; --read PATH, --write PATH and --ssh-agent show more")
        lines += self.keys.told()
        missing = [f"{shown(each.name)} ({shown(each.missing)})" for each in self.servers if each.missing]
        if missing:
            lines.append(f"MCP servers that do not work in there: {', '.join(missing)}")
        if os.environ.get(self.agent.elsewhere):
            lines.append(f"{self.agent.elsewhere} is not used in there: it has your settings of ~")
        if proxy := next((name for name in ("HTTPS_PROXY", "https_proxy") if os.environ.get(name)), None):
            lines.append(f"{proxy} is not used in there; allowed hosts are reached directly")
        return lines

    def close(self) -> None:
        """End what belongs to the session beside the sandbox."""
        if self.keys.secrets:
            from ..network.host.inspector_process import PREWARMED

            PREWARMED.close()
        if self.ssh is not None:
            self.ssh.close()


def run(agent: Agent, parsed: Parsed) -> int:
    """Open the sandbox, run the agent in it, and offer the review. Returns the agent's exit status."""
    session = AgentSession(agent, parsed)
    questions = None
    try:
        if session.policy.network.mode == "allow" and os.isatty(2):
            questions = Questions(f"{agent.name}-{os.path.basename(session.project)}")
        with session.opened(**({} if questions is None else questions.options)) as sandbox:
            say_gaps(sandbox.enforced)
            for line in session.introduction(sandbox):
                say(line)
            reviews = ReviewServer(sandbox, session.name) if session.name else None
            try:
                status = _attended(sandbox, session)
            finally:
                if reviews is not None:
                    reviews.close()
            session.ended(sandbox, status)
            say_violations((*sandbox.violations(), *sandbox.refusals()))
    except NoLayers as error:
        return _on_a_worktree(session, error.args[0])
    finally:
        session.close()
        if questions is not None:
            questions.close()
    if session.name:
        from .review import at_the_end

        # After a signal that ends us, nobody answers a question.
        at_the_end(session.name, ask=status not in (128 + signal.SIGHUP, 128 + signal.SIGTERM))
    return status


def _on_a_worktree(session: AgentSession, error: StaddleError) -> int:
    """Run the agent in a jail, on a new git worktree of the project: its branch is what is reviewed."""
    from ..jail.workspace import Workspace
    from .jail_run import SHELL_OPTIONS, shell

    agent, parsed = session.agent, session.parsed
    made = Workspace.create(session.project)
    branch = shown(made.branch)
    say(f"{error.what}: {error.why}")
    say(f"{agent.title} works on a git worktree instead, on the branch {branch}")
    known = {option.name for option in SHELL_OPTIONS}
    options = {name: values for name, values in parsed.options.items() if name in known}
    options["agent"] = [agent.name]
    if parsed.one("network") in (None, "allow"):
        options["network"] = ["allow"]
        options["allow"] = [
            *parsed.many("allow"),
            *_hosts_of_variables(agent),
            *remote_hosts(session.project),
        ]
    logins = [name for name in agent.logins if name in os.environ]
    for name in session.home.outside:
        say(f"your {name} is inside: without layers nothing inspects requests")
    options["pass-env"] = [*parsed.many("pass-env"), *logins]
    options["env"] = [*parsed.many("env"), *("=".join(item) for item in agent.set)]
    words = (session.program, *agent.freely(list(parsed.words), made.path))
    try:
        status = shell(made, parsed.replace(options=options, words=words, dashed=True))
    except BaseException:
        if not made.has_uncommitted_changes():
            made.remove()
        raise
    name = shown(made.name)
    say(f"staddle jail diff {name}; staddle jail commit {name} -m TEXT; git merge {branch}")
    return status


def free_name(agent: str, project: str) -> str:
    """The name of the project's kept sandbox for this agent; the next one if that is in use."""
    names = _names(agent, project)
    return next((name for name in names if not is_claimed(name)), names[-1])


def _names(agent: str, project: str) -> list[str]:
    """Names for the project's kept sandboxes of this agent, in the order in which they are used."""
    clean = re.sub("[^A-Za-z0-9._-]+", "-", os.path.basename(project)).strip("-._") or "project"
    base = f"{agent}-{clean}"[:_LONGEST_NAME]
    if persistent.workspace_of(base) not in (None, project):
        import hashlib

        base = f"{base}-{hashlib.sha256(os.fsencode(project)).hexdigest()[:4]}"
    return [base, *(f"{base}-{number}" for number in range(2, 20))]


def _keys(agent: Agent, parsed: Parsed) -> OutsideKeys:
    """Sort the keys in the user's variables. Those that options set or pass are inside, as the user says."""
    given = dict(text.partition("=")[::2] for text in parsed.many("env"))
    ours = {text.partition("=")[0] for text in parsed.many("secret")}
    chosen = {*given, *parsed.many("pass-env"), *ours}
    variables = {name: value for name, value in os.environ.items() if name not in chosen}
    for key in agent.keys:
        if key.address in given:
            variables[key.address] = given[key.address]
    refusal = ""
    if parsed.on("key-inside"):
        refusal = "--key-inside says so"
    elif parsed.one("network") not in (None, "allow", "packages"):
        refusal = f"the network is {parsed.one('network')}"
    elif other := next((name for name in own_certificates() if not _is_trusted(os.environ[name])), ""):
        refusal = f"{other} has authorities that only the agent would trust; name them in SSL_CERT_FILE"
    return outside_keys(agent, variables, refusal)


def _is_trusted(bundle: str) -> bool:
    """Whether a file of certificates is the one with which the HTTP inspector checks servers."""
    from ..policy.egress import BUNDLES

    known = (*BUNDLES, os.environ.get("SSL_CERT_FILE", ""))
    return os.path.realpath(bundle) in map(os.path.realpath, filter(None, known))


def _hosts_of_variables(agent: Agent) -> list[str]:
    """The hosts in the agent's variables, such as ANTHROPIC_BASE_URL. They may be ports of this host."""
    from urllib.parse import urlsplit

    found = []
    for name in agent.logins:
        parts = urlsplit(os.environ.get(name, ""))
        if parts.scheme in ("http", "https") and (host := parts.hostname):
            port = parts.port or (443 if parts.scheme == "https" else 80)
            found.append(f"{'127.0.0.1' if host == 'localhost' else host}:{port}")
    return found


def _attended(sandbox: Sandbox, session: AgentSession) -> int:
    from ..launch.view import find_program

    argv: Sequence[str] = session.argv
    try:
        find_program(sandbox.plan, session.program)
    except CommandNotFound as error:
        error.fix = f"install {session.agent.title} where staddle can show it: /usr/local, or your home"
        raise
    watcher = AgentWatcher(sandbox, session.home, notify)
    watcher.start()
    try:
        if all(map(os.isatty, range(3))):
            from .run_kept import _OnATerminal
            from .terminal import JOB_CONTROL, on_this_terminal

            lent: Any = _OnATerminal(sandbox, [*JOB_CONTROL, *argv])
            return on_this_terminal(lent, None)
        from .shell import passed_through

        return passed_through(sandbox, argv, None)
    finally:
        watcher.end()
        for port, at in watcher.ports.items():
            say(f"a server on port {port} was at http://127.0.0.1:{at}")


class AgentWatcher(threading.Thread):
    """Makes servers inside reachable from the host, and brings the agent's state back, while it runs.

    `tell` is called with a sentence about each new server.
    """

    def __init__(self, sandbox: Sandbox, home: AgentHome, tell: Any) -> None:
        super().__init__(daemon=True)
        self._sandbox, self._home, self._tell = sandbox, home, tell
        self._over = threading.Event()
        #: The ports of servers inside, each with the port of the host's 127.0.0.1 that leads there.
        self.ports: dict[int, int] = {}

    def run(self) -> None:
        took = 0.0
        while not self._over.wait(max(_PAUSE, 10 * took)):  # an agent can make a look expensive
            began = time.monotonic()
            try:
                self._home.bring_back(self._sandbox)
                if self._sandbox.plan.network.mode != "open":
                    self._expose()
            except (StaddleError, OSError):
                pass  # the sandbox is ending
            took = time.monotonic() - began

    def end(self) -> None:
        """Stop watching, and bring the state back once more."""
        self._over.set()
        self.join()
        try:
            self._home.bring_back(self._sandbox)
            self._home.bring_sessions(self._sandbox)
        except (StaddleError, OSError) as error:
            say(f"what the agent remembers could not be saved: {shown(str(error))}")

    def _expose(self) -> None:
        network = self._sandbox.plan.network
        for port in listening(self._sandbox):
            known = port in self.ports or network.permits("127.0.0.1", port)  # the host's, which it may reach
            if not known and port >= _FIRST_PORT and len(self.ports) < _MOST_PORTS:
                try:
                    at = self._sandbox.expose(port, port)
                except (StaddleError, OSError):
                    at = self._sandbox.expose(port)
                self.ports[port] = at
                self._tell(f"a server inside is at http://127.0.0.1:{at}")


def listening(sandbox: Sandbox) -> list[int]:
    """The TCP ports on which programs in the sandbox listen on its loopback, or everywhere."""
    own = (b"0" * 8, b"0100007F", b"0" * 32, b"0" * 24 + b"01000000")
    found = set()
    for table in ("tcp", "tcp6"):
        for row in sandbox.files.read_bytes(f"/proc/1/net/{table}", limit=1 << 20).splitlines()[1:]:
            _, local, _, state, *_ = row.split()
            address, _, port = local.partition(b":")
            if state == b"0A" and address in own:
                found.add(int(port, 16))
    return sorted(found)
