"""Server-sent events of the admin API, read line by line (WHATWG HTML, 9.2)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

MAX_EVENT: Final = 4 * 1024 * 1024


class Event(NamedTuple):
    """kind: what happened. data: what the gateway says of it. id: "" where it has none."""

    kind: str
    data: Any
    id: str


class Reader:
    """Takes lines without their ends; an event is whole at an empty line."""

    def __init__(self) -> None:
        self._kind, self._id, self._data, self._size = "message", "", list[str](), 0

    def line(self, line: str) -> Event | None:
        """The event that this line ends, if it ends one. Raises ValueError for one that is too large or not JSON."""
        if not line:
            kind, data = self._kind, self._data
            self._kind, self._data, self._size = "message", [], 0
            return Event(kind, msgspec.json.decode("\n".join(data)), self._id) if data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._size += len(value)
            if self._size > MAX_EVENT:
                raise ValueError("an event is larger than 4 MiB")
            self._data.append(value)
        elif name == "event":
            self._kind = value
        elif name == "id":
            self._id = value
        return None
