"""The figures of an outcome record that usage is summed from, and the sums by session and by engine (those with a rate)."""

from __future__ import annotations

from time import gmtime, strftime
from typing import Final

import msgspec

from gateway.core.ledger import EngineRow, SessionAndEngineCounts, SessionRow

DAY: Final = 86400
NAME: Final = 255
SHORT: Final = 64


class OutcomeFigures(msgspec.Struct):
    """The fields of an outcome that are summed. unopened: why an encrypted record could not be opened, "" otherwise."""

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


decode_figures: Final = msgspec.json.Decoder(OutcomeFigures).decode


class SessionAndEngineSums:
    """sessions: by (day since the epoch, tenant, session, currency), the end, key, user and agent of the last request, and the counts.
    engines: by (day, engine), the requests, and the microseconds of prefill and decoding divided by the engine's slots."""

    def __init__(self) -> None:
        self.sessions: dict[tuple[int, str, str, str], tuple[float, str, str, str, list[int]]] = {}
        self.engines: dict[tuple[int, str], list[int]] = {}

    def add(self, figures: OutcomeFigures) -> None:
        day = int(figures.time) // DAY
        if figures.session:
            key = (day, storable(figures.tenant), storable(figures.session), figures.currency[:SHORT])
            known = self.sessions.get(key)
            counts = [0] * 7 if known is None else known[4]
            counts[0] += 1
            counts[1] += figures.prompt_tokens
            counts[2] += figures.completion_tokens
            counts[3] += figures.cached_tokens
            counts[4] += figures.reasoning_tokens
            counts[5] += figures.cost
            counts[6] += figures.outcome == "unknown"
            last = figures.time if known is None else max(figures.time, known[0])
            self.sessions[key] = (last, storable(figures.principal), storable(figures.user), storable(figures.agent), counts)
        if figures.slots > 0 and figures.endpoint:
            times = self.engines.setdefault((day, storable(figures.endpoint)), [0, 0, 0])
            times[0] += 1
            times[1] += figures.prefill_us // figures.slots
            times[2] += figures.decode_us // figures.slots

    def rows(self, *, sessions: bool = True) -> SessionAndEngineCounts:
        """The sums as they are stored. sessions: False leaves these out."""
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
    """A name as a database can hold it: shortened, without NUL and lone surrogates."""
    return text[:NAME].replace("\0", "?").encode("utf-8", "replace").decode()
