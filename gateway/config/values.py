"""Single values as people write them: durations ("50ms", "1m30s"), sizes ("64MiB"), numbers, truth values, null."""

from __future__ import annotations

from gateway.core.units import duration, integer, number, size
from gateway.wire.yamltree import NULLS, truth, untyped

__all__ = ["NULLS", "duration", "integer", "number", "size", "truth", "untyped"]
