"""How deep in a loop an agent is, from the conversation that it sends. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Loop = tuple[str, int, int, bool]
"""A bound on conversations: the limit's name, calls of tools in a row, the same call of a tool, whether it is enforced. 0: no bound."""


def measured(messages: Sequence[Any] | None) -> tuple[int, int]:
    """(turns that call tools since the user last spoke, how often the most frequent call of a tool with the same arguments occurs)."""
    depth = 0
    counts: dict[tuple[str, str], int] = {}
    for message in messages or ():
        if message.role == "user":
            depth = 0
        calls = getattr(message, "tool_calls", None)
        if calls:
            depth += 1
            for call in calls:
                function = call.function
                if function is not None:
                    key = (function.name or "", function.arguments or "")
                    counts[key] = counts.get(key, 0) + 1
    return depth, max(counts.values(), default=0)
