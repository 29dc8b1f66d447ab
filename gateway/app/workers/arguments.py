"""How many workers there may be, and the arguments of a worker's process, which nobody but the control process uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAX_WORKERS: Final = 64
ARGUMENT: Final = "--worker"
"""`python -m gateway --worker FEED DATA`: descriptors of the feed and of the listening socket."""


def arguments(feed: int, data: int) -> list[str]:
    return [ARGUMENT, str(feed), str(data)]


def descriptors(given: Sequence[str]) -> tuple[int, int] | None:
    """(feed, data) when these arguments are those of a worker, else None."""
    if len(given) != 3 or given[0] != ARGUMENT or not all(number.isascii() and number.isdigit() for number in given[1:]):
        return None
    return int(given[1]), int(given[2])
