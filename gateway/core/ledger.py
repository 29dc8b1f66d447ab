"""The ledger: what of the audit log has been added to the stored usage. The log is the truth, the usage a sum of it."""

from __future__ import annotations

from msgspec import Struct


class Position(Struct, frozen=True):
    """A place in the audit log of one writer: everything up to line `seq`, whose hash is `head`, is counted. The next line begins at
    `offset` of `segment`. segment: 0 where nothing has been counted yet."""

    writer: str
    segment: int = 0
    offset: int = 0
    seq: int = 0
    head: str = ""


class UsageRow(Struct, frozen=True):
    """What one caller used of one model on one day (UTC, `YYYY-MM-DD`), to be added to the stored counts.

    writer: whose part of the audit log says so. cost: in nano-units of `currency`. unknown: requests whose outcome is unknown, which were
    charged what they had reserved; they are among `requests`.
    """

    day: str
    tenant: str
    key: str
    model: str
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: int = 0
    unknown: int = 0
    user: str = ""
    agent: str = ""
    operation: str = ""
    currency: str = ""
    writer: str = ""


class SessionRow(Struct, frozen=True):
    """What one session used on one day, to be added. key, user, agent: of its last request, which ended at `last`."""

    day: str
    tenant: str
    session: str
    currency: str = ""
    key: str = ""
    user: str = ""
    agent: str = ""
    last: float = 0.0
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: int = 0
    unknown: int = 0


class EngineRow(Struct, frozen=True):
    """How long requests held an engine with a rate on one day, in microseconds of the whole engine: the time of a slot, divided by the
    number of slots."""

    day: str
    engine: str
    requests: int = 0
    prefill_us: int = 0
    decode_us: int = 0


class SessionAndEngineCounts(Struct, frozen=True):
    """What is counted from the same lines of the log besides the usage."""

    sessions: tuple[SessionRow, ...] = ()
    engines: tuple[EngineRow, ...] = ()
