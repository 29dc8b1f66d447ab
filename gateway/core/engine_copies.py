"""Names of the copies of an engine (`scale`)."""

from __future__ import annotations

from typing import Final

COPY: Final = "~"
"""Between the name of an engine and the number of its copy, from 2 on."""


def is_copy(name: str) -> bool:
    """Whether this is the name of a copy of an engine, other than the first."""
    return COPY in name
