"""native confines nothing, says so, and is never a fallback."""

from __future__ import annotations

import os
import subprocess

from staddle import backends
from staddle.backends.native import Native
from staddle.enforcement import PROTECTIONS
from staddle.policy import Limits
from staddle.policy.plan import Variable
from tests.unit.mounts.plans import plan


def test_it_is_usable_everywhere() -> None:
    assert Native().probe().usable


def test_every_protection_is_a_documented_gap() -> None:
    gaps = Native().gaps(plan(limits=Limits()))
    assert [gap.protection for gap in gaps] == list(PROTECTIONS)
    assert all(gap.documented and gap.why for gap in gaps)


def test_a_limit_that_was_asked_for_is_one_too() -> None:
    gaps = Native().gaps(plan(limits=Limits(memory="1G", open_files=100)))
    assert {"limits.memory", "limits.open_files"} <= {gap.protection for gap in gaps}


def test_auto_never_considers_it() -> None:
    assert "native" not in backends.candidates()


def test_the_command_is_untouched_and_the_environment_is_the_plans() -> None:
    made = plan(variables=(Variable("ONLY", "this", "test"),), cwd="/")
    launch = Native().prepare(made, ["/usr/bin/env", "--"])
    assert launch.argv == ("/usr/bin/env", "--")
    done = subprocess.run(launch.argv, env=launch.env, cwd=launch.cwd, capture_output=True, check=True)
    assert done.stdout == b"ONLY=this\n"


def test_no_descriptor_but_the_standard_ones_is_passed_on() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        launch = Native().prepare(plan(cwd="/"), ["/bin/sh", "-c", f"ls /proc/$$/fd/{writer}"])
        done = subprocess.run(
            launch.argv,
            env=launch.env,
            cwd=launch.cwd,
            pass_fds=launch.pass_fds,
            capture_output=True,
            check=False,
        )
        assert done.returncode != 0
    finally:
        os.close(reader)
        os.close(writer)


def test_the_steps_say_that_nothing_is_confined() -> None:
    assert "unconfined" in Native().steps(plan())[0].action
