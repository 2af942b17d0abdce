"""What staddle gives to the tests of its users works as it says."""

from __future__ import annotations

import base64
import os
import subprocess
import time
from pathlib import Path

import pytest

from staddle import Policy, backends, wrap
from staddle.backends.base import Backend
from staddle.enforcement import Gap
from staddle.errors import BackendUnavailable, PolicyNotEnforceable
from staddle.testing import Canary, FakeBackend, Scripted, trace, unchanged, workspace


class TestFakeBackend:
    def test_it_is_a_backend(self) -> None:
        backend: Backend = FakeBackend()
        assert backend.probe().usable
        assert backend.name == "fake"

    @pytest.mark.parametrize("name", ["auto", "bwrap", "landlock", "native"])
    def test_it_takes_the_place_of_every_backend(self, name: str) -> None:
        with FakeBackend([Scripted(stdout=b"hello\n", stderr=b"\xff", exit_code=3)]) as fake:
            done = wrap(["rm", "-rf", "/"], Policy(), backend=name).run(capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (3, b"hello\n", b"\xff")
        assert fake.commands == [["rm", "-rf", "/"]]
        assert fake.plans[0].access("/home/somebody/.ssh/id_rsa") == "none"

    def test_results_are_played_in_order_and_then_the_default(self) -> None:
        with FakeBackend([Scripted(exit_code=1)], default=Scripted(exit_code=9)):
            codes = [wrap(["x"], Policy()).run().returncode for _ in range(3)]
        assert codes == [1, 9, 9]

    def test_a_negative_exit_code_is_a_signal(self) -> None:
        with FakeBackend([Scripted(exit_code=-15)]):
            assert wrap(["x"], Policy()).run().returncode == -15

    def test_a_delay_meets_a_timeout(self) -> None:
        started = time.monotonic()
        with FakeBackend([Scripted(delay=300.0)]), pytest.raises(subprocess.TimeoutExpired):
            wrap(["x"], Policy()).run(timeout=0.3)
        assert time.monotonic() - started < 100

    def test_a_large_output_arrives_whole(self) -> None:
        data = os.urandom(20_000)
        with FakeBackend([Scripted(stdout=data)]):
            assert wrap(["x"], Policy()).run(capture_output=True).stdout == data

    def test_gaps_and_unusability_can_be_played(self) -> None:
        gap = Gap("network", "played", documented=False)
        with FakeBackend(declares=[gap]), pytest.raises(PolicyNotEnforceable) as caught:
            wrap(["x"], Policy())
        assert caught.value.gaps == (gap,)
        with FakeBackend(usable=False), pytest.raises(BackendUnavailable):
            wrap(["x"], Policy())

    def test_the_real_backends_are_back_afterwards(self) -> None:
        before = dict(backends._made)
        with FakeBackend() as fake:
            assert backends.get("bwrap") is fake
            with pytest.raises(RuntimeError, match="in use"), fake:
                pass
        assert backends._made == before
        assert backends.get("native").name == "native"

    def test_the_real_backends_are_back_after_an_error(self) -> None:
        with pytest.raises(ZeroDivisionError), FakeBackend():
            raise ZeroDivisionError
        assert backends.get("native").name == "native"


class TestWorkspace:
    def test_it_holds_the_files_and_is_gone_afterwards(self) -> None:
        with workspace({"src/a.py": "print()", "data": b"\xff"}) as root:
            assert Path(root, "src/a.py").read_text() == "print()"
            assert Path(root, "data").read_bytes() == b"\xff"
            assert root == os.path.realpath(root)
        assert not Path(root).exists()

    @pytest.mark.parametrize("name", ["../x", "/etc/x", "", ".", "a/../../x"])
    def test_a_name_outside_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="not below"), workspace({name: "x"}):
            pass


class TestCanary:
    def test_it_finds_itself_in_every_spelling(self) -> None:
        canary = Canary()
        raw = canary.text.encode()
        for output in (
            f"x{canary}y",
            raw[::-1],
            raw.hex(),
            raw.hex().upper(),
            *(base64.b64encode(b"x" * shift + raw + b"tail") for shift in range(4)),
        ):
            assert canary.leaked_into("nothing", output)

    def test_it_does_not_cry_wolf(self) -> None:
        assert not Canary().leaked_into(str(Canary()), b"\xff\xfe", "")


class TestUnchanged:
    @pytest.mark.parametrize(
        "change",
        [
            lambda root: (root / "a").write_text("y"),
            lambda root: (root / "a").chmod(0o600),
            lambda root: (root / "a").unlink(),
            lambda root: (root / "new").touch(),
            lambda root: (root / "d" / "new").mkdir(),
            lambda root: os.utime(root / "a", (1, 1)),
            lambda root: os.link(root / "a", root / "d" / "b"),
            lambda root: (root / "a").rename(root / "c"),
        ],
        ids=["content", "mode", "removed", "added", "directory", "times", "link", "renamed"],
    )
    def test_any_change_is_noticed(self, change: object, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("x")
        (tmp_path / "d").mkdir()
        with pytest.raises(AssertionError, match="has changed"), unchanged(str(tmp_path)):
            change(tmp_path)  # type: ignore[operator]

    def test_reading_is_no_change(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("x")
        (tmp_path / "dangling").symlink_to("nowhere")
        os.mkfifo(tmp_path / "fifo")
        with unchanged(str(tmp_path)):
            (tmp_path / "a").read_text()
            os.listdir(tmp_path)
        assert set(trace(str(tmp_path))) == {".", "a", "dangling", "fifo"}
