"""Bounds of size and time in the conversation with Redis (gateway.limits.redis.shared)."""

from __future__ import annotations

from typing import Final

MOST_WAITING: Final = 10_000
MOST_KEPT: Final = 200_000
"""Settlements that are kept while Redis is away. Beyond them the oldest are dropped: what they would give back stays charged."""
NOTE: Final = 0.005
"""Seconds after which settlements go by themselves."""
RENEW: Final = 2.5
"""Seconds between two times that slots are renewed: a quarter of what they last."""
PROBE: Final = 0.05
LONGEST_PROBE: Final = 1.0
HANGING: Final = 10_000_000
"""Microseconds after which a connection without any answer is given up for another one."""
AGAIN: Final = 2_000
"""Microseconds until what a Redis Cluster could not do while its keys move is asked again."""
LOOK: Final = 250_000
"""Microseconds between two looks at a connection that hangs."""
