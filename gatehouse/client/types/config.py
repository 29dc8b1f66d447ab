"""Types of the operations below /config. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.model_copies import ResourceChange


class ConfigApplied(TypedDict):
    """changed: the paths that differ from what was in force. applied: false after a dry run, which also says what would change in
    `diff`, secrets masked. until_restart: the configuration file says something else, so a restart, or reading it again, brings that
    back.
    """

    version: int
    changed: list[str]
    applied: bool
    until_restart: NotRequired[bool]
    dry_run: NotRequired[bool]
    diff: NotRequired[list[ResourceChange] | None]


class ConfigView(TypedDict):
    """version: of the configuration in force, also its ETag."""

    version: int
    config: dict[str, Any]


class HistoryEntry(TypedDict):
    """diff: what it changed, secrets masked. config: the whole configuration of a file, secrets masked."""

    number: int
    at: str
    by: str
    of: Literal["file", "store"]
    changed: list[str]
    count: int
    source: NotRequired[str | None]
    replica: NotRequired[str | None]
    version: NotRequired[int | None]
    rolled_back_to: NotRequired[int | None]
    start: NotRequired[Literal["again", "first"] | None]
    whole: NotRequired[bool]
    diff: list[ResourceChange]
    config: NotRequired[dict[str, Any] | None]


class HistoryList(TypedDict):
    """The newest first."""

    items: list[HistoryView]
    cursor: NotRequired[str | None]


class HistoryView(TypedDict):
    """number: of the change of the store that it is or was noted with; later ones have larger numbers. changed: the first paths. count:
    how many there are. source, replica, version: of a file; where it came from, who put it into force, as which version. rolled_back_to:
    the entry that it brought back. start: it came into force with a start of its replica, the `first` that the history knows or one
    `again`, which is not compared with what was before. whole: its settings were kept, so that it can be gone back to.
    """

    number: int
    at: str
    by: str
    of: Literal["file", "store"]
    changed: list[str]
    count: int
    source: NotRequired[str | None]
    replica: NotRequired[str | None]
    version: NotRequired[int | None]
    rolled_back_to: NotRequired[int | None]
    start: NotRequired[Literal["again", "first"] | None]
    whole: NotRequired[bool]


class RolledBack(TypedDict):
    """diff: what has changed, or in a dry run would, secrets masked. version, until_restart: of a file, as for `PUT config`."""

    number: int
    of: Literal["file", "store"]
    applied: bool
    changed: list[str]
    diff: list[ResourceChange]
    version: NotRequired[int | None]
    until_restart: NotRequired[bool | None]
    dry_run: NotRequired[bool]
