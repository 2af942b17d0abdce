"""Limits: sizes in one reading, and nothing that would let no command run."""

from __future__ import annotations

import math
import pickle

import pytest

from staddle import Limits
from staddle.errors import PolicyError
from staddle.policy.limits import parse_duration, parse_size


def test_the_defaults_are_two_minutes_and_a_mebibyte_of_output() -> None:
    limits = Limits()
    assert limits.timeout == 120.0
    assert limits.output == 1 << 20
    assert {
        limits.memory,
        limits.cpu,
        limits.processes,
        limits.file_size,
        limits.disk,
        limits.open_files,
        limits.max_lifetime,
        limits.idle,
    } == {None}


def test_what_protects_the_host_is_left_to_it() -> None:
    assert Limits().defaults == ("memory", "processes", "disk")
    assert Limits(memory="1G", processes=None).defaults == ("disk",)
    assert Limits(memory=None) != Limits()
    assert Limits(memory="default", processes="default", disk="default") == Limits()


def test_a_limit_that_is_said_is_no_default_any_more() -> None:
    assert Limits().replace(memory=1 << 30).defaults == ("processes", "disk")
    assert Limits().replace(memory=None).defaults == ("processes", "disk")
    assert Limits().replace(timeout=5).defaults == Limits().defaults
    assert Limits.none().replace(disk="default").defaults == ("disk",)


def test_none_has_no_limit_but_those_that_are_given() -> None:
    assert Limits.none(timeout=60, memory="1G").as_dict() == {
        **dict.fromkeys(Limits._fields),
        "timeout": 60.0,
        "memory": 1 << 30,
        "defaults": [],
    }


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("512", 512),
        ("512B", 512),
        ("64K", 64 << 10),
        ("64k", 64 << 10),
        ("64KB", 64 << 10),
        ("64KiB", 64 << 10),
        ("64kib", 64 << 10),
        ("512M", 512 << 20),
        ("2G", 2 << 30),
        ("1T", 1 << 40),
    ],
)
def test_units_are_powers_of_two_however_they_are_spelled(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert Limits(output=text) == Limits(output=size)


@pytest.mark.parametrize("name", ["memory", "disk"])
@pytest.mark.parametrize("value", [5, "512", "4K"])
def test_a_forgotten_unit_is_refused_with_what_was_meant(name: str, value: int | str) -> None:
    with pytest.raises(PolicyError, match="unit") as caught:
        Limits(**{name: value})  # type: ignore[arg-type]
    assert "M or" in caught.value.fix
    assert getattr(Limits(**{name: "1M"}), name) == 1 << 20  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "M",
        "1X",
        "1e9",
        "-1",
        "+1",
        " 1",
        "1 ",
        "1i",
        "1ib",
        "0x10",
        "\u0665",
        "1MM",
        "1_000",
        "1bK",
        "NaN",
        "inf",
        "9" * 5000,
    ],
)
def test_other_text_is_no_size(text: str) -> None:
    with pytest.raises(PolicyError):
        Limits(memory=text)


@pytest.mark.parametrize("field", ["memory", "output", "file_size", "disk", "processes", "open_files"])
@pytest.mark.parametrize(
    "value", [0, -1, True, False, 1.5, math.nan, math.inf, 2**63, b"1M", [], "0", "8388608T"]
)
def test_counts_are_positive_whole_numbers(field: str, value: object) -> None:
    with pytest.raises(PolicyError):
        Limits(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["timeout", "cpu", "max_lifetime", "idle"])
@pytest.mark.parametrize("value", [0, 0.0, -1, True, math.nan, math.inf, -math.inf, "soon", 1e300, 10**400])
def test_times_and_cores_are_positive_numbers(field: str, value: object) -> None:
    with pytest.raises(PolicyError) as caught:
        Limits(**{field: value})  # type: ignore[arg-type]
    assert field in caught.value.what


@pytest.mark.parametrize("value", [0.001, 0.0099, 5e-324])
def test_a_share_of_a_processor_that_nobody_can_give_is_an_error(value: float) -> None:
    with pytest.raises(PolicyError):
        Limits(cpu=value)
    assert Limits(cpu=0.01).cpu == 0.01


def test_none_is_no_limit_and_the_largest_size_fits() -> None:
    assert Limits(timeout=None, output=None).timeout is None
    assert Limits(memory=2**63 - 1).memory == 2**63 - 1
    assert Limits(timeout=5).timeout == 5.0


def test_limits_are_values() -> None:
    limits = Limits(memory="1G")
    assert limits == Limits(memory=1 << 30)
    assert hash(limits) == hash(Limits(memory=1 << 30))
    assert limits.replace(cpu=2).memory == 1 << 30
    assert pickle.loads(pickle.dumps(limits)) == limits  # noqa: S301
    with pytest.raises(TypeError):
        Limits(memroy=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("1.5", 1.5),
        ("90s", 90.0),
        ("15m", 900.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("2d1h", 176400.0),
        ("0.5h", 1800.0),
        ("1m1.5s", 61.5),
    ],
)
def test_a_time_is_seconds_or_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert Limits(timeout=text, idle=text, max_lifetime=text).timeout == seconds


NO_TIMES = [
    *("", " ", "s", "m5", "5x", "5ms", "1e3", "-5", "+5", "5m1h", "5m5m", "1h30"),
    *("٣", "nan", "inf", "1.", ".5", "9" * 30, "1,5", "5 minutes"),
]


@pytest.mark.parametrize("text", NO_TIMES)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(PolicyError, match="not a time"):
        parse_duration(text)


def test_a_size_may_have_a_point_and_a_space() -> None:
    assert parse_size("1.5G") == 3 << 29
    assert parse_size("2 GB") == 2 << 30
    assert parse_size("0.5k") == 512
    for text in ("1.G", ".5G", "1..5G", "1 5G", "G", "1e3", "1.5 G B"):
        with pytest.raises(PolicyError, match="not a size"):
            parse_size(text)
