"""Durations and sizes as people write them: "50ms", "1m30s"; "64KiB", "8MB"."""

from __future__ import annotations

import re

_BARE = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,2})?")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,18})")
_DURATION = re.compile(r"(?:[0-9]{1,12}(?:\.[0-9]{1,9})?(?:us|ms|s|m|h|d))+")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s|m|h|d)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WHOLE = (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000))
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?(B|KB|MB|GB|KiB|MiB|GiB)")
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
DURATION = "a duration such as 50ms, 1s, 1m30s or 2h"
SIZE = "a size such as 65536, 64KiB or 8MiB"


def integer(text: str) -> int | None:
    """The text as a whole number, or None."""
    return int(text) if _INTEGER.fullmatch(text) else None


def number(text: str) -> float | None:
    """The text as a finite number, or None."""
    return float(text) if _BARE.fullmatch(text) else None


def duration(text: str) -> float | None:
    """Seconds: a bare number, or one or more of us, ms, s, m, h, d ("1m30s"). None if it is not a duration."""
    if (bare := number(text)) is not None:
        return bare
    if not _DURATION.fullmatch(text):
        return None
    return round(sum(float(amount) * _SECONDS[unit] for amount, unit in _DURATION_PART.findall(text)), 9)


def written(seconds: float) -> str:
    """The duration as the configuration would have it: `50ms`, `1m30s`, `24h`. `duration` gives the same seconds, to the microsecond."""
    left = round(abs(seconds) * 1_000_000)
    if left < 1_000_000:
        return "0s" if not left else f"{left // 1000}ms" if left % 1000 == 0 else f"{left}us"
    if left == 86_400_000_000:
        return "24h"
    text = ""
    for unit, micros in _WHOLE:
        count, left = divmod(left, micros)
        text += f"{count}{unit}" if count else ""
    seconds_left = f"{left / 1_000_000:.6f}".rstrip("0").rstrip(".")
    return f"{text}{seconds_left}s" if left else text


def size(text: str) -> int | None:
    """Bytes: a bare whole number, or with B, KB, MB, GB (powers of 1000), KiB, MiB, GiB (powers of 1024)."""
    if (bare := integer(text)) is not None:
        return bare
    match = _SIZE.fullmatch(text)
    return int(float(match[1]) * _BYTES[match[2]]) if match else None


def written_size(count: int) -> str:
    """The bytes as the configuration would have them, in the largest unit of 1024 that needs no fraction: `64KiB`, `100B`."""
    for unit in ("GiB", "MiB", "KiB"):
        if count and count % _BYTES[unit] == 0:
            return f"{count // _BYTES[unit]}{unit}"
    return f"{count}B"
