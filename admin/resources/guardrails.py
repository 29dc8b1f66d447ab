"""Guardrails: what is inspected, on which models. Their own settings are checked by the guardrail itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from admin.operation import Answer, Call, Operation
from admin.resource import Collection
from gateway.core.errors import StoreUnavailable
from gateway.core.specs import GuardrailSpec
from gateway.core.types import EventRecord
from gateway.core.waiting import as_future

MAX_TEXT = 100_000
"""Characters of a text that is tried."""


def in_file(config: dict[str, Any]) -> Iterable[dict[str, Any]]:
    guardrails: list[dict[str, Any]] = config["guardrails"]
    return guardrails


async def check(call: Call, settings: GuardrailSpec, before: dict[str, Any] | None) -> None:
    await call.ports.check("guardrails", msgspec.to_builtins(settings))


GUARDRAILS = Collection("guardrails", "guardrail", GuardrailSpec, in_file, lambda body: "", check)


class Tried(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A text to run through the guardrails in force. on: whether it is taken for a request's or an answer's. model: those of this model, if
    given. guardrails: only these."""

    text: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
    on: Literal["request", "response"] = "request"
    model: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    guardrails: Annotated[tuple[str, ...], msgspec.Meta(max_length=256)] = ()


class Span(msgspec.Struct, kw_only=True):
    """A place in the text as the guardrail read it, in characters."""

    offset: int
    length: int
    entity: str
    score: float | None


class Step(msgspec.Struct, kw_only=True):
    """One guardrail. verdict: what it found. action: what would be done. label: what a request with this text would get. milliseconds: of
    the clock; cpu_milliseconds: of the processor. held: the most characters that a stream with this text would hold, of its first 4,096;
    null: all of it. longest_hold: the most that any text can make it hold, where that is known."""

    guardrail: str
    mode: str
    verdict: str
    action: str
    label: str | None
    why: str
    spans: list[Span]
    milliseconds: float
    cpu_milliseconds: float
    held: int | None
    longest_hold: int | None


class Evaluation(msgspec.Struct, kw_only=True):
    """verdict: allow, rewrite, block or hold. text: what would pass; null if nothing would. labels: the data labels that a request with
    this text would get from these guardrails. guardrails: in order, up to one that blocks."""

    verdict: str
    text: str | None
    labels: list[str]
    guardrails: list[Step]


async def evaluate(call: Call) -> Answer:
    """The audit log learns who tried a text, how long it was and what was found; never the text."""
    asked: Tried = call.body
    if call.ports.guardrails is None:
        raise StoreUnavailable("This process has no guardrails.")
    found = await call.ports.guardrails.evaluate(asked.text, asked.on, asked.model, asked.guardrails)
    detail = {
        "request_id": call.request_id,
        "characters": len(asked.text),
        "verdict": found["verdict"],
        "guardrails": {step["guardrail"]: step["verdict"] for step in found["guardrails"]},
    }
    await as_future(call.ports.audit.event(EventRecord(call.ports.clock.wall(), "admin.guardrails.evaluate", call.actor, "", "ok", detail)))
    return Answer(found)


def operations() -> list[Any]:
    return [
        *GUARDRAILS.operations(),
        Operation(
            "POST", "guardrails:evaluate", "guardrails:evaluate", "Run a text through the guardrails in force", evaluate, Evaluation,
            body=Tried, quiet=True, finds=True,
        ),
    ]  # fmt: skip
