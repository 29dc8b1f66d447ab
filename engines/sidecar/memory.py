"""How much main memory a model may take."""

from __future__ import annotations

from pathlib import Path


def available_memory() -> int | None:
    """Main memory available without swapping, in bytes; None if the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
