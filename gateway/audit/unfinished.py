"""Requests whose process ended before they did: the log has their intent and no outcome. Each gets an outcome `unknown` when its writer's
chain is opened again, and is charged what it had reserved. Everything here blocks.

The outcome of a request that was refused before its intent names its `peer`, which the intent would have named: it ends no intent, even if
its caller chose the id of a request under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gateway.audit.chain import read_lines
from gateway.audit.entries import may_end
from gateway.audit.opening import CLOSED, SEALED, Opener
from gateway.audit.segments import open_segment, segment_size
from gateway.core.types import OutcomeRecord

SEARCHED: Final = 256 * 1024 * 1024
"""Bytes at the end of a log that are searched: half a million requests. An intent before them would have been open for all that time."""
UNKNOWN: Final = "outcome_unknown"
_INTENT: Final = b'"kind":"intent"'
_OUTCOME: Final = b'"kind":"outcome"'
_OPENED: Final = b'"event":"audit.opened"'
_HEAD: Final = 48
"""Bytes at the beginning of a line that hold its number and its kind."""


class Intent(msgspec.Struct):
    """What of an intent is charged, to whom, and since when. unopened: why that is not known."""

    request_id: str
    time: float = 0.0
    credential: str = ""
    caller: msgspec.Raw = msgspec.Raw()
    tenant: str = ""
    principal: str = ""
    operation: str = ""
    model: str = ""
    user: str = ""
    agent: str = ""
    session: str = ""
    reserved_prompt: int = 0
    reserved_completion: int = 0
    reserved_cost: int = 0
    currency: str = ""
    price: str = ""
    unopened: str = ""


class _Outcome(msgspec.Struct):
    """early: of a sealed one, whether it has a `peer`."""

    request_id: str
    tenant: str = ""
    principal: str = ""
    peer: str = ""
    early: bool = False


class _Open(NamedTuple):
    """An intent without its outcome. line: of one that was sealed, which is opened when it is left."""

    intent: Intent
    line: bytes


decode_intent: Final = msgspec.json.Decoder(Intent).decode
_outcome = msgspec.json.Decoder(_Outcome).decode


def unfinished(
    segments: Sequence[Path], waiting: Iterable[bytes], now: float, writer: str = "", opener: Opener = CLOSED
) -> list[OutcomeRecord]:
    """The outcomes to write for the intents that have none. segments: a writer's, oldest first. waiting: payloads of records that are not
    in them yet. opener: opens intents that were encrypted; of one that cannot be opened any more the outcome has what is in the clear.
    Raises OSError, GatehouseError."""
    intents: dict[str, list[_Open]] = {}
    for path, offset in _to_search(segments):
        with open_segment(path) as file:
            file.seek(offset)
            for line in read_lines(file):
                _take(line, intents)
    for payload in waiting:
        _take(b'{"seq":0' + payload + b"}\n", intents)
    left = [intent for same_id in intents.values() for intent in same_id]
    return [_unknown(decode_intent(opener.line(writer, one.line)) if one.line else one.intent, now) for one in left]


def _to_search(segments: Sequence[Path]) -> list[tuple[Path, int]]:
    """Files from the oldest on, each with where to begin."""
    left, found = SEARCHED, []
    for path in reversed(segments):
        if left <= 0:
            break
        size = segment_size(path)
        found.append((path, max(0, size - left)))
        left -= size
    return found[::-1]


def _take(line: bytes, intents: dict[str, list[_Open]]) -> None:
    """Sealed intents are kept as they are: only those that are left are opened. Callers choose the ids of their requests: an outcome is of
    an intent of the same tenant and caller alone."""
    head = line[:_HEAD]
    try:
        if _INTENT in head:
            intent = decode_intent(line)
            intents.setdefault(intent.request_id, []).append(_Open(intent, line if SEALED in line else b""))
        elif _OUTCOME in head:
            outcome = _outcome(line)
            if not (outcome.peer or outcome.early) and (same_id := intents.get(outcome.request_id)) is not None:
                for place, (one, _) in enumerate(same_id):
                    if may_end(one.tenant, one.principal, outcome.tenant, outcome.principal):
                        del same_id[place]
                        break
                if not same_id:
                    del intents[outcome.request_id]
        elif _OPENED in line[:128]:
            intents.clear()  # those that were open then got their outcomes just before this line
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # a torn line, which is set aside


def _unknown(intent: Intent, now: float) -> OutcomeRecord:
    return OutcomeRecord(
        time=now,
        request_id=intent.request_id,
        outcome="unknown",
        status=0,
        code=UNKNOWN,
        tenant=intent.tenant,
        principal=intent.principal,
        operation=intent.operation,
        model=intent.model,
        attempts=1,
        prompt_tokens=intent.reserved_prompt,
        completion_tokens=intent.reserved_completion,
        estimated=True,
        charged=True,
        cost=intent.reserved_cost,
        currency=intent.currency,
        price=intent.price,
        user=intent.user,
        agent=intent.agent,
        session=intent.session,
    )
