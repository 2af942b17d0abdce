"""Numbers, names, defaults and options in the documentation are those of the code."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from staddle import Identity, Limits, Network, Policy, Reason, Sandbox, backends, wrap
from staddle.backends import bwrap, landlock, seatbelt, systemd
from staddle.cli import _COMMANDS, OURS
from staddle.cli.options import KEEP, RUNNING
from staddle.enforcement import PROTECTIONS
from staddle.hostinfo.protected import REASONS
from staddle.jail.agents import AGENTS
from staddle.jail.workspace import RETENTION
from staddle.launch import running
from staddle.limits import enforced
from staddle.linux import file_room
from staddle.mounts import builder
from staddle.network.gateway import connection, host_channel
from staddle.network.host import approval_calls
from staddle.network.host.gateway_process import GatewayBounds
from staddle.observe.audit import KINDS as AUDIT_KINDS
from staddle.policy.environment import PRESETS
from staddle.policy.system import scratch
from staddle.sandbox.open.settings import MODES
from staddle.shell import protocol as bash

TREE = Path(__file__).parents[2]
DOCS = TREE / "docs"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
#: Words of a page with a number in them, the constant it is of, and what divides that.
NUMBERS = (
    ("base.md", "more than {:,} entries cannot contain a grant", "policy.base.MOST_ENTRIES", 1),
    ("base.md", "more than {:.0f} GiB or", "files.tar.UnpackBounds.bytes", GIB),
    ("command-rules.md", "longer than {:.0f} KiB", "command_rules.shell_parser.LONGEST", KIB),
    ("environment.md", "A read of more than {:.0f} MiB is an error", "environment.local.MOST_READ", MIB),
    ("files.md", "`read` and `read_bytes` stop at {:.0f} MiB", "sandbox.files.MOST_READ", MIB),
    ("files.md", "does not answer for {:.0f} seconds is given up", "ipc.agent_client.PATIENCE", 1),
    ("kept.md", "more than {:,} changes", "sandbox.workspace.persistent._MOST_TOUCHED", 1),
    ("limits.md", "prints {:.0f} GiB beyond that is killed", "observe.output.FLOOD", GIB),
    ("limits.md", "on a disk at most {:.0f} GiB", "limits.enforced.MOST_ON_DISK", GIB),
    ("limits.md", "`oom_score_adj` {}", "limits.process_attributes.BEFORE_OTHERS", 1),
    ("usage.md", "commands shorter than {:.2f} ms", "shell.usage_meter._SHORT", 0.001),
    ("limits-enforcement.md", "and {:.0f} MiB are added to the limit", "sandbox.open.limits._ROOM", MIB),
    (
        "limits-enforcement.md",
        "every {:.0f} to 250 milliseconds",
        "limits.supervisor._SHORTEST",
        0.001,
    ),
    ("limits-enforcement.md", "5 to {:.0f} milliseconds", "limits.supervisor._LONGEST", 0.001),
    ("mcp.md", "gives a process {:.0f} seconds to read", "mcp.command_tools.READ_WITHIN", 1),
    ("network.md", "once each and at most {}", "network.host.gateway_log.MOST", 1),
    ("network.md", "`on_connect_timeout` seconds ({:.0f};", "policy.network.PATIENCE", 1),
    ("network.md", "More than {} open questions", "network.gateway.host_channel._MOST_QUESTIONS", 1),
    ("network-rules.md", "a wildcard allows {} names", "network.namespace.from_policy.WILDCARD_SLOTS", 1),
    ("paths.md", "a name over {} bytes", "paths.LONGEST_NAME", 1),
    ("paths.md", "a path over {} bytes", "paths.LONGEST_PATH", 1),
    ("policy-file.md", "more than {:.0f} KiB", "policy.file.LARGEST_FILE", KIB),
    ("policy-file.md", "more than {} dots", "policy.file.MOST_DOTS", 1),
    ("policy-file.md", "number of more than {} characters", "policy.file.LONGEST_WORD", 1),
    ("policy-file.md", "more than {} brackets", "policy.file.MOST_NESTED", 1),
    ("internals/prewarming.md", "it ends after {:.0f} seconds", "inside.agent.starter._IDLE", 1),
    ("protected-names.md", "More than {:,} files", "hostinfo.protected.MOST_ENTRIES", 1),
    ("pools.md", "With a limit below {} no sandbox", "linux.open_files.LEAST", 1),
    ("troubleshooting.md", "it printed {:.0f} GiB beyond `output`", "observe.output.FLOOD", GIB),
    ("world.md", "at most {} |", "policy.identity.LONGEST_USER", 1),
    ("world.md", "0 to {}", "policy.identity.LAST_ID", 1),
    ("world.md", "at most {} characters", "policy.identity.LONGEST_HOST", 1),
)
#: Modules that an example for users may import. The pages below internals/ are for contributors.
PUBLIC = {
    *("staddle", "staddle.display", "staddle.errors", "staddle.environment", "staddle.testing"),
    "staddle.compat.e2b",
}


def text(name: str) -> str:
    """One page of docs/."""
    return (DOCS / name).read_text()


def rows(name: str, heading: str) -> list[list[str]]:
    """The cells of the first table of a page whose first column has this heading, without the heading."""
    lines = text(name).splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


def code(cell: str) -> list[str]:
    """What stands in backticks in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def test_options_of_the_command_line() -> None:
    options = [option for option in (*RUNNING, KEEP) if option.name != "help"]
    spelled = [f"--{option.name} {option.value}".strip() for option in options]
    found = rows("cli.md", "option")
    assert [code(row[0]) for row in found] == [[option] for option in spelled]
    for option, row in zip(options, found, strict=True):
        repeatable = "repeatable" in row[2]
        assert repeatable == option.many, row
        if default := re.search(r"(\w+) \(default\)", option.help):
            assert default[1] in row[1], row


def test_commands_of_the_command_line() -> None:
    found = [name for row in rows("cli.md", "command") for name in code(row[0])]
    assert sorted(found) == sorted(_COMMANDS)


@pytest.mark.parametrize(("page", "words", "name", "unit"), NUMBERS)
def test_numbers_in_sentences(page: str, words: str, name: str, unit: float) -> None:
    value = _constant(name)
    sentence = words.format(value if unit == 1 else value / unit)
    assert sentence in " ".join(text(page).split())


def _constant(name: str) -> float:
    """The value of a name below the package; the last part of its module is found by importing."""
    module, _, last = name.rpartition(".")
    try:
        return getattr(importlib.import_module(f"staddle.{module}"), last)
    except ModuleNotFoundError:
        module, _, owner = module.rpartition(".")
        return getattr(getattr(importlib.import_module(f"staddle.{module}"), owner), last)


def test_sizes_of_private_directories() -> None:
    sizes = {made.path: made.size for made in scratch("/home/user")}
    assert {path: size // MIB for path, size in sizes.items()} == {
        "/dev/shm": 1024, "/tmp": 1024, "/var/tmp": 1024, "/run": 64, "/home/user": 1024
    }  # fmt: skip
    page = " ".join(text("inside.md").split())
    assert (
        "`/tmp`, `/var/tmp` and `/dev/shm` (1 GiB each), `/run` (64 MiB), and the home `/home/user` (1 GiB)"
        in page
    )


def test_retention_of_workspaces() -> None:
    assert {state: seconds / 86400 for state, seconds in RETENTION.items()} == {"published": 1, "failed": 3}
    assert "were published a day ago or failed three days ago" in " ".join(text("jail-reference.md").split())


def test_counts_in_words() -> None:
    assert len(builder._DEVICES) == 6
    assert "`/dev` with six devices" in " ".join(text("backends.md").split())
    assert approval_calls._AT_ONCE == 8
    assert "from threads of its own, eight at a time" in " ".join(text("network.md").split())
    assert (host_channel._FRESH, host_channel._UNANSWERED) == (300, 10)
    assert "when the answer is five minutes old (ten seconds, if" in " ".join(text("network.md").split())
    assert connection._LOOKING == 5
    assert "waits for an answer is ended after five seconds" in " ".join(text("network-rules.md").split())
    assert running.GRACE == 5
    assert "five seconds after SIGTERM, kills it" in " ".join(text("cli.md").split())
    assert file_room.PATIENCE == 60
    assert "when there is no room for a minute" in " ".join(text("pools.md").split())
    assert enforced.RESERVE == 4
    assert "each process may reserve four times the limit" in text("limits-enforcement.md")
    assert bash.OLDEST == (4, 4)
    for page in ("dependencies.md", "sessions.md"):
        assert "4.4" in text(page)


def test_exit_status() -> None:
    statuses = {row[0] for row in rows("cli.md", "status")}
    assert {"124", str(OURS), "126, 127"} <= statuses


def test_limits_and_their_defaults() -> None:
    found = {code(row[0])[0]: row[1] for row in rows("limits.md", "limit")}
    parameters = inspect.signature(Limits).parameters
    assert set(found) == set(Limits._fields) - {"defaults"}
    for name, shown in found.items():
        default = parameters[name].default
        expected = {"default": "[computed](#defaults)", None: "none", 120.0: "120 s", "1M": '`"1M"`'}[default]
        assert shown == expected, name


def test_identity_and_its_defaults() -> None:
    found = {code(row[0])[0]: row[1] for row in rows("world.md", "`Identity(…)`")}
    made = Identity()
    assert set(found) == set(Identity._fields)
    assert (found["user"], found["uid"], found["host"]) == (f"`{made.user}`", str(made.uid), f"`{made.host}`")
    assert made.home == "/home/user"
    assert found["home"] == "`/home/USER`"


def test_environment_presets() -> None:
    assert [code(row[0])[0].strip('"') for row in rows("world.md", "`environment=`")] == list(PRESETS)


def test_modes_of_a_workspace() -> None:
    found = rows("sessions.md", "`mode`")
    assert {code(row[0])[0] for row in found} == set(MODES)
    default = inspect.signature(Sandbox).parameters["mode"].default
    assert [code(row[0])[0] for row in found if "(default)" in row[0]] == [default]


def test_network_modes() -> None:
    made = {name for name in vars(Network) if isinstance(vars(Network)[name], classmethod)}
    shown = {re.match(r"Network\.(\w+)", code(row[0])[0])[1] for row in rows("network-rules.md", "mode")}
    assert shown == {name for name in made if not name.startswith("_")}


def test_reasons_of_a_result() -> None:
    shown = next(row for row in rows("sessions.md", "field of a Result") if row[0] == "`reason`")
    assert code(shown[1]) == [str(reason) for reason in Reason]


def test_protected_names() -> None:
    found = {name: row[0] for row in rows("protected-names.md", "why") for name in code(row[1])}
    assert found == dict(REASONS)


def test_coding_agents() -> None:
    found = [(code(row[0])[0], code(row[1])[0], tuple(code(row[2]))) for row in rows("jail.md", "agent")]
    assert found == [(agent.name, agent.key, agent.write) for agent in AGENTS.values()]


def test_versions() -> None:
    oldest = ".".join(map(str, bwrap.OLDEST[:2]))
    for page in ("backends.md", "dependencies.md"):
        assert f"bubblewrap ≥ {oldest}" in text(page), page
        assert f"systemd ≥ {systemd.OLDEST}" in text(page), page
    assert f"bubblewrap {oldest} or newer" in text("install.md")


def test_backends_in_the_order_of_auto() -> None:
    found = [code(row[0])[0] for row in rows("backends.md", "backend")]
    assert found == list(backends.NAMES)


def test_bounds_of_the_gateway() -> None:
    found = dict(re.findall(r"^\| `(\w+)` \((\w+)\) \|", text("internals/gateway.md"), re.MULTILINE))
    assert found == {name: str(value or "none") for name, value in GatewayBounds().as_dict().items()}


def test_variables_that_staddle_reads() -> None:
    source = "".join(path.read_text() for path in (TREE / "src").rglob("*.py"))
    # Those two are set, not read.
    read = set(re.findall(r"\bSTADDLE_[A-Z_]+\b", source)) - {"STADDLE_CANARY", "STADDLE_SANDBOX"}
    shown = {name for row in rows("variables.md", "variable") for name in code(row[0])}
    assert read == {name for name in shown if name.startswith("STADDLE_")}


def test_kinds_of_audit_lines() -> None:
    shown = next(row for row in rows("audit.md", "field") if row[0] == "`what`")
    assert tuple(code(shown[1])) == AUDIT_KINDS


def test_every_page_is_in_the_index() -> None:
    linked = {(DOCS / target).resolve() for target in re.findall(r"\]\(([^)#]+)\)", text("README.md"))}
    pages = set(DOCS.rglob("*.md")) - {DOCS / "README.md"}
    assert not pages - linked


def test_examples_for_users_import_public_names_only() -> None:
    lost = []
    for page in [TREE / "README.md", *DOCS.glob("*.md")]:
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            used = re.findall(r"^ *(?:from|import) (staddle[\w.]*)", block, re.MULTILINE)
            lost += [f"{page.name}: {name}" for name in used if name not in PUBLIC]
    assert not lost


def test_gaps_of_the_backends() -> None:
    """The table has the gaps that the code declares; guards are one where a policy has any."""
    plan = wrap(["true"], Policy.agent()).plan
    declared = {
        "`landlock`, run by a user": {gap.protection for gap in landlock._as_a_user(plan)} | {"guard"},
        "`landlock`, run by root": {"metadata", "guard"},
        "`seatbelt`": set(seatbelt._DOCUMENTED),
        "`native`": set(PROTECTIONS),
    }
    lines = text("security.md").splitlines()
    start = next(at for at, line in enumerate(lines) if "| `landlock`, run by a user |" in line)
    heading = [cell.strip() for cell in lines[start].split("|")[1:-1]]
    found: dict[str, set[str]] = {name: set() for name in heading[1:]}
    for line in lines[start + 2 : start + 2 + len(PROTECTIONS)]:
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        for name, cell in zip(heading[1:], cells[1:], strict=True):
            found[name] |= {code(cells[0])[0]} if cell == "**gap**" else set()
    assert found == {"`namespaces`, `bwrap`, `systemd`": set(), **declared}


def test_what_it_costs_on_the_first_screen_is_what_was_measured() -> None:
    """The README names figures of the generated table of hosts: of the machine itself."""
    [figures] = re.findall(r"^\| none: .* \| ([^|]+) \|$", text("internals/container-hosts.md"), re.MULTILINE)
    ahead, _, command = figures.split(", ")
    readme = (TREE / "README.md").read_text()
    assert f"A sandbox opens in {ahead}, and a command in it that does nothing takes {command}" in readme
