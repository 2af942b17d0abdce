"""Command rules see what would really be run, and say so when only the run would show it."""

from __future__ import annotations

import pickle

import pytest

from staddle import Policy
from staddle.command_rules import shell_parser
from staddle.environment import CommandRules, Rule
from staddle.errors import CommandNotUnderstood, CommandRefused, ExtraMissing, PolicyError

NO_GIT = CommandRules(deny=["git"])

#: Each runs git, in another place or spelling.
RUNS_GIT = [
    "ls && git push",
    "ls || git push",
    "ls; git push",
    "ls &\ngit push",
    "true | git apply",
    "(cd x; git push)",
    "{ git push; }",
    "! git push",
    "time -p git push",
    "coproc git push",
    "echo $(git log)",
    "echo `git log`",
    "echo `echo \\`git\\``",
    'echo "a $(git log) b"',
    "diff <(git show a) b",
    "tee >(git apply)",
    "x=$(git log)",
    "export X=$(git log)",
    "a[$(git log)]=1",
    "echo $((1 + $(git log)))",
    'echo "${x:-$(git log)}"',
    ": ${x:=`git log`}",
    "case $(git log) in *) ;; esac",
    "case x in $(git log)) ;; esac",
    "[[ -n $(git log) ]]",
    "if git diff; then :; fi",
    "while git fetch; do sleep 1; done",
    "for f in $(git ls-files); do cat $f; done",
    "for ((i = 0; i < 3; i++)); do git x; done",
    "f() { git push; }; f",
    "cat <<EOF\n$(git log)\nEOF",
    "cat <<'A' > f; git push\nx\nA",
    '"git" push',
    "g''it push",
    "g\\it push",
    "\\git push",
    "gi\\\nt push",
    '$"git" push',
    "/usr/bin/git push",
    '"$HOME/bin/git" push',
    "env git push",
    "env -i -u X A=1 B=2 git push",
    "env --unset X --chdir=/ git push",
    "sudo git push",
    "sudo -u root -H A=1 git push",
    "sudo --user root -- git push",
    "nohup git push &",
    "nice -n 5 git push",
    "nice -5 git push",
    "timeout 5 git push",
    "timeout -k 1 --signal=KILL 5s git push",
    "env sudo nice -n 5 timeout 3 git push",
    "ls | xargs git add",
    "ls | xargs -0 -n 1 -P4 git add",
    "ls | xargs -I{} git add {}",
    "sh -c 'git push'",
    "sh -c 'cd x && git push' name argument",
    "bash -lc 'git push'",
    "bash --norc -euo pipefail -c 'git push'",
    "bash +e -o pipefail -c 'git push'",
    "sh -c \"sh -c 'git push'\"",
    "/bin/dash -c 'git push'",
    "find . -exec git add {} \\;",
    "find . -name x -ok git add {} + -execdir ls {} ';'",
    "find . -exec ls {} \\; -exec sh -c 'git add \"$1\"' x {} \\;",
]

#: None of these runs git.
RUNS_NONE = [
    "echo git push",
    "echo 'a; git push'",
    "echo a # ; git push",
    "cat <<'EOF'\n$(git push)\nEOF",
    "grep -r git .",
    "command -v git",
    "eval git push",  # a plain command, as every program that is not in the table
    "doas git push",
    "type git",
    "github-tool",
    "git=1",
    "ls git",
    "cd git && ls",
    "env GIT=git ls",
    "sudo -u git ls",
    "timeout -s git 5 ls",
    "xargs -I git ls git",
    "find . -name git -exec ls {} \\;",
    "bash script git",
    "for git in a b; do echo $git; done",
    "case git in git) ls ;; esac",
    "[ -d git ] && [[ git == git ]]",
    "f() { ls; }; f git",
    '"$HOME/bin/tool" git',
    "env",
    "ls | xargs",
    "exec 3> file",
    "trap - EXIT",
    "",
    "# git push",
]

#: Here only the run shows what is run.
UNCLEAR = [
    "$TOOL push",
    "$(which git) push",
    "g=git; $g push",
    '"$@"',
    '"${words[@]}"',
    "${x:-git} push",
    "{git,push}",
    "/usr/bin/g?t push",
    "curl -s https://example.com | sh",
    "echo Z2l0IHB1c2g= | base64 -d | bash -s",
    "bash -c $SCRIPT",
    'bash -c "$SCRIPT"',
    'bash -c "cd $DIR && make"',
    "bash < file",
    "bash <<EOF\nls\nEOF",
    "sudo sh <<< ls",
    "$'\\x6cs'",
    "env $OPTIONS ls",
    "timeout $SECONDS ls",
    "ls | xargs sh -c",
    "ls | xargs env",
    "ls | xargs -I% sh -c 'cat %'",
    "ls | xargs -I% %",
    "find . -exec {} \\;",
    "find . -exec sh -c 'cat {}' \\;",
    "[[ x == @(a|$(git log)) ]]",
    "env -S 'ls -l'",
    "env -iS'A=1 ls' -l",
    "env --split='ls -l'",
    "sudo -u $USER ls",
    "bash -c '\"$@\"' x git push",
]


@pytest.mark.parametrize("text", RUNS_GIT)
def test_a_program_is_seen_wherever_it_is_run(text: str) -> None:
    with pytest.raises(CommandRefused) as refusal:
        NO_GIT.check_script(text)
    assert refusal.value.program == "git"


@pytest.mark.parametrize("text", RUNS_NONE)
def test_what_only_mentions_a_program_is_let_through(text: str) -> None:
    NO_GIT.check_script(text)


@pytest.mark.parametrize("text", UNCLEAR)
def test_what_only_the_run_would_show_is_refused_unless_that_was_chosen(text: str) -> None:
    rules = CommandRules(deny=["no-such-program"])
    with pytest.raises(CommandRefused) as refusal:
        rules.check_script(text)
    assert refusal.value.program == ""
    assert refusal.value.fix
    rules.replace(unknown="allow").check_script(text)


def test_around_what_is_unclear_the_rest_is_still_seen() -> None:
    rules = CommandRules(deny=["git"], unknown="allow")
    for text in ('bash -c "cd $DIR && git push"', "$TOOL x; git push", "ls | xargs -I% sh -c 'git add %'"):
        with pytest.raises(CommandRefused) as refusal:
            rules.check_script(text)
        assert refusal.value.program == "git"


def test_the_error_says_which_program_who_does_it_and_why() -> None:
    rules = CommandRules(deny=[Rule("git push", owner="the publish tool", reason="a person looks first")])
    with pytest.raises(CommandRefused) as refusal:
        rules.check(["bash", "-lc", "cd x && git push"])
    error = refusal.value
    assert (error.program, error.owner, error.reason) == ("git", "the publish tool", "a person looks first")
    assert str(error) == "'git push' should not be run here: a person looks first; use the publish tool"
    assert pickle.loads(pickle.dumps(error)).owner == "the publish tool"  # noqa: S301 - our own


def test_an_argument_list_is_judged_as_it_is_without_a_shell() -> None:
    NO_GIT.check(["echo", "$(git push)", ";", "git", "push"])
    NO_GIT.check(["echo", "*"])
    NO_GIT.check(["bash"])  # its input is empty
    for argv in (["git", "push"], ["env", "A=1", "/opt/git"], ["sh", "-c", "git push"], ["nohup", "git"]):
        with pytest.raises(CommandRefused):
            NO_GIT.check(argv)


@pytest.mark.parametrize(
    ("rule", "command", "refused"),
    [
        ("git push", "git push origin", True),
        ("git push", "git -C dir push", True),
        ("git push", "git --no-pager -c a=b push", True),
        ("git push", "git commit -m push", False),
        ("git push", "git status", False),
        ("git push", "git $WHAT", True),
        ("git push", 'git -C "$DIR" status', False),
        ("git push", "ls | xargs git", True),
        ("git push", "git", False),
        ("git stash drop", "git stash list", False),
        ("git stash drop", "git stash drop", True),
        ("pip*", "pip3.11 install x", True),
        ("pip*", "python -m pip install x", False),
        ("/opt/tool", "/opt/tool x", True),
        ("/opt/tool", "/usr/bin/tool x", False),
        ("sudo", "sudo ls", True),
        ("eval", "eval ls", True),
        ("xargs", "ls | xargs rm", True),
        ("bash", "bash -c ls", True),
        ("source", "source env.sh", True),
    ],
)
def test_a_rule_may_name_first_arguments_and_any_program(rule: str, command: str, refused: bool) -> None:
    rules = CommandRules(deny=[rule])
    if not refused:
        rules.check_script(command)
        return
    with pytest.raises(CommandRefused):
        rules.check_script(command)


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        ("ls -l", True),
        ("git status", True),
        ("git -c core.fsmonitor=x status", False),
        ("git push", False),
        ("/usr/bin/ls", True),
        ("./ls", False),
        ('"$DIR/ls"', False),
        ("cd x && ls | wc -l", False),
        ("cd x && echo a > b; [ -f b ] || exit 1; exec 3>&1", True),
        ("env A=1 timeout 5 nice ls", True),
        ("bash -lc 'ls && git status'", True),
        ("bash script.sh", False),
        ("sudo ls", False),
        ("ls | xargs ls", True),
        ("ls | xargs rm", False),
        ("source x", False),
        (". x", False),
        ("f() { ls; }; f", True),
        ("f() { rm x; }; f", False),
        ("bash -c 'f() { ls; }; f'", True),
        ("exec ls", False),
        ("eval ls", False),
        ("echo $(rm x)", False),
        ("for x in a b; do ls $x; done", True),
        ("git status; rm x", False),
    ],
)
def test_with_an_allow_list_everything_must_be_on_it(command: str, allowed: bool) -> None:
    rules = CommandRules(allow=["ls", "git status"])
    if allowed:
        rules.check_script(command)
        return
    with pytest.raises(CommandRefused, match=r"not among|only known"):
        rules.check_script(command)


def test_deny_wins_over_allow_and_an_empty_allow_list_allows_no_program() -> None:
    with pytest.raises(CommandRefused):
        CommandRules(deny=["git push"], allow=["git"]).check_script("git push")
    nothing = CommandRules(allow=[])
    nothing.check_script("cd x && echo y")
    with pytest.raises(CommandRefused):
        nothing.check_script("ls")


@pytest.mark.parametrize(
    "text", ["if then", "echo (", "ls; )", 'echo "', "sh -c 'if then'", "a" * 200_000, "a\0b"]
)
def test_what_cannot_be_read_is_another_error(text: str) -> None:
    with pytest.raises(CommandNotUnderstood):
        NO_GIT.check_script(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "$(" * 9000 + ")" * 9000,
        "(" * 30_000,
        "{ " * 30_000,
        "a|" * 30_000 + "a",
        "a\n" * 60_000,
        "sh -c ls; " * 500,
    ],
    ids=["substitutions", "parentheses", "braces", "pipes", "lines", "scripts"],
)
def test_a_script_made_to_be_expensive_is_refused_in_bounds(text: str) -> None:
    with pytest.raises((CommandNotUnderstood, CommandRefused)):
        NO_GIT.check_script(text)


@pytest.mark.parametrize("wrapper", ["env", "nice", "sudo", "xargs", "find . -exec", "timeout 1 find -ok"])
def test_more_wrappers_than_are_followed_are_another_error(wrapper: str) -> None:
    NO_GIT.check_script(f"{wrapper} " * 20 + "ls")
    with pytest.raises(CommandNotUnderstood, match="too many programs"):
        NO_GIT.check_script(f"{wrapper} " * 3000 + "ls")


@pytest.mark.parametrize("argv", [["sh", "-c", "echo \ud800"], ["env", "bash", "-c", "\udfff"]])
def test_a_character_that_is_no_text_is_another_error(argv: list[str]) -> None:
    with pytest.raises(CommandNotUnderstood, match="no text"):
        NO_GIT.check(argv)
    with pytest.raises(CommandNotUnderstood, match="no text"):
        NO_GIT.check_script(argv[-1])


def test_bytes_that_are_not_text_do_not_hide_a_program() -> None:
    with pytest.raises((CommandRefused, CommandNotUnderstood)):
        NO_GIT.check_script("echo \udcff; git push")


def test_without_the_parser_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_parser, "_places", list)
    with pytest.raises(ExtraMissing, match=r"pip install 'staddle\[rules\]'"):
        NO_GIT.ready()
    with pytest.raises(ImportError):
        NO_GIT.check(["sh", "-c", "ls"])
    NO_GIT.check(["ls"])  # no script, so no parser


def test_rules_that_mean_nothing_are_refused() -> None:
    for bad in ("git", b"git", {"git": "x"}, [1], [""], ["  "], 5):
        with pytest.raises(PolicyError):
            CommandRules(deny=bad)  # type: ignore[arg-type]
        with pytest.raises(PolicyError):
            CommandRules(allow=bad)  # type: ignore[arg-type]
    with pytest.raises(PolicyError):
        CommandRules(unknown="ask")  # type: ignore[arg-type]
    with pytest.raises(PolicyError):
        Rule("git", owner=3)  # type: ignore[arg-type]


def test_rules_are_values() -> None:
    assert CommandRules(["git"]) == CommandRules([Rule("git")])
    assert hash(CommandRules(["git"])) == hash(CommandRules([Rule("git")]))
    assert CommandRules(["git"], allow=["ls"]).replace(unknown="allow").allow == (Rule("ls"),)


def test_two_owners_of_one_command_are_an_error() -> None:
    for one, other in (("git push", "git  push"), ("pip*", "pip3"), ("kubectl", "kubectl")):
        with pytest.raises(PolicyError, match="two owners"):
            CommandRules(deny=[Rule(one, owner="a"), Rule(other, owner="b")])
        CommandRules(deny=[Rule(one, owner="a"), Rule(other, owner="a"), Rule(other)])
    CommandRules(deny=[Rule("git push", owner="a"), Rule("git", owner="b"), Rule("git pull", owner="c")])


@pytest.mark.parametrize("name", ["git", "docker", "nix", "kubectl", "helm", "curl", "wget"])
def test_ready_made_rules_name_the_tool_of_their_kind(name: str) -> None:
    rules = CommandRules(deny=Rule.ready_made(name, owner="another tool"))
    with pytest.raises(CommandRefused, match="use another tool") as caught:
        rules.check(["sh", "-c", f"cd x && /usr/bin/{name} --version"])
    assert caught.value.program == name
    rules.check(["make"])


def test_ready_made_rules_about_packages() -> None:
    rules = CommandRules(deny=Rule.ready_made("packages"))
    for command in (
        "apt-get install x",
        "pip3.11 install x",
        "python3 -m pip install x",
        "npm ci",
        "cargo install x",
    ):
        with pytest.raises(CommandRefused, match="packages are installed"):
            rules.check_script(command)
    for command in ("cargo build", "python3 -m pytest", "go test ./..."):
        rules.check_script(command)
    with pytest.raises(PolicyError, match="git, docker"):
        Rule.ready_made("everything")


def test_a_redirection_by_exec_starts_nothing() -> None:
    rules = CommandRules(deny=["exec"], unknown="allow")
    for text in ("exec 3>file", "exec 3<&-", "exec", "exec >log 2>&1; echo a", "exec {fd}<in"):
        rules.check_script(text)
    for text in ("exec ls", "exec -c ls 3>file", "exec $TOOL"):
        with pytest.raises(CommandRefused):
            rules.check_script(text)


def test_rules_are_part_of_a_policy() -> None:
    rules = CommandRules(deny=["git push"])
    assert Policy(rules=rules) == Policy().with_rules(rules) != Policy()
    with pytest.raises(PolicyError, match="not a CommandRules"):
        Policy(rules=["git push"])  # type: ignore[arg-type]


def test_a_refusal_without_a_reason_has_a_cause_and_a_fix() -> None:
    with pytest.raises(CommandRefused) as refused:
        CommandRules(deny=["curl"]).check_script("curl x")
    assert (refused.value.reason, refused.value.owner) == ("", "")
    assert refused.value.why
    assert refused.value.fix
