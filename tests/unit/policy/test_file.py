"""The policy file: strict, named in every error, and never one that a sandbox could have written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle import Limits, Network, Policy
from staddle.environment import CommandRules, Rule
from staddle.errors import PolicyError
from staddle.policy.compiler import compile as compile_policy
from tests.unit.policy.tree import make


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make(tmp_path, "etc/", "ws/") / "etc/staddle.toml"


def load(file: Path, text: str | bytes, **kwargs: str) -> Policy:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Policy.from_file(file, **kwargs)


def refused(file: Path, text: str | bytes, **kwargs: str) -> str:
    with pytest.raises(PolicyError) as caught:
        load(file, text, **kwargs)
    assert str(file) in caught.value.what
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_key_is_a_field_of_policy(file: Path) -> None:
    policy = load(
        file,
        """
        preset = "none"
        read = ["/opt/data", "~/x", "rel"]
        write = ["/srv/out"]
        deny = ["/opt/data/private"]
        sockets = ["/run/x.sock"]
        pass_env = ["TERM"]
        unprotect = [".vscode"]
        system = false
        [network]
        allow = ["api.example.com:443", "!10.0.0.0/8"]
        [limits]
        timeout = 5
        memory = "1G"
        output = "none"
        cpu = 1.5
        [env]
        CI = "1"
        """,
    )
    assert policy == Policy(
        read=["/opt/data", "~/x", "rel"],
        write=["/srv/out"],
        deny=["/opt/data/private"],
        sockets=["/run/x.sock"],
        network=Network.allow("api.example.com:443", "!10.0.0.0/8"),
        limits=Limits(timeout=5, memory="1G", output=None, cpu=1.5),
        env={"CI": "1"},
        pass_env=["TERM"],
        system=False,
        unprotect=[".vscode"],
    )


def test_toolchains_are_looked_for_unless_a_file_says_no(file: Path) -> None:
    assert load(file, "system = true").toolchains
    assert not load(file, "toolchains = false").toolchains
    assert not load(file, 'preset = "none"').toolchains
    assert "toolchains" in refused(file, 'toolchains = "no"')


def test_the_agent_preset_is_where_a_file_starts(file: Path) -> None:
    assert load(file, 'read = ["/opt"]') == Policy.agent().with_read("/opt")
    assert load(file, 'preset = "agent"') == Policy.agent()
    assert load(file, "# nothing\n") == Policy.agent()
    assert load(file, 'preset = "coding-agent"\nhome = "/home/a"') == Policy.coding_agent("/home/a")


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ('[network]\nmode = "deny"', Network.deny()),
        ('[network]\nmode = "open"', Network.open()),
        ('[network]\nmode = "loopback"', Network.loopback()),
        ('[network]\nmode = "loopback"\nports = [8000]', Network.loopback([8000])),
        ('[network]\nmode = "allow"\nallow = ["a.com"]', Network.allow("a.com")),
        ('[network]\nallow = ["a.com"]', Network.allow("a.com")),
        ("[network]\nallow = []", Network.deny()),
    ],
)
def test_networks(file: Path, text: str, network: Network) -> None:
    assert load(file, text).network == network


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("raed = []", "raed"),
        ("[polcy]\nx = 1", "polcy"),
        ('read = "/opt"', "read"),
        ("read = [1]", "read"),
        ("read = [[]]", "read"),
        ('read = [""]', "read"),
        ('read = ["/"]', "read"),
        ('write = ["/tmp"]', "write"),
        ('deny = ["a/../b"]', "deny"),
        ('system = "no"', "system"),
        ("system = 1", "system"),
        ("preset = 1", "preset"),
        ('preset = "root"', "root"),
        ('preset = "coding-agent"', "home"),
        ("home = []", "home"),
        ('unprotect = [".x"]', "unprotect"),
        ('pass_env = ["A=B"]', "pass_env"),
        ("env = []", "env"),
        ("[env]\nA = 1", "env.A"),
        ("[env]\nA = true", "env.A"),
        ('[env]\n"A=B" = "x"', "env"),
        ('[env]\nA = "\\u0000"', "env"),
        ('network = "open"', "network"),
        ("[network]", "network.mode"),
        ('[network]\nmode = "closed"', "network.mode"),
        ("[network]\nmode = 1", "network.mode"),
        ('[network]\nmode = "allow"', "network.allow"),
        ('[network]\nmode = "open"\nallow = ["a.com"]', "network.allow"),
        ('[network]\nallow = "a.com"', "network.allow"),
        ("[network]\nallow = [1]", "network.allow"),
        ('[network]\nallow = ["*"]', "network"),
        ('[network]\nallow = ["a b"]', "network"),
        ('[network]\nhosts = ["a.com"]', "network.hosts"),
        ('[network]\nmode = "deny"\nports = [1]', "network.ports"),
        ('[network]\nmode = "loopback"\nports = 1', "network.ports"),
        ('[network]\nmode = "loopback"\nports = ["1"]', "network"),
        ('[network]\nmode = "loopback"\nports = [true]', "network"),
        ("limits = 1", "limits"),
        ("[limits]\nmemroy = 1", "limits.memroy"),
        ("[limits]\nmemory = 0", "limits.memory"),
        ('[limits]\nmemory = "1X"', "limits.memory"),
        ("[limits]\nmemory = true", "limits.memory"),
        ("[limits]\ntimeout = nan", "limits.timeout"),
        ("[limits]\ntimeout = inf", "limits.timeout"),
        ('[limits]\ntimeout = "soon"', "limits.timeout"),
        ("[limits]\nprocesses = 1.5", "limits.processes"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(file: Path, text: str, key: str) -> None:
    assert key in refused(file, text)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b" \n\t\n", "empty"),
        (b"\xef\xbb\xbfread = []", "byte order mark"),
        (b'read = ["\xff"]', "not UTF-8"),
        (b"\xff\xfer\x00", "not UTF-8"),
        (b"read = [", "not TOML"),
        (b"read: []", "not TOML"),
        (b"read = []\nread = []", "not TOML"),
        (b"[env]\n[env]", "not TOML"),
        (b'env.A = "1"\nenv.A = "2"', "not TOML"),
        (b"read = " + b"[" * 5000, "nested"),
        (b"#" * (256 << 10) + b"#", "larger than 256 KiB"),
        (b"read = [\0]", "not TOML"),
    ],
)
def test_what_is_no_policy_file_is_refused(file: Path, content: bytes, why: str) -> None:
    assert why in refused(file, content)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = " + "1" * 200_000, "longer than 256"),
        ("x = 0x" + "f" * 200_000, "longer than 256"),
        ("x = " + "1_" * 500 + "1", "longer than 256"),
        ("x = 1e" + "9" * 500, "longer than 256"),
        ("a" * 300 + " = 1", "longer than 256"),
        (".".join("a" * 50_000) + " = 1", "more than 16 dots"),
        (".".join(["'a'", '"b"'] * 20) + " = 1", "more than 16 dots"),
        ("[" + " . ".join("a" * 100) + "]", "more than 16 dots"),
        ("x = {" + ",".join(f"a.b{number} = 1" for number in range(100)) + "}", "more than 16 dots"),
        ("x = " + "[" * 17 + "]" * 17, "nested deeper than 16"),
        ("x = " + "{a = [" * 9 + "1" + "]}" * 9, "nested deeper than 16"),
        # No string hides what follows it.
        ("x = ['''a'''', {" + "a." * 100 + "b = 1}]", "more than 16 dots"),
        ('x = ["""a"""", {' + "a." * 100 + "b = 1}]", "more than 16 dots"),
        ('x = ["""\\""""", {' + "a." * 100 + "b = 1}]", "more than 16 dots"),
        ('x = ["\\"", {' + "a." * 100 + "b = 1}]", "more than 16 dots"),
        ("x = ['\\', {" + "a." * 100 + "b = 1}]", "more than 16 dots"),
        ("x = '' # '\n" + "a." * 100 + "b = 1", "more than 16 dots"),
    ],
)
def test_what_would_keep_the_parser_busy_does_not_reach_it(
    file: Path, text: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tomllib.loads", lambda text: pytest.fail("it was parsed"))
    assert why in refused(file, text)


def test_strings_and_comments_may_have_as_many_dots_and_brackets(file: Path) -> None:
    lines = [
        f"# {'a.' * 100} {'[' * 100} {'1' * 1000}",
        f"pass_env = ['{'a.' * 20}', \"{'[' * 20}\", '''{'b.' * 20}''', \"\"\"{'{' * 20}\"\"\"]",
        f"env.A = '{'1' * 1000}'",
    ]
    file.write_text("\n".join(lines))
    assert len(Policy.from_file(file).env["A"]) == 1000


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, why in (
        ("missing", "there is no policy file"),
        (".", "directory"),
        ("pipe", "not a regular file"),
    ):
        with pytest.raises(PolicyError, match=why):
            Policy.from_file(tmp_path / name)
    for wrong in ("", "a\0b", 5, None):
        with pytest.raises(PolicyError, match="policy file"):
            Policy.from_file(wrong)  # type: ignore[arg-type]


def test_a_file_that_cannot_be_read_is_refused_unless_we_are_root(file: Path) -> None:
    file.write_text('preset = "agent"')
    file.chmod(0)
    if os.geteuid() == 0:
        assert Policy.from_file(file) == Policy.agent()
    else:
        with pytest.raises(PolicyError, match="cannot be read"):
            Policy.from_file(file)


def test_a_file_that_everybody_may_write_is_refused(file: Path) -> None:
    file.write_text('preset = "agent"')
    file.chmod(0o646)
    with pytest.raises(PolicyError, match="everybody"):
        Policy.from_file(file)


# --- placeholders


def test_placeholders_are_filled_in(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("TMPDIR", "/scratch")
    policy = load(
        file,
        'read = ["${WORKSPACE}", "${HOME}/a${HOME}", "${TMPDIR}/x", "/a$$b"]\n[env]\nW = "${WORKSPACE}:$$"\n',
        workspace=f"{tmp_path}/ws",
    )
    assert set(policy.read) == {f"{tmp_path}/ws", "/h/a/h", "/scratch/x", "/a$b"}
    assert policy.env == {"W": f"{tmp_path}/ws:$"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("${WORKSPACE}/x", "${WORKSPACE} is not known"),
        ("${TMPDIR}/x", "'tmp', which is not an absolute path"),
        ("${HOME}/x", "''"),
        ("${USER}", "no placeholder ${USER}"),
        ("${}", "no placeholder ${}"),
        ("${home}", "no placeholder"),
        ("${HOME", "lone '$'"),
        ("$HOME/x", "lone '$'"),
        ("/x$", "lone '$'"),
        ("${ HOME }", "no placeholder"),
    ],
)
def test_placeholders_without_a_value_are_errors(
    file: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    monkeypatch.setenv("HOME", "")
    monkeypatch.setenv("TMPDIR", "tmp")
    for line, key in ((f'read = ["{text}"]', "read"), (f'[env]\nA = "{text}"', "env.A")):
        sentence = refused(file, line)
        assert why in sentence
        assert key in sentence


def test_a_relative_home_is_no_value(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "relative")
    assert "not an absolute path" in refused(file, 'read = ["${HOME}/x"]')


# --- a file that an agent could have changed


def test_a_file_in_the_workspace_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "ws/sub/", "ws/out -> ../etc", "etc/", "link -> ws", "in -> ws/sub/p.toml")
    for place in ("ws/p.toml", "ws/sub/p.toml", "etc/p.toml"):
        (tmp_path / place).write_text('preset = "agent"')
    for inside in ("ws/p.toml", "ws/sub/p.toml", "link/p.toml", "in", "ws/out/p.toml", "etc/../ws/p.toml"):
        for workspace in ("ws", "link"):
            with pytest.raises(PolicyError, match="workspace"):
                Policy.from_file(tmp_path / inside, workspace=tmp_path / workspace)
    assert Policy.from_file(tmp_path / "etc/p.toml", workspace=tmp_path / "ws") == Policy.agent()
    assert Policy.from_file(tmp_path / "ws/../etc/p.toml", workspace=tmp_path / "ws") == Policy.agent()


def test_the_file_of_a_project_is_read_where_no_sandbox_can_write_it(tmp_path: Path) -> None:
    make(tmp_path, "ws/sub/", "other/", "link -> ws")
    file = tmp_path / "ws/staddle.toml"
    file.write_text(
        'preset = "agent"\ndeny = ["${WORKSPACE}/private"]\nnetwork = {mode = "deny"}\nsudo = false\n'
        'limits = {timeout = "5m"}\nenv = {A = "1"}\n'
    )
    for workspace in ("ws", "link"):
        policy = Policy.from_file(file, workspace=tmp_path / workspace)
        assert [os.path.basename(path) for path in policy.deny][-1] == "private"
    assert compile_policy(policy.with_read(tmp_path / "ws"))
    with pytest.raises(PolicyError, match="may be written by what it confines"):
        compile_policy(policy.with_write(tmp_path / "ws"))
    guarded = compile_policy(Policy(write=[tmp_path / "ws"])).guards
    assert str(file) in {guard.path for guard in guarded}


@pytest.mark.parametrize(
    ("text", "place", "mode"),
    [
        ('preset = "agent"', "ws/sub/staddle.toml", 0o644),
        ('preset = "agent"', "ws/other.toml", 0o644),
        ('preset = "agent"', "ws/staddle.toml", 0o664),
        *(
            (text, "ws/staddle.toml", 0o644)
            for text in (
                'unprotect = ["staddle.toml"]',
                'write = ["${WORKSPACE}"]',
                'read = ["/root"]',
                'sockets = ["/run/docker.sock"]',
                'pass_env = ["SECRET"]',
                'home = "/root"',
                'base = "/"',
                'preset = "none"',
                'environment = "inherit"',
                "nested = true",
                "redact = false",
                'network = {mode = "open"}',
                'network = {allow = ["example.com:443"]}',
                'limits = {memory = "100G"}',
            )
        ),
    ],
)
def test_another_file_of_a_project_is_not(tmp_path: Path, text: str, place: str, mode: int) -> None:
    make(tmp_path, "ws/sub/")
    (tmp_path / place).write_text(text)
    (tmp_path / place).chmod(mode)
    with pytest.raises(PolicyError):
        Policy.from_file(tmp_path / place, workspace=tmp_path / "ws")


def test_a_link_to_the_file_of_a_project_is_not(tmp_path: Path) -> None:
    make(tmp_path, "ws/", "elsewhere.toml", "ws/staddle.toml -> ../elsewhere.toml")
    (tmp_path / "elsewhere.toml").write_text('preset = "agent"')
    with pytest.raises(PolicyError, match="workspace"):
        Policy.from_file(tmp_path / "ws/staddle.toml", workspace=tmp_path / "ws")


def test_a_file_that_its_own_policy_lets_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "conf/", "link -> conf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "conf/p.toml"
    for write in (
        str(tmp_path),
        f"{tmp_path}/conf",
        str(file),
        ".",
        "conf",
        "~",
        "~/conf",
        f"{tmp_path}/link",
    ):
        assert "may be written" in refused(file, f'write = ["{write}"]')
    assert load(file, f'write = ["{tmp_path}/other"]').write == (f"{tmp_path}/other",)


def test_what_is_granted_later_must_not_cover_the_file_either(tmp_path: Path) -> None:
    make(tmp_path, "conf/", "ws/")
    policy = load(tmp_path / "conf/p.toml", 'write = ["sub"]')
    for wider in (policy.with_write(tmp_path / "conf"), policy.with_write(tmp_path).with_env(A="1")):
        with pytest.raises(PolicyError, match="policy file"):
            compile_policy(wider, base=f"{make(tmp_path, 'ws/sub/')}/ws")
    make(tmp_path, "conf/sub/")
    assert compile_policy(policy, base=f"{tmp_path}/ws")
    narrow = policy.replace(write=()).with_write(tmp_path).with_deny(tmp_path)
    assert compile_policy(narrow)  # the grant is dead


def test_nothing_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "ws/")
    for name in ("staddle.toml", ".staddle.toml", ".env", "pyproject.toml"):
        (tmp_path / "ws" / name).write_text('write = ["/"]')
    monkeypatch.chdir(tmp_path / "ws")
    monkeypatch.setenv("HOME", str(tmp_path / "ws"))
    assert compile_policy(Policy.agent().with_read(".")).access(f"{tmp_path}/ws/staddle.toml") == "read"


def test_the_file_a_policy_came_from_is_not_part_of_its_value(file: Path) -> None:
    policy = load(file, 'preset = "agent"')
    assert policy == Policy.agent()
    assert hash(policy) == hash(Policy.agent())
    assert str(file) not in repr(policy)


def test_command_rules_in_a_file(file: Path) -> None:
    policy = load(
        file,
        """
        [rules]
        deny = ["curl", {command = "git push", owner = "the publish tool", reason = "a person looks first"}]
        allow = ["make"]
        ready_made = ["helm"]
        unknown = "allow"
        """,
    )
    own = ["curl", Rule("git push", "the publish tool", "a person looks first")]
    rules = CommandRules([*own, *Rule.ready_made("helm")], ["make"], "allow")
    assert policy == Policy.agent().with_rules(rules)
    assert "rules.never" in refused(file, "[rules]\nnever = []")
    assert "not a rule" in refused(file, "[rules]\ndeny = [{owner = 'x'}]")
    assert "rules.deny" in refused(file, "[rules]\ndeny = 'git'")
    assert "ready-made" in refused(file, "[rules]\nready_made = ['all']")
    assert "unknown" in refused(file, "[rules]\nunknown = 'maybe'")
    two = "{command = 'git', owner = 'a'}, {command = 'git', owner = 'b'}"
    assert "two owners" in refused(file, f"[rules]\ndeny = [{two}]")


def test_a_temporary_directory_that_is_not_set_is_the_usual_one(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    assert load(file, 'read = ["${TMPDIR}/x"]').read == ("/tmp/x",)


DOCS = Path(__file__).parents[3] / "docs"
PAGES = "".join((DOCS / name).read_text() for name in ("policy.md", "policy-file.md", "protected-names.md"))


@pytest.mark.parametrize("text", [part.partition("\n```")[0] for part in PAGES.split("```toml\n")[1:]])
def test_every_policy_file_of_the_documentation_loads(file: Path, text: str) -> None:
    assert load(file, text, workspace=str(file.parent.with_name("ws")))
