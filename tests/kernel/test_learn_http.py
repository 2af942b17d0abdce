"""`staddle learn --http` proposes rules about the requests of a job, on a host with a web server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from staddle import Network, Policy, Sandbox
from staddle.errors import InvalidCall
from tests.support.egress_world import ANOTHER, NAME, World, on_a_host

JOB = f"""
for n in 1 2 3 4 5; do curl -sSf https://{NAME}/packages/$n/info?token=$n; done
curl -sSf -d x https://{NAME}/upload
"""


def learn(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "staddle", "learn", *words],
        capture_output=True,
        text=True,
        cwd=world.directory / "workspace",
        check=False,
        timeout=120,
    )


@pytest.mark.slow
@on_a_host
def test_a_job_of_several_requests(world: World) -> None:
    file = world.directory / "job.toml"
    first = learn(world, "-o", str(file), "--network", "open", "-c", JOB)
    assert first.returncode == 0, first.stderr
    assert f"{NAME}:443" in file.read_text()
    done = learn(world, "--update", str(file), "--http", "--check", "-c", JOB)
    assert done.returncode == 0, done.stderr
    assert "passes" in done.stderr
    text = file.read_text()
    assert f'"GET {NAME}:443/packages/*/info",  # 5 requests: /packages/1/info, /packages/2/info' in text
    assert f'"POST {NAME}:443/upload",  # 1 request: /upload' in text
    assert "**" not in text
    policy = Policy.from_file(file)
    with Sandbox(world.directory / "workspace", policy) as sb:
        assert sb.run(JOB).ok
        assert not sb.run(f"curl -sSf https://{NAME}/other").ok
        assert not sb.run(f"curl -sSf -X DELETE https://{NAME}/packages/1/info").ok


@pytest.mark.slow
@on_a_host
def test_a_client_that_pins_falls_back_to_the_host(world: World) -> None:
    job = f"curl -sS --cacert /dev/null https://{NAME}/x; curl -sSf https://{ANOTHER}/y"
    words = ("--allow", f"{NAME}:443", "--allow", f"{ANOTHER}:443", "--http", "-c", job)
    done = learn(world, *words)
    assert f'"{NAME}:443",  # its requests cannot be inspected: ' in done.stdout, done
    assert f'"GET {ANOTHER}:443/y",' in done.stdout
    assert f"{NAME}:443/" not in done.stdout


@pytest.mark.slow
@on_a_host
def test_from_python(world: World) -> None:
    policy = Policy.agent().with_network(Network.allow(NAME))
    with Sandbox(world.directory / "workspace", policy, learn="http") as sb:
        sb.run(f"curl -sSf https://{NAME}/a/b", check=True)
        assert sb.learned().policy.network == Network.allow(http=[f"GET {NAME}:443/a/b"])


def test_it_needs_hosts() -> None:
    with pytest.raises(InvalidCall, match="no requests can be learned"):
        Sandbox(learn="http")
