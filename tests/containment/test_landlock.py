"""landlock holds what it does not declare as a gap, and of its gaps exactly these attacks make use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle import Network, Policy, wrap
from staddle.errors import PolicyNotEnforceable

from .checks import BATCH, Containment, verdict

#: What gets through for an ordinary user, and nothing else of the same protections.
AS_USER = frozenset(
    """
    stat-outside enter-outside watch-outside set-mode-outside set-mode-readable set-owner-outside
    set-owner-readable set-times-outside set-times-readable set-attribute-outside set-attribute-readable
    append-to-git-config plant-a-git-hook replace-git-directory remove-git-config set-mode-of-git-config
    replace-git-config write-git-config-by-hard-link
    append-to-a-shell-start-file plant-agent-settings replace-editor-settings
    read-host-shm write-host-shm leave-something-in-tmp read-a-neighbours-shared-memory see-a-neighbour
    list-keys count-keys
    see-a-process-of-the-host find-a-process-by-number slow-a-process-down pin-a-process
    """.split()  # noqa: SIM905 - as a list of words it can be read
)
#: Only root could empty the set that bounds what a program may gain. Whoever started us may have.
if "CapBnd:\t0000000000000000\n" not in Path("/proc/self/status").read_text():
    AS_USER |= {"have-a-capability"}
#: Run by root it has mounts of its own, and a user whom no process and no file belongs to.
AS_ROOT = frozenset(
    """
    append-to-git-config plant-a-git-hook replace-git-directory remove-git-config set-mode-of-git-config
    replace-git-config write-git-config-by-hard-link
    append-to-a-shell-start-file plant-agent-settings replace-editor-settings
    """.split()  # noqa: SIM905
)


class TestLandlock(Containment):
    backend = "landlock"
    # It has no network of its own, so a loopback of its own cannot be had.
    networks = ("deny", "open")
    # What is denied below a writable path it does not accept at all.
    deny_below = "readable"
    # Without mounts /tmp cannot be private, so it is refused; TMPDIR is elsewhere.
    cannot = frozenset() if os.geteuid() == 0 else frozenset({"write-to-tmp-by-its-usual-name"})
    may_pass = AS_ROOT if os.geteuid() == 0 else AS_USER

    @pytest.mark.parametrize("name", sorted(may_pass))
    def test_this_gap_is_real(self, name: str) -> None:
        """A gap that is none would be a needless warning."""
        assert verdict(self.report(), name) == "through"


def test_what_may_pass_is_in_the_catalogue() -> None:
    assert set(BATCH) >= AS_USER | AS_ROOT


@pytest.mark.parametrize("asked", ["deny below a writable path", "a loopback of its own"])
def test_what_it_cannot_hold_it_does_not_start(asked: str, tmp_path: Path) -> None:
    policy = Policy.agent().with_write(tmp_path)
    if asked.startswith("deny"):
        (tmp_path / "secret").touch()
        policy = policy.with_deny(tmp_path / "secret")
    else:
        policy = policy.with_network(Network.loopback())
    with pytest.raises(PolicyNotEnforceable):
        wrap(["true"], policy, backend="landlock", cwd=str(tmp_path))
