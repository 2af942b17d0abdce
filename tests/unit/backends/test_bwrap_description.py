"""What is printed is what is done; what cannot be held is said."""

from __future__ import annotations

import pytest

from staddle.backends.bwrap import abstract_sockets, launching
from staddle.backends.bwrap.launching import Starter, is_staged, steps
from staddle.backends.launching import Descriptors
from staddle.mounts.from_plan import Layout, lay_out
from staddle.policy.limits import Limits
from staddle.policy.network import Network
from staddle.policy.plan import Plan, Text, Variable
from tests.unit.mounts.plans import WHY, DictHost, guard, hidden, plan, read, write

STARTER = Starter("/usr/bin/bwrap", (), True, "/usr/bin/prlimit", "/usr/bin/nsenter", "/usr/bin/setpriv")
AS_ROOT = STARTER.replace(unprivileged_uid=1_900_000_000)


def laid_out(wanted: Plan) -> Layout:
    return lay_out(wanted, DictHost())


def printed(wanted: Plan, starter: Starter = STARTER) -> list[str]:
    return [step.action for step in steps(wanted, laid_out(wanted), starter)]


def test_every_operation_is_a_line_with_its_origin_in_its_order() -> None:
    wanted = plan(
        grants=(write("/w"), read("/usr")),
        guards=(guard("/w/.git/hooks"),),
        hidden=(hidden("/w/s"), hidden("/w/f", "file")),
        texts=(Text("/etc/hosts", b"abc", "made up"),),
    )
    made = list(steps(wanted, laid_out(wanted), STARTER))
    operations = laid_out(wanted).operations
    lines = [(str(operation), operation.origin) for operation in operations]
    assert [(s.action, s.origin) for s in made if (s.action, s.origin) in lines] == lines
    actions = [step.action for step in made]
    assert "show /w (read and write)" in actions
    assert "pin /w/.git so that it cannot be moved or replaced" in actions
    assert "protect /w/.git/hooks (read-only)" in actions
    assert "hide the directory /w/s" in actions
    assert "hide the file /w/f" in actions
    assert "file /etc/hosts (3 bytes)" in actions
    assert any("--disable-userns" in action for action in actions)
    assert any("namespaces-nosuid" in action for action in actions)


def test_a_secret_is_not_printed_and_nothing_moves_the_cursor() -> None:
    wanted = plan(
        grants=(read("/a\x1b[2Jb"),),
        variables=(Variable("TOKEN", "s3cret", WHY, secret=True), Variable("A", "x\ny", WHY)),
    )
    text = "\n".join(printed(wanted))
    assert "s3cret" not in text
    assert "TOKEN=(secret)" in text
    assert "\x1b" not in text
    assert "A=x\\ny" in text


def test_as_root_it_says_who_the_sandbox_becomes() -> None:
    wanted = plan(grants=(read("/usr"), read("/srv/x"), write("/opt/w")))
    actions = printed(wanted, AS_ROOT)
    assert any("uid and gid 1900000000" in action for action in actions)
    assert "show /usr (read-only)" in actions
    assert "show /srv/x (read-only), its owner as the sandbox's user" in actions
    assert "show /opt/w (read and write), its owner as the sandbox's user" in actions


def test_limits_of_the_policy_are_printed() -> None:
    assert "resource limit nofile=32" in printed(plan(limits=Limits(open_files=32)))


def test_when_the_view_is_built_by_us() -> None:
    few = plan(grants=(read("/usr"), read("/etc/x"), read("/data")))
    many = plan(grants=tuple(read(f"/data/{n}") for n in range(60)))
    assert not is_staged(laid_out(few), None)
    assert is_staged(laid_out(few), 1_900_000_000)
    assert not is_staged(laid_out(plan(grants=(read("/usr"),))), 1_900_000_000)
    assert is_staged(laid_out(plan(grants=(write("/usr/local/x"),))), 1_900_000_000)
    assert is_staged(laid_out(many), None)


def gaps(**fields: object) -> list[tuple[str, bool]]:
    wanted = plan(**{"grants": (read("/usr"),), **fields})
    return [(gap.protection, gap.documented) for gap in launching.gaps(wanted, laid_out(wanted), STARTER)]


def test_an_ordinary_plan_has_no_gap() -> None:
    assert gaps(limits=Limits(timeout=1, output=1, file_size=1, open_files=1)) == []
    assert gaps(network=Network.loopback()) == []
    assert gaps(network=Network.loopback([80])) == []
    assert gaps(network=Network.allow("example.com:443")) == []
    assert gaps(hidden=(hidden("/usr/x"),)) == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"limits": Limits(memory="1M")}, [("limits.memory", False)]),
        ({"limits": Limits(cpu=1, processes=1)}, [("limits.cpu", False), ("limits.processes", False)]),
        ({"limits": Limits(disk="1M")}, [("limits.disk", False)]),
        ({"grants": (write("/w"),), "hidden": (hidden("/w/.env", "missing"),)}, [("deny", False)]),
        ({"grants": (), "limits": Limits(file_size=1)}, [("limits.file_size", False)]),
    ],
)
def test_what_it_cannot_hold(fields: dict[str, object], expected: list[tuple[str, bool]]) -> None:
    assert gaps(**fields) == expected


def test_abstract_sockets_are_a_documented_gap_where_the_kernel_cannot_keep_them_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(abstract_sockets, "prefix", lambda: ())
    assert gaps(network=Network.open()) == [("sockets", True)]
    assert gaps(network=Network.deny()) == []
    monkeypatch.setattr(abstract_sockets, "prefix", lambda: ("python",))
    assert gaps(network=Network.open()) == []


def test_root_becomes_another_without_nsenter_unless_there_are_mounts_to_enter() -> None:
    """From util-linux 2.41 on nsenter refuses to run without a namespace."""
    give = Descriptors()
    assert launching._entering(STARTER, None, give).before == ()
    words = ("/usr/bin/setpriv", "--reuid=1900000000", "--regid=1900000000", "--clear-groups", "--")
    assert launching._entering(AS_ROOT, None, give).before == words
