"""Questions to an audit log: what a verification expects to be there, and which records a search wants."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

import msgspec


class AuditScope(msgspec.Struct, frozen=True):
    """Which part of an audit log is verified and must be complete: each writer's segments from `first` on, or from the writer's own number
    in `starts` on (older ones were archived). archived: writers all of whose files may be missing."""

    first: int = 1
    starts: dict[str, int] = {}
    archived: tuple[str, ...] = ()

    def start(self, writer: str) -> int:
        """The oldest segment of a writer that must be there."""
        return self.starts.get(writer, self.first)


class AuditFilter(msgspec.Struct, frozen=True):
    """Which records are wanted: those that match every given field. Times in seconds since the epoch; `until` is exclusive.

    tenant, principal, model: an outcome has these only when there was no intent; the outcomes of the intents that match are wanted too.
    event: an event's name, or a pattern (`is_pattern`). sealed: records that are encrypted as a whole are wanted as they are in
    the log.
    """

    request_id: str | None = None
    tenant: str | None = None
    principal: str | None = None
    model: str | None = None
    kind: str | None = None
    event: str | None = None
    outcome: str | None = None
    writer: str | None = None
    since: float | None = None
    until: float | None = None
    sealed: bool = False


class AuditSearch(msgspec.Struct, frozen=True):
    """Which requests and events are wanted, the newest first: those that match every given field. All texts except the request's id may be
    patterns (`is_pattern`).

    tenants: only those of these tenants; None: of all. kind: `request` or `event`; None: both. principal: the id of a key, or the subject.
    method: how the caller had logged in. since (inclusive), until (exclusive): seconds since the epoch; of a request when it began.
    before: the place after which a page begins, (time, number) of the last entry of the page before.
    """

    request_id: str | None = None
    tenant: str | None = None
    principal: str | None = None
    user: str | None = None
    agent: str | None = None
    session: str | None = None
    method: str | None = None
    peer: str | None = None
    operation: str | None = None
    model: str | None = None
    endpoint: str | None = None
    outcome: str | None = None
    code: str | None = None
    rule: str | None = None
    decision: str | None = None
    guardrail: str | None = None
    event: str | None = None
    actor: str | None = None
    target: str | None = None
    writer: str | None = None
    kind: str | None = None
    since: float | None = None
    until: float | None = None
    tenants: frozenset[str] | None = None
    limit: int = 50
    before: tuple[float, int] | None = None


NO_KEYS: Final = "no keys"
"""Why encrypted records were not opened: the log was read without its gateway, and so without its keys."""
Unopened = dict[str, int]
"""How many more entries might match, but are encrypted as a whole and could not be opened; by reason."""


TEXTS: Final = (
    *("tenant", "principal", "user", "agent", "session", "method", "peer", "operation", "model", "endpoint", "outcome", "code"),
    *("rule", "decision", "guardrail", "event", "actor", "target", "writer"),
)
"""The fields of an AuditSearch that are compared with a text of an entry."""


def is_pattern(wanted: str) -> bool:
    """Whether a text is a pattern: each `*` in it stands for any text."""
    return "*" in wanted


def as_glob(wanted: str) -> str:
    """A pattern in the syntax of fnmatch and GLOB, where `?` and `[` have a meaning too."""
    return wanted.replace("[", "[[]").replace("?", "[?]")


def fits(text: str, wanted: str) -> bool:
    """Whether a text equals the wanted one, or fits it as a pattern. An empty text fits no pattern."""
    return bool(text) and fnmatchcase(text, as_glob(wanted)) if is_pattern(wanted) else text == wanted
