"""Budgets whose days, weeks and months do not end while the tests run."""

from __future__ import annotations

import time
from typing import Final

_EAST: Final = (15 - time.gmtime().tm_hour) % 24 - 12
TIMEZONE: Final = f"Etc/GMT{-_EAST:+d}"
"""One where it is three in the morning: the day has begun, and lasts for twenty hours. Names with a sign count to the west, as in POSIX."""
