"""Runs a text through the guardrails in force, without a request: for operators who try and test them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Sequence
from time import perf_counter, thread_time
from typing import Any, Final

from gateway.core.errors import GatehouseError, NotFound, RequestError
from gateway.core.slices import in_slices
from gateway.core.snapshot import Inspector, Snapshot
from gateway.core.types import Principal, Verdict
from gateway.core.waiting import Signal, as_future
from gateway.pipeline.guarded import Guarded
from gateway.pipeline.plane import DataPlane

HELD: Final = 4096
"""Characters of the text that are fed one by one, to see how many a stream would hold."""
_STEP: Final = 64
_NOBODY: Final = Principal("", "", "trial")
AT_ONCE: Final = 4
"""Texts that are tried at a time; others wait."""


class GuardrailTrial:
    """Implements admin.ports.GuardrailTester with the Snapshot in force. What it does is not counted."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def evaluate(self, text: str, where: str, model: str | None, names: Sequence[str]) -> dict[str, Any]:
        """See admin.ports.GuardrailTester."""
        snapshot = self._plane.current()
        chain = _chain(snapshot, where, model, names)
        steps: list[dict[str, Any]] = []
        verdict, after = "allow", text
        labels: set[str] = set()
        async with self._turns:
            for guardrail in chain:
                step, passed = await _tried(guardrail, after, where, frozenset(labels))
                steps.append(step)
                labels.update([step["label"]] if step["label"] else ())
                if step["action"] != "pass":
                    verdict = step["action"]
                after = passed
                if step["action"] in ("block", "hold"):
                    break
        passes = after if verdict in ("allow", "rewrite") else None
        return {"verdict": verdict, "text": passes, "labels": sorted(labels), "guardrails": steps}


def _chain(snapshot: Snapshot, where: str, model: str | None, names: Sequence[str]) -> list[Inspector]:
    """Raises NotFound, RequestError."""
    if model is not None:
        entry = snapshot.models.get(model)
        if entry is None:
            raise NotFound(f"There is no model {model!r}.")
        entries = [entry]
    else:
        entries = list(dict.fromkeys(snapshot.models.values()))
    found: dict[str, Inspector] = {}
    for entry in entries:
        for guardrail in entry.request_guardrails if where == "request" else entry.response_guardrails:
            found.setdefault(guardrail.name, guardrail)
    for name in names:
        if name not in found:
            known = ", ".join(found) or "none"
            raise RequestError(f"guardrails: {name!r} reads no {where} of this gateway's models; known: {known}.", param="guardrails")
    order = {spec.name: number for number, spec in enumerate(snapshot.spec.guardrails)}
    wanted = [guardrail for name, guardrail in found.items() if not names or name in names]
    return sorted(wanted, key=lambda guardrail: order.get(guardrail.name, len(order)))


async def _tried(guardrail: Inspector, text: str, where: str, labels: frozenset[str]) -> tuple[dict[str, Any], str]:
    """One guardrail's verdict, and the text that it leaves. labels: given by the guardrails before it."""
    assert isinstance(guardrail, Guarded)
    began, used = perf_counter(), thread_time()
    try:
        async with asyncio.timeout(guardrail.budget_ns * 1e-9):
            verdict = await _verdict(guardrail, text, where, labels)
    except TimeoutError:
        verdict = Verdict("error", guardrail.name, "It took longer than its budget.")
    except GatehouseError as error:
        verdict = Verdict("error", guardrail.name, error.message)
    except Exception as error:  # noqa: BLE001 - boundary: as in the pipeline, its failure is a verdict
        verdict = Verdict("error", guardrail.name, f"It failed: {type(error).__name__}.")
    took, computed = perf_counter() - began, thread_time() - used
    shown: dict[str, Any] = {
        "guardrail": guardrail.name,
        "mode": "monitor" if guardrail.monitor else "enforce",
        "verdict": verdict.action,
        "action": guardrail.done_with(verdict.action),
        "label": guardrail.label if where == "request" and guardrail.gives(verdict) else None,
        "why": verdict.reason,
        "spans": [
            {"offset": one.start, "length": one.end - one.start, "entity": one.entity, "score": one.score or None}
            for one in verdict.findings
        ],
        "milliseconds": round(took * 1e3, 3),
        "cpu_milliseconds": round(computed * 1e3, 3),
        "held": await in_slices(_held(guardrail, text)),
        "longest_hold": getattr(guardrail.guardrail, "longest", None),
    }
    passed = verdict.texts[0] if shown["action"] == "rewrite" and verdict.texts else text
    return shown, passed


async def _verdict(guardrail: Guarded, text: str, where: str, labels: frozenset[str]) -> Verdict:
    layer = guardrail.layer(_NOBODY, lambda name: b"", 0.0) if guardrail.layered and where == "request" else None
    found = guardrail.asked([text], layer, labels)
    if isinstance(found, Generator):
        return await in_slices(found)
    if isinstance(found, Signal):
        return await as_future(found)
    return await found if isinstance(found, Awaitable) else found


def _held(guardrail: Guarded, text: str) -> Generator[None, None, int | None]:
    """The most characters that a stream with the beginning of this text holds; None: all of it."""
    most = 0
    try:
        matcher = guardrail.guardrail.stream()
        if matcher is None:
            return None
        for number, character in enumerate(text[:HELD]):
            if number % _STEP == 0:
                yield
            matcher.feed(character)
            most = max(most, len(matcher.held))
        matcher.finish()
    except Exception:  # noqa: BLE001 - boundary: it blocks, or it fails: then nothing more is held
        return most
    return most
