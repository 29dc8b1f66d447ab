"""Lines of the audit log as entries of its index: an intent and its outcome are one."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.audit.opening import SEALED
from gateway.core.audit_questions import TEXTS
from gateway.core.ledger import Position

NUMBERS: Final = ("status", "attempts", "prompt_tokens", "completion_tokens", "cost", "duration_ms", "config", "sealed")
"""What of an entry is a number."""
_KINDS: Final = (b',"kind":"intent",', b',"kind":"outcome",', b',"kind":"event",')
_START: Final = 64


class Facts(msgspec.Struct):
    """What of a record's facts is searched for: the model as it was asked for."""

    model: str = ""


class Entry(msgspec.Struct):
    """What of a record is searched for, as the log names it; `method` is its `credential`, `currency` is in the line itself.

    early: of a sealed outcome, that no intent came before it. tenants: those that an event is about. withheld: its tenant's key could not
    be had, so it says nothing of people. unopened: why a line that is encrypted as a whole could not be opened, where it was to be.
    sealed: 1 where the intent, the outcome or the event is encrypted as a whole, so that only what is in the clear is known of it.
    segment, offset: where the intent, the event, or the outcome without an intent begins; end_segment, end_offset: where the outcome does.
    """

    time: float = 0.0
    kind: str = ""
    request_id: str = ""
    tenant: str = ""
    principal: str = ""
    user: str = ""
    agent: str = ""
    session: str = ""
    method: str = msgspec.field(default="", name="credential")
    peer: str = ""
    operation: str = ""
    model: str = ""
    endpoint: str = ""
    outcome: str = ""
    code: str = ""
    rule: str = ""
    decision: str = ""
    guardrail: str = ""
    event: str = ""
    actor: str = ""
    target: str = ""
    writer: str = msgspec.field(default="", name="-writer")
    status: int = 0
    attempts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: int = 0
    duration_ms: float = 0.0
    config: int = 0
    sealed: int = msgspec.field(default=0, name="-sealed")
    facts: Facts | None = None
    tenants: tuple[str, ...] = ()
    withheld: bool = False
    early: bool = False
    unopened: str = ""
    segment: int = msgspec.field(default=0, name="-segment")
    offset: int = msgspec.field(default=0, name="-offset")
    end_segment: int = msgspec.field(default=0, name="-end_segment")
    end_offset: int = msgspec.field(default=0, name="-end_offset")


_decode: Final = msgspec.json.Decoder(Entry).decode
OF_OUTCOMES: Final = ("endpoint", "outcome", "code", "guardrail")
"""Texts that an outcome gives to its intent's entry."""
COUNTS: Final = ("status", "attempts", "prompt_tokens", "completion_tokens", "cost", "duration_ms")


def entries_of(position: Position, block: bytes) -> tuple[list[Entry], list[Entry]]:
    """Reads whole lines that begin at `position`: the entries, and the outcomes whose intents are not among the lines. A line that is no
    record (somebody has changed the log) is left out: verification tells."""
    found: list[Entry] = []
    outcomes: list[Entry] = []
    pending: dict[str, list[Entry]] = {}
    offset = position.offset
    for line in block.splitlines(keepends=True):
        begin, offset = offset, offset + len(line)
        start = line[:_START]
        if not any(kind in start for kind in _KINDS):
            continue
        try:
            entry = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        entry.segment, entry.offset, entry.writer = position.segment, begin, position.writer
        entry.sealed = int(SEALED in line)
        if not entry.model and entry.facts is not None:
            entry.model = entry.facts.model  # there is no such model
        if entry.kind == "intent":
            pending.setdefault(entry.request_id, []).append(entry)
            found.append(entry)
        elif entry.kind == "event":
            entry.outcome = entry.outcome or "ok"
            found.append(entry)
        elif (intent := _taken(pending, entry)) is not None:
            _close(intent, entry)
        else:
            outcomes.append(entry)
    return found, outcomes


def _taken(pending: dict[str, list[Entry]], outcome: Entry) -> Entry | None:
    """The newest intent that the outcome may be of: callers choose the ids of their requests, so somebody else's may have the same."""
    if outcome.early or outcome.peer:
        return None
    same_id = pending.get(outcome.request_id, [])
    for place in range(len(same_id) - 1, -1, -1):
        if may_end(same_id[place].tenant, same_id[place].principal, outcome.tenant, outcome.principal):
            return same_id.pop(place)
    return None


def completed(entry: dict[str, Any], lines: list[bytes]) -> dict[str, Any]:
    """An entry of the index with what its opened lines hold; `unopened` where one of them could not be opened."""
    found, outcomes = entries_of(Position(entry["writer"]), b"".join(lines))
    one: Entry | None = next(iter([*found, *outcomes]), None)
    if one is None:
        return {**entry, "-opened": True, "-withheld": False}
    told = {name: value for name in (*TEXTS, *NUMBERS) if name != "sealed" and (value := getattr(one, name))}
    if one.unopened:
        told["unopened"] = one.unopened
    return {**entry, **told, "-opened": True, "-withheld": one.withheld}


def may_end(tenant: str, principal: str, ends: str, by: str) -> bool:
    """Whether an outcome of these (`ends`, `by`) may be of an intent of those with the same request id; what is empty is not known."""
    return (tenant == ends or not ends) and (principal == by or not principal or not by)


def _close(intent: Entry, outcome: Entry) -> None:
    for name in (*OF_OUTCOMES, *COUNTS):
        setattr(intent, name, getattr(outcome, name))
    intent.sealed |= outcome.sealed
    intent.withheld |= outcome.withheld
    intent.unopened = intent.unopened or outcome.unopened
    intent.end_segment, intent.end_offset = outcome.segment, outcome.offset
