"""Everything that one write stores and deletes, for the checks of its parts. There may be thousands of parts, so that a check looks names
up instead of searching all others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

Body = tuple[str, dict[str, Any]]
"""Kind and body of a resource."""


class WriteSet:
    """bodies: what is stored; gone: kind and name of what is deleted. Neither changes after construction."""

    def __init__(self, bodies: Sequence[Body] = (), gone: Iterable[tuple[str, str]] = ()) -> None:
        self._bodies = bodies
        self.gone: Final = frozenset(gone)

    def __iter__(self) -> Iterator[Body]:
        return iter(self._bodies)

    @cached_property
    def _kinds(self) -> dict[str, dict[str, dict[str, Any]]]:
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for kind, body in self._bodies:
            found.setdefault(kind, {})[str(body["name"])] = body
        return found

    def of(self, kind: str) -> Mapping[str, dict[str, Any]]:
        """The bodies of a kind by name, in the order in which they were given."""
        return self._kinds.get(kind, {})


NO_OTHERS: Final = WriteSet()
"""The default of checks: the write stores and deletes nothing but the resource that is checked."""
