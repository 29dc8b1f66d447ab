"""How the cache reads a request whose last question may be compared with others."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class PlainMessage(Struct, forbid_unknown_fields=True):
    """One of plain text."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str
