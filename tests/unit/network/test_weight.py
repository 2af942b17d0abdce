"""What runs in every sandbox's start loads nothing heavy."""

from __future__ import annotations

from tests.unit.test_imports import HEAVY, loaded_by


def test_the_inside_half_and_the_gateway_stay_light() -> None:
    names = ("namespace.setup", "gateway.gateway", "host.gateway_process")
    code = "import " + ", ".join(f"staddle.network.{name}" for name in names)
    loaded = loaded_by(code)
    assert sorted(loaded & {*HEAVY, "enum", "socket", "signal", "threading"}) == []


def test_the_gateway_has_everything_before_it_gives_up_files() -> None:
    """Confined, it could not import: what its first message needs must be loaded by then."""
    code = (
        "import staddle.network.gateway.gateway; from staddle.policy.network import Network;"
        "before = set(sys.modules); Network.allow('a.com:443', '*.b.com', '10.0.0.0/8', '!c.com')"
    )
    assert loaded_by(code) == set()
