"""The form of answers. A complete answer that has passed all other guardrails is judged, as the caller would get it. If its form is wrong,
and that is allowed, it is sent back to the model once, with the rules that it broke but without any value that a pseudonym hid.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.core.errors import GuardrailViolation, RequestError
from gateway.core.shapes import ShapeGuard, ShapeJudge
from gateway.core.slices import at_once
from gateway.core.types import InferenceRequest, Principal
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.guarded import Tally

log = logging.getLogger("gatehouse.guardrails")
ADVICE: Final = (
    "Your answer does not follow the JSON schema that it must follow. It breaks these rules of the schema: %s. "
    "Answer again, with nothing but JSON that follows the schema."
)
SHOWN: Final = 4
AT_ONCE: Final = 16 * 1024
"""Bytes of events that are put together in one step."""


class Found:
    """The faults of one answer. refused: the first guardrail that refuses it, with what it found; repair: a second try may help."""

    def __init__(self) -> None:
        self.refused: tuple[ShapeGuard, list[str]] | None = None
        self.repair = False
        self._verdicts: list[tuple[ShapeGuard, bool]] = []

    def add(self, guard: ShapeGuard, faults: list[str]) -> None:
        self._verdicts.append((guard, bool(faults)))
        if faults and guard.enforced and self.refused is None:
            self.refused = (guard, faults)
            self.repair = guard.repair

    def settle(self) -> None:
        """Called for the final answer: counts its faults. Raises GuardrailViolation."""
        for guard, faulty in self._verdicts:
            guard.count(faulty)
        if self.refused is not None:
            guard, faults = self.refused
            message = f"The answer does not follow its schema: {'; '.join(faults[:SHOWN])}."
            raise GuardrailViolation(message, code=guard.name, status=422)


def concerning(x: Exchange, guards: Sequence[ShapeGuard]) -> tuple[ShapeGuard, ...]:
    """The guardrails that judge the answer to this request. Raises RequestError for a schema of its own that cannot be used."""
    request, principal = x.request, x.principal
    assert request is not None and principal is not None
    if not request.api.generates:
        return ()
    return tuple([g for g in guards if (g.concerns is None or g.concerns(principal)) and g.concerned(request)])


async def whole(x: Exchange, events: bytes) -> bytes:
    """The whole answer that a stream's events say. Many events are put together in turns of the loop. Raises EngineError."""
    steps = x.request.api.whole_steps(events)  # type: ignore[union-attr]
    return at_once(steps) if len(events) <= AT_ONCE else await x.plane.turns.run(steps)


def judged(x: Exchange, body: bytes) -> Found:
    """Judges a whole answer, as the caller would get it."""
    request = x.request
    assert request is not None
    found = Found()
    contents = request.api.contents(body)
    rows: list[dict[str, Any]] = []
    for guard in x.shapes:
        faults = guard.faults(request, contents) if contents else []
        found.add(guard, faults)
        rows.append({"guardrail": guard.name, "faults": len(faults)})
    if any([row["faults"] for row in rows]) or "json_schema" in (x.detail or {}):
        before: dict[str, Any] = x.detail or {}
        x.detail = {**before, "json_schema": [*before.get("json_schema", ()), *rows]}
    return found


def prepared(request: InferenceRequest, answer: bytes, found: Found) -> bool:
    """Turns the request into one for a better answer; False if its format has no way to ask for that. answer: the engine's own,
    complete."""
    assert found.refused is not None
    contents = request.api.contents(answer)
    return len(contents) == 1 and request.api.repair(request, contents[0], ADVICE % "; ".join(found.refused[1]))


class GuardedShape:
    """A guardrail on the form of answers behind its failure boundary: an exception inside denies (`closed`), or counts and passes
    (`open`)."""

    def __init__(
        self,
        name: str,
        guard: ShapeJudge,
        fail_open: bool,
        on_failure: Callable[[str, str], None],
        *,
        monitor: bool = False,
        concerns: Callable[[Principal], bool] | None = None,
        tally: Tally | None = None,
    ) -> None:
        self.name, self._guard = name, guard
        self.concerns, self._tally = concerns, tally or Tally()
        self.enforced = guard.action == "block" and not monitor
        self.repair = guard.repair and self.enforced
        self._fail_open, self._on_failure = fail_open or monitor, on_failure

    def concerned(self, request: InferenceRequest) -> bool:
        try:
            return self._guard.concerned(request)
        except RequestError:
            if self.enforced:
                raise
            return False
        except Exception as error:  # noqa: BLE001 - boundary: a guardrail that fails denies
            self._failed(error)
            return False

    def faults(self, request: InferenceRequest, contents: Sequence[str]) -> list[str]:
        try:
            return self._guard.faults(request, contents)
        except Exception as error:  # noqa: BLE001 - boundary: a guardrail that fails denies
            self._failed(error)
            return []

    def _failed(self, error: Exception) -> None:
        log.error("guardrail %s failed: %r", self.name, error, exc_info=error)
        self._on_failure(self.name, "open" if self._fail_open else "closed")
        if not self._fail_open:
            raise GuardrailViolation("The answer could not be checked against its schema.", code=self.name) from error

    def count(self, faulty: bool) -> None:
        if faulty:
            self._tally.count("block" if self.enforced else "annotate", "block" if self.enforced else "pass")
        else:
            self._tally.allowed += 1
