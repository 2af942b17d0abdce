"""Resource limits of a command and of a sandbox."""

from __future__ import annotations

from .. import check
from .._value import Value
from ..errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

LARGEST = 2**63 - 1  # the kernel's interfaces are signed 64-bit
LONGEST_TIMEOUT = 2.0**31  # seconds, 68 years: exact in every timer we use
MOST_CORES = float(1 << 20)
LEAST_CORES = 0.01  # the smallest share that every mechanism supports

#: Bytes. Nothing runs with less, so the unit was probably forgotten ("5" for "5G").
LEAST_BYTES = 1 << 16

#: Always powers of two, in every spelling and case.
UNITS = {"": 1, "b": 1} | {
    letter + spelling: 1 << power
    for letter, power in (("k", 10), ("m", 20), ("g", 30), ("t", 40))
    for spelling in ("", "b", "ib")
}
#: Seconds of each unit of time, longest first: "1h30m".
TIME_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


#: The text that leaves a limit to this host, and the limits for which it is the default.
DEFAULT = "default"
DEFAULTS = ("memory", "processes", "disk")


class Limits(Value):
    """Upper limits; None means unlimited.

    `timeout` limits one command, `max_lifetime` a sandbox, and `idle` the time of a sandbox without a
    command; all are in seconds, or text such as "1h30m". `cpu` is in cores (1.5 is one and a half). Sizes are
    in bytes, as an int or text such as "512M". All limits except `timeout`, `output`, `file_size` and
    `open_files` apply to the sandbox as a whole.

    `defaults` names limits that protect the host. Their values depend on the host's resources when a sandbox
    is opened; until then they are None here. "default" leaves a limit to the host, None removes it.
    """

    timeout: float | None
    memory: int | None
    cpu: float | None
    processes: int | None
    output: int | None
    file_size: int | None
    disk: int | None
    open_files: int | None
    max_lifetime: float | None
    idle: float | None
    defaults: tuple[str, ...]

    def __init__(  # noqa: PLR0917 - in the order of the fields
        self,
        timeout: float | str | None = 120.0,
        memory: int | str | None = DEFAULT,
        cpu: float | None = None,
        processes: int | str | None = DEFAULT,
        output: int | str | None = "1M",
        file_size: int | str | None = None,
        disk: int | str | None = DEFAULT,
        open_files: int | None = None,
        max_lifetime: float | str | None = None,
        idle: float | str | None = None,
        *,
        defaults: Collection[str] = (),
    ) -> None:
        left = {
            name for name, value in zip(DEFAULTS, (memory, processes, disk), strict=True) if value == DEFAULT
        }
        memory, processes, disk = (None if value == DEFAULT else value for value in (memory, processes, disk))
        super().__init__(
            timeout=_duration("timeout", timeout),
            memory=_size("memory", memory, LEAST_BYTES),
            cpu=_decimal("cpu", cpu, MOST_CORES, LEAST_CORES),
            processes=_count("processes", processes),
            output=_size("output", output),
            file_size=_size("file_size", file_size),
            disk=_size("disk", disk, LEAST_BYTES),
            open_files=_count("open_files", open_files),
            max_lifetime=_duration("max_lifetime", max_lifetime),
            idle=_duration("idle", idle),
            defaults=tuple(name for name in DEFAULTS if name in left or name in defaults),
        )

    @classmethod
    def none(cls, **given: Any) -> Limits:
        """Return only the given limits, without those that protect the host by default."""
        return cls(**{**dict.fromkeys((*DEFAULTS, "timeout", "output")), **given})

    def replace(self, **changes: Any) -> Limits:
        """Return a copy with some limits changed. A changed limit is no longer a default."""
        changes.setdefault("defaults", tuple(name for name in self.defaults if name not in changes))
        return super().replace(**changes)


def parse_size(text: str) -> int:
    """Parse a size such as "65536", "64K", "64 KB", "1.5G" or "64KiB" to bytes. Raises PolicyError."""
    if not text:
        raise PolicyError(
            "a size is empty", fix="write a number of bytes, or one such as 512M", why="it is empty"
        )
    number = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = text[len(number) :].lower()
    if unit:
        number = number.rstrip(" ")
    if not _is_decimal(number):
        raise PolicyError(
            f"{text!r} is not a size", why="it does not start with a number", fix="write 512M or 1.5G"
        )
    if unit not in UNITS:
        raise PolicyError(f"{text!r} is not a size", why="its unit is unknown", fix="use K, M, G or T")
    if len(number) > 20:  # int() refuses very long numbers with its own message
        raise PolicyError(
            f"the size {text[:20]}… is too large",
            fix=f"write at most {LARGEST}",
            why="the kernel counts in 63 bits",
        )
    whole, _, fraction = number.partition(".")
    scale: int = 10 ** len(fraction)
    return int(whole + fraction) * UNITS[unit] // scale


def parse_duration(text: str) -> float:
    """Parse a time such as "90", "1.5", "15m" or "1h30m" to seconds. Raises PolicyError."""
    total, rest, left = 0.0, text.replace(" ", ""), list(TIME_UNITS)
    if _is_decimal(rest) and len(rest) <= 20:
        return float(rest)
    while rest and left:
        unit = next((letter for letter in rest if letter in TIME_UNITS), "")
        number, _, rest = rest.partition(unit or "s")
        if unit not in left or not _is_decimal(number) or len(number) > 20:
            break
        total += float(number) * TIME_UNITS[unit]
        left = left[left.index(unit) + 1 :]  # each unit once, longest first
    else:
        if text.strip() and not rest:
            return total
    raise PolicyError(
        f"{text[:40]!r} is not a time",
        fix="write seconds, or one such as 90s, 15m or 1h30m",
        why="it is not a number with a unit",
    )


def _is_decimal(text: str) -> bool:
    """Whether `text` is a decimal number in ASCII digits; not "1e3" or "+1"."""
    whole, point, fraction = text.partition(".")
    return text.isascii() and whole.isdigit() and (fraction.isdigit() if point else True)


def _duration(field: str, value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = parse_duration(value)
        except PolicyError as error:
            raise PolicyError(f"limits.{field} is {value!r}", why="it is not a time", fix=error.fix) from None
    return _decimal(field, value, LONGEST_TIMEOUT)


def _size(field: str, value: object, least: int = 1) -> int | None:
    found = _count(field, parse_size(value) if isinstance(value, str) else value)
    if found is not None and found < least:
        raise PolicyError(
            f"limits.{field} is {found} bytes",
            why=f"nothing could run under less than {least >> 10}K",
            fix=f"write the unit, as in {found}M or {found}G",
        )
    return found


def _count(field: str, value: object) -> int | None:
    if value is None:
        return None
    fix = "give an int in that range, or None for no limit"
    return check.count(f"limits.{field}", value, 1, LARGEST, fix=fix, error=PolicyError)


def _decimal(field: str, value: object, largest: float, least: float = 0.0) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or _is_nan(value):
        raise PolicyError(f"limits.{field} is {value!r}", why="it is not a number", fix="give one, or None")
    if value <= 0 or value < least:
        raise PolicyError(
            f"limits.{field} is {value!r}", why="nothing could run under it", fix="use None for no limit"
        )
    if value > largest:
        raise PolicyError(f"limits.{field} is {value!r}", why="it is too large", fix="use None for no limit")
    return float(value)


def _is_nan(value: float) -> bool:
    return value != value  # noqa: PLR0124 - only NaN is not equal to itself; saves an import of math
