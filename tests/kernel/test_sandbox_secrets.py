"""Secrets that a command was given are in nothing that comes back, unless that is asked for."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest

from staddle import AsyncSandbox, Policy, Sandbox, Secret, wrap
from tests.support.waiting import until

KEY = "sk-live-0123456789abcdef/+'x"


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Policy:
    monkeypatch.setenv("SERVICE_API_KEY", KEY)
    return Policy.agent().with_pass_env("SERVICE_API_KEY").with_env(PLACE=Secret("qz7x"))


#: Prints the key in two pieces, with time between them for a reader.
IN_PIECES = 'printf %s "${SERVICE_API_KEY:0:9}"; sleep 0.05; printf "%s\\n" "${SERVICE_API_KEY:9}"'


def test_results_streams_processes_and_terminals_have_no_secret(policy: Policy, tmp_path: Path) -> None:
    heard: list[str] = []
    with Sandbox(policy=policy.with_limits(output="100")) as sb:
        done = sb.run(f'{IN_PIECES}; echo "$PLACE" >&2', on_stdout=heard.append)
        assert (done.stdout, done.stderr) == ("(hidden)\n", "(hidden)\n")
        assert "".join(heard) == "(hidden)\n"
        encoded = sb.exec(["sh", "-c", 'printf "user:%s" "$SERVICE_API_KEY" | base64 -w0'])
        assert base64.b64encode(KEY.encode())[8:].decode()[:20] not in encoded.stdout
        assert sb.exec(["echo", KEY]).command == ("echo", "(hidden)")
        long = sb.run('for i in {1..40}; do echo "$SERVICE_API_KEY"; done', spill=tmp_path)
        assert long.stdout_spill is not None
        assert Path(long.stdout_spill).read_text() == "(hidden)\n" * 40

        pieces = sb.stream(IN_PIECES)
        assert "".join(chunk.text for chunk in pieces) == "(hidden)\n"

        started = sb.start('echo "$SERVICE_API_KEY $CODE"', env={"CODE": Secret("0815")})
        started.wait()
        assert until(lambda: started.output() == "(hidden) (hidden)\n"), started.output()
        sb.run('{ read -t 0.1 < <(sleep 9); echo "$SERVICE_API_KEY"; } &')
        assert until(lambda: sb.processes()[-1].output() == "(hidden)\n")

        with sb.terminal(["sh", "-c", 'echo "$SERVICE_API_KEY"; echo over']) as terminal:
            seen = b""
            while b"over" not in seen:
                seen += terminal.read()
        assert seen == b"(hidden)\r\nover\r\n"


def test_the_paths_of_a_result_have_no_secret(tmp_path: Path) -> None:
    with Sandbox(tmp_path, env={"API_KEY": "sk-0123456789abcdef"}) as sb:
        done = sb.run('touch before "name-$API_KEY"; ln -s "$API_KEY" link; mkdir "$API_KEY"; cd "$API_KEY"')
        assert done.cwd == "/workspace/(hidden)"
        assert done.changes is not None
        assert sorted(each.path for each in done.changes) == [
            "/workspace/(hidden)", "/workspace/before", "/workspace/link", "/workspace/name-(hidden)",
        ]  # fmt: skip
        assert "sk-0123456789abcdef" not in f"{done!r} {done.changes!r} {done.as_dict()}"
        assert sb.run("pwd").stdout == "/workspace/(hidden)\n"  # where it is
        assert [each.path for each in sb.diff() if "sk-0123456789abcdef" in each.path], "a review sees them"


def test_the_variables_of_one_command_are_hidden_in_its_output_only(policy: Policy) -> None:
    with Sandbox(policy=policy) as sb:
        assert sb.run("echo $CODE", env={"CODE": Secret("4711"), "PLAIN": "4711x"}).stdout == "(hidden)\n"
        assert sb.run("echo $SOME_TOKEN", env={"SOME_TOKEN": "abcdefgh"}).stdout == "(hidden)\n"
        assert sb.run("echo 4711 abcdefgh").stdout == "4711 abcdefgh\n"


def test_hooks_and_the_audit_log_have_no_secret(policy: Policy, tmp_path: Path) -> None:
    told: list[str] = []
    log = tmp_path / "log"
    place = tmp_path / "place"
    place.mkdir()
    with Sandbox(
        place,
        policy=policy,
        on_command=lambda start: told.append(str(start)),
        on_result=lambda result: told.append(repr(result)),
        audit=log,
    ) as sb:
        sb.run(f'echo "{KEY}" qz7x')
        sb.start(["echo", "qz7x"]).wait()
    assert told[0] == 'echo "(hidden)" (hidden)'
    written = "".join(told) + log.read_text()
    assert not [each for each in (KEY, json.dumps(KEY)[1:-1], "qz7x") if each in written]


def test_it_is_off_by_choice_and_more_variables_can_be_named(policy: Policy) -> None:
    with Sandbox(policy=policy.with_redact(False)) as sb:
        assert sb.run('echo "$SERVICE_API_KEY $PLACE"').stdout == f"{KEY} qz7x\n"
    with Sandbox(policy=policy.with_env(TOWN="Ulm").with_redact(["TOWN"])) as sb:
        assert sb.run('echo "$SERVICE_API_KEY $PLACE $TOWN"').stdout == "(hidden) (hidden) (hidden)\n"


def test_an_awaited_sandbox_hides_them_as_well(policy: Policy) -> None:
    async def whole() -> None:
        async with AsyncSandbox(policy=policy) as sb:
            assert (await sb.run('echo "$SERVICE_API_KEY"')).stdout == "(hidden)\n"
            assert (await sb.exec(["sh", "-c", "echo $PLACE"])).stdout == "(hidden)\n"
            async with sb.stream(IN_PIECES) as pieces:
                assert "".join([chunk.text async for chunk in pieces]) == "(hidden)\n"

    asyncio.run(whole())


@pytest.mark.parametrize("backend", ["namespaces", "landlock"])
def test_wrap_hides_them_where_it_has_the_output(
    policy: Policy, backend: str, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["sh", "-c", 'echo "$SERVICE_API_KEY"; echo "$PLACE" >&2']
    done = wrap(command, policy, backend=backend).run(capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("(hidden)\n", "(hidden)\n")
    assert wrap(command, policy, backend=backend).run().stdout is None
    assert capfd.readouterr() == ("(hidden)\n", "(hidden)\n")
