"""The landlock backend as a whole: a plan goes in, a confined command comes out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle import Policy, backends, wrap
from staddle.backends.landlock import Landlock
from staddle.errors import LaunchFailed, PolicyNotEnforceable
from staddle.linux import landlock as kernel
from tests.support.waiting import until

ROOT = os.geteuid() == 0
#: A place that everybody sees, also through root's view.
PLACE = Path("/var" if ROOT else "/var/tmp")


def run(script: str, policy: Policy, cwd: Path, *, best_effort: bool = False) -> tuple[int, str, str]:
    wrapped = wrap(["sh", "-c", script], policy, backend="landlock", cwd=str(cwd), best_effort=best_effort)
    done = wrapped.run(capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_it_says_that_it_works_here_and_which_version() -> None:
    backend = Landlock()
    probe = backend.probe()
    assert (probe.usable, probe.why) == (True, "")
    assert probe.version == f"ABI {kernel.abi()}"
    assert backend.probe() is probe  # found out once
    assert backends.get("landlock").probe().usable


def test_a_probe_leaves_nothing_behind() -> None:
    before = set(os.listdir("/proc/self/fd")), set(os.listdir("/tmp"))
    Landlock().probe()
    assert set(os.listdir("/proc/self/fd")) <= before[0]
    # What somebody else has there at this moment goes again; what we leave would stay.
    new = {name for name in set(os.listdir("/tmp")) - before[1] if name.startswith("staddle-")}
    assert until(lambda: not new.intersection(os.listdir("/tmp")))


def test_a_probe_notices_when_nothing_is_confined(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that says yes and does nothing: the shell gets through, and says so."""
    from staddle.backends.landlock import probe

    real = probe._instructions
    everything = ((b"/", 0xFFFF, 0),)
    monkeypatch.setattr(probe, "_instructions", lambda *a: real(*a).replace(rules=everything))
    probe = Landlock().probe()
    assert not probe.usable
    assert "can be read" in probe.why


def test_the_work_gets_done(work: Path) -> None:
    (work / "in").write_text("hello\n")
    assert run("tr a-z A-Z < in > out; cat out", Policy.agent().with_write(str(work)), work) == (
        0,
        "HELLO\n",
        "",
    )
    assert (work / "out").read_text() == "HELLO\n"
    assert (work / "out").stat().st_uid == os.getuid()


def test_home_and_temporary_files_are_private_and_gone_afterwards(work: Path) -> None:
    script = """
        cd && mktemp && echo x > file && ls -A && stat -c %a "$HOME" && test -w "$TMPDIR" && pwd
    """
    status, out, err = run(script, Policy.agent().with_write(str(work)), work)
    assert status == 0, err
    temporary, *names, mode, home = out.split()
    assert (names, mode) == (["file"], "700")
    assert not os.path.exists(temporary)
    assert not os.path.exists(home)


def test_the_usual_devices_work() -> None:
    script = """
        echo > /dev/null && head -c 3 /dev/zero | wc -c && head -c 3 /dev/urandom | wc -c
        ! echo > /dev/full && ! ls /dev && ! head -c 1 /dev/mem && ! true < /dev/tty
    """
    status, out, err = run(script, Policy.agent(), Path("/usr"))
    assert (status, out.split()) == (0, ["3", "3"]), err


def test_what_is_denied_below_a_grant_cannot_be_read(work: Path) -> None:
    for name in ("open/a", "secret/b"):
        (work / name).parent.mkdir()
        (work / name).write_text(name)
    policy = Policy.agent().with_read(str(work)).with_deny(str(work / "secret"), str(work / "later"))
    script = "cat open/a; cat secret/b; ls secret; cat later; ls open"
    (work / "later").write_text("too late")
    _, out, _ = run(script, policy, work)
    assert out == "open/aa\n"


@pytest.mark.parametrize("place", ["/tmp", "/var/tmp", *(["/var"] if ROOT else [])])
def test_wherever_it_lies(place: str) -> None:
    """Private directories of ours may be mounted around it."""
    top = Path(place) / f"staddle-{os.urandom(6).hex()}"
    (top / "secret").mkdir(parents=True)
    (top / "secret" / "file").write_text("hidden")
    (top / "file").write_text("shown")
    try:
        policy = Policy.agent().with_read(str(top)).with_deny(str(top / "secret"))
        _, out, _ = run("cat file secret/file; echo > new; mktemp | wc -l; rm file", policy, top)
        assert out == "shown1\n"
        assert sorted(path.name for path in top.iterdir()) == ["file", "secret"]
    finally:
        for path in (top / "secret" / "file", top / "file"):
            path.unlink()
        (top / "secret").rmdir()
        top.rmdir()


def test_a_deny_below_a_writable_path_is_refused(work: Path) -> None:
    (work / "secret").mkdir()
    policy = Policy.agent().with_write(str(work)).with_deny(str(work / "secret"))
    with pytest.raises(PolicyNotEnforceable, match="denied below a writable path"):
        run("true", policy, work)


def test_a_link_that_is_planted_after_the_plan_is_not_followed(work: Path) -> None:
    inside, outside = work / "inside", work / "outside"
    inside.mkdir()
    outside.mkdir()
    wrapped = wrap(["true"], Policy.agent().with_write(str(inside)), backend="landlock", cwd="/usr")
    inside.rmdir()
    inside.symlink_to(outside)
    with pytest.raises(LaunchFailed, match="link"):
        wrapped.run()


def test_a_place_below_an_unreadable_home_can_be_granted() -> None:
    """Root's command is not root: it may not even pass root's home."""
    top = PLACE / f"staddle-{os.urandom(6).hex()}"
    work = top / "project"
    work.mkdir(parents=True)
    top.chmod(0o700)
    try:
        (work / "file").write_text("hello")
        (work / "file").chmod(0o600)
        status, out, err = run("cat file; echo > new", Policy.agent().with_write(str(work)), work)
        assert (status, out) == (0, "hello"), err
        assert (work / "new").stat().st_uid == os.getuid()
        assert (work / "new").exists()
    finally:
        for name in ("file", "new"):
            (work / name).unlink(missing_ok=True)
        work.rmdir()
        top.rmdir()


@pytest.mark.needs_root
def test_what_root_only_reads_is_not_changed_in_any_way(work: Path) -> None:
    (work / "file").write_text("hello")
    (work / "file").chmod(0o640)
    policy = Policy.agent().with_read(str(work))
    _, out, _ = run("cat file; chmod 777 file; touch file; chmod 777 .; id -u", policy, work)
    assert out.startswith("hello")
    assert (work / "file").stat().st_mode & 0o777 == 0o640
    assert "0" not in out.removeprefix("hello").split()


@pytest.mark.needs_root
def test_root_has_a_name_and_an_etc_of_its_own(work: Path) -> None:
    _, out, err = run(
        "id -un; cat /etc/hostname; ls /etc/shadow; grep email /etc/gitconfig", Policy.agent(), Path("/usr")
    )
    assert out.startswith("user\nsandbox\n")
    assert "user@sandbox" in out
    assert err.count("No such file") == 1


@pytest.mark.parametrize("abi", [1, 2, 3, 4, 5, 6])
def test_an_older_kernel_confines_what_it_can_if_that_is_enough(
    abi: int, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rights of a newer ABI are not asked for, so this is what an older kernel does."""
    monkeypatch.setattr(kernel, "abi", lambda: abi)
    monkeypatch.setattr(backends, "_made", {})
    outside = work.parent / "outside"
    outside.write_text("secret")
    policy = Policy.agent().with_write(str(work))
    if abi < 6:
        with pytest.raises(PolicyNotEnforceable, match=f"ABI {abi}"):
            run("true", policy, work)
    status, out, err = run(f"echo made > file; cat {outside}", policy, work, best_effort=True)
    assert (work / "file").read_text() == "made\n"
    assert (status, out) == (1, ""), err
