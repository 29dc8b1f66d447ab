"""The figures of an outcome that are summed, and the sums kept beside the usage: of sessions, and of engines that have a rate."""

from __future__ import annotations

from time import gmtime, strftime
from typing import Final

import msgspec

from gateway.core.ledger import EngineRow, SessionAndEngineCounts, SessionRow

DAY: Final = 86400
NAME: Final = 255
SHORT: Final = 64


class Spent(msgspec.Struct):
    """What of an outcome is summed. unopened: why it is not known."""

    time: float
    outcome: str
    code: str = ""
    tenant: str = ""
    principal: str = ""
    operation: str = ""
    model: str = ""
    attempts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: int = 0
    currency: str = ""
    user: str = ""
    agent: str = ""
    session: str = ""
    endpoint: str = ""
    prefill_us: int = 0
    decode_us: int = 0
    slots: int = 0
    unopened: str = ""


decode_spent: Final = msgspec.json.Decoder(Spent).decode


class SessionAndEngineSums:
    """sessions: by (day since the epoch, tenant, session, currency): the last request's end, key, user and agent, and the counts. engines:
    by (day, engine): requests and microseconds of the whole engine."""

    def __init__(self) -> None:
        self.sessions: dict[tuple[int, str, str, str], tuple[float, str, str, str, list[int]]] = {}
        self.engines: dict[tuple[int, str], list[int]] = {}

    def add(self, spent: Spent) -> None:
        day = int(spent.time) // DAY
        if spent.session:
            key = (day, storable(spent.tenant), storable(spent.session), spent.currency[:SHORT])
            known = self.sessions.get(key)
            counts = [0] * 7 if known is None else known[4]
            counts[0] += 1
            counts[1] += spent.prompt_tokens
            counts[2] += spent.completion_tokens
            counts[3] += spent.cached_tokens
            counts[4] += spent.reasoning_tokens
            counts[5] += spent.cost
            counts[6] += spent.outcome == "unknown"
            last = spent.time if known is None else max(spent.time, known[0])
            self.sessions[key] = (last, storable(spent.principal), storable(spent.user), storable(spent.agent), counts)
        if spent.slots > 0 and spent.endpoint:
            times = self.engines.setdefault((day, storable(spent.endpoint)), [0, 0, 0])
            times[0] += 1
            times[1] += spent.prefill_us // spent.slots
            times[2] += spent.decode_us // spent.slots

    def rows(self, *, sessions: bool = True) -> SessionAndEngineCounts:
        """As they are stored. sessions: whether these are."""
        of_sessions = tuple(
            SessionRow(day_name(day), tenant, session, currency, key, user, agent, last, *counts)
            for (day, tenant, session, currency), (last, key, user, agent, counts) in self.sessions.items()
        )
        engines = tuple(EngineRow(day_name(day), engine, *times) for (day, engine), times in self.engines.items())
        return SessionAndEngineCounts(of_sessions if sessions else (), engines)


def day_name(day: int) -> str:
    """`YYYY-MM-DD` of a day since the epoch."""
    return strftime("%Y-%m-%d", gmtime(day * DAY))


def storable(text: str) -> str:
    """A name as a database can hold it: cut, and without what is no text."""
    return text[:NAME].replace("\0", "?").encode("utf-8", "replace").decode()
