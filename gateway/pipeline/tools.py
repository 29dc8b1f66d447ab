"""Phases 6 and 10 for tools: judges what a request offers and brings, and what an answer calls, whole or in a stream.

Of a stream everything before the first call passes as it comes. From there on nothing does until the stream is whole and its calls are
judged: a call never leaves in part.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from gateway.core.approvals import HEADER
from gateway.core.errors import EngineError, GuardrailViolation, PermissionDenied
from gateway.core.slices import Steps
from gateway.core.tools import SEVERITY, CallReader, ToolFinding, ToolGuard, ToolUse
from gateway.core.types import Principal
from gateway.core.wire import EventReader
from gateway.pipeline import approvals
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.guarded import Tally
from gateway.pipeline.held import HOLD_BYTES, HeldRelay
from gateway.pipeline.inspect import InspectedRelay
from gateway.pipeline.stream import StreamRelay
from gateway.wire.sse import PORTION

log = logging.getLogger("gatehouse.guardrails")
SHOWN_NAME: Final = 64
"""Characters of a tool's name that a caller is told."""
SHOWN: Final = 16
"""Findings in a record."""


class Waits:
    """What must be held, and why: the guardrail that says so and what it found."""

    __slots__ = ("findings", "guard", "hashes")

    def __init__(self, guard: ToolGuard, findings: Sequence[ToolFinding]) -> None:
        self.guard, self.findings = guard, findings
        self.hashes = tuple([finding.sha256 for finding in findings])


def judged(x: Exchange, guards: Sequence[ToolGuard], uses: Sequence[ToolUse], asked: bool = False) -> Waits | None:
    """What must be held; None: all may pass. asked: the request brings it. Raises GuardrailViolation for what is not allowed."""
    if not uses:
        return None
    principal: Principal = x.principal  # type: ignore[assignment]
    model = x.entry.name  # type: ignore[union-attr]
    held: Waits | None = None
    for guard in guards:
        if guard.concerns is not None and not guard.concerns(principal):
            continue
        findings = guard.judge(uses, principal, model)
        noted = [finding for finding in findings if finding.action != "allow"]
        if not noted:
            continue
        noted.sort(key=_severity)
        note(x, guard.name, noted)
        if guard.monitor:
            continue
        worst = noted[-1]
        x.guardrail = guard.name
        if worst.action == "block":
            raise GuardrailViolation(_refusal(worst), code=guard.name)
        if held is None and not approvals.judged_by_pipeline(x, guard, asked):
            held = Waits(guard, findings)
    return held


def _severity(finding: ToolFinding) -> int:
    return SEVERITY[finding.action]


def note(x: Exchange, guardrail: str, findings: Sequence[ToolFinding]) -> None:
    """Puts what was found into the audit record: names, rules and hashes, never arguments."""
    rows = [
        {
            "guardrail": guardrail,
            "tool": finding.use.name[:SHOWN_NAME],
            "of": finding.use.kind,
            "action": finding.action,
            "rule": finding.rule,
            "sha256": finding.sha256,
        }
        for finding in findings[-SHOWN:]
    ]
    before: dict[str, Any] = x.detail or {}
    x.detail = {**before, "tools": [*before.get("tools", ()), *rows]}


def _refusal(finding: ToolFinding) -> str:
    name = finding.use.name[:SHOWN_NAME]
    if finding.use.kind == "definition":
        return f"The tool {name!r} is not allowed here."
    if finding.use.kind == "result":
        return f"A result of the tool {name!r} is not allowed here."
    return f"The answer calls the tool {name!r} in a way that is not allowed here."


async def request(x: Exchange, guards: Sequence[ToolGuard]) -> None:
    """Phase 6: the tools that a request offers, and the results that it brings. What was approved passes once."""
    inference = x.request
    assert inference is not None
    waits = judged(x, guards, inference.api.tool_uses(inference), True)
    if waits is None:
        return
    if HEADER in x.headers:
        taken = await approvals.asked(x, False)
        if taken.form or taken.hashes != waits.hashes:
            raise PermissionDenied("The approval is for other results.", code="approval_mismatch")
        return
    await approvals.hold(x, waits.guard, waits.findings, "", b"")


async def answer(x: Exchange, guards: Sequence[ToolGuard], body: bytes) -> bytes:
    """Phase 10 for a whole answer, after the guardrails that read texts: the answer as it may be passed on."""
    assert x.request is not None
    body, uses = x.request.api.tool_calls(body)
    waits = judged(x, guards, uses)
    if waits is not None:
        await approvals.hold(x, waits.guard, waits.findings, "whole", body)
    return body


class Gate:
    """Keeps back a stream's events from the first that holds a part of a call."""

    __slots__ = ("_before", "_reader", "_size", "begun", "kept", "records", "too_long")

    def __init__(self, x: Exchange) -> None:
        assert x.request is not None
        self._reader: CallReader | None = x.request.api.call_reader()
        self.begun = False
        self.kept: list[bytes] = []
        self._before: list[bytes] = []
        self.records = any([guard.may_hold for guard in x.entry.response_tools]) if x.entry is not None else False
        """Whether what has passed is remembered, as a retry gets all of it again."""
        self.too_long = False
        self._size = 0

    def feed(self, data: bytes) -> bytes:
        """Whole events; returns what may pass now."""
        reader = self._reader
        if reader is None:
            return data
        passing: list[bytes] = []
        for event in data.split(b"\n\n")[:-1]:
            self._take(reader, event, passing)
        return self._passed(passing)

    def feed_steps(self, data: bytes) -> Steps[bytes]:
        """The same in slices, for many events at once."""
        reader = self._reader
        if reader is None:
            return data
        passing: list[bytes] = []
        for event in data.split(b"\n\n")[:-1]:
            self._take(reader, event, passing)
            yield
        return self._passed(passing)

    def _take(self, reader: CallReader, event: bytes, passing: list[bytes]) -> None:
        read, found = reader.feed(event)
        self.begun = self.begun or found
        if not self.begun:
            passing.append(read)
            return
        self.kept.append(read)
        self._size += len(read)
        if self._size > HOLD_BYTES:
            raise EngineError("The engine's answer is too long after a tool call.")

    def _passed(self, passing: list[bytes]) -> bytes:
        passed = b"".join(passing)
        if self.records and passed:
            self._remember(passed)
        return passed

    def _remember(self, passed: bytes) -> None:
        self._before.append(passed)
        self._size += len(passed)
        if self._size > HOLD_BYTES:
            self.too_long, self.records = True, False
            self._before = []
            self._size = 0

    def whole(self, reader: EventReader, ending: bytes) -> bytes:
        """The whole stream, with the usage also where its client did not ask for it: the retry may. ending: what its end lacks."""
        events = self._before + self.kept
        if reader.untold:
            marked = len(events) > 0 and reader.is_end(events[-1].rstrip(b"\n"))
            events.insert(len(events) - 1 if marked else len(events), reader.untold)
        return b"".join(events) + ending

    def uses(self) -> Sequence[ToolUse]:
        return () if self._reader is None else self._reader.uses()


async def _released(x: Exchange, gate: Gate, reader: EventReader, ending: bytes) -> bytes:
    """The events that were kept, once their calls are judged. Raises GuardrailViolation, ApprovalPending."""
    assert x.entry is not None
    if gate.begun:
        waits = judged(x, x.entry.response_tools, gate.uses())
        if waits is not None:
            if gate.too_long:
                raise GuardrailViolation("The answer is too long to be kept for approval.", code=waits.guard.name)
            await approvals.hold(x, waits.guard, waits.findings, "stream", gate.whole(reader, ending))
    return b"".join(gate.kept)


class ToolRelay(InspectedRelay):
    """A stream whose calls are judged when it is whole."""

    __slots__ = ("_gate",)
    held: ClassVar[bool] = True

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._gate = Gate(exchange)

    def emit(self, data: bytes) -> None:
        if passing := self._gate.feed(data):
            super().emit(passing)

    def finish_stream(self, kept: bool = False) -> None:
        """Does nothing yet: `release` ends the client's body."""

    async def release(self) -> None:
        """Raises GuardrailViolation, ApprovalPending before any part of a call has passed."""
        rest = await _released(self.exchange, self._gate, self._reader, self.ending())
        if rest:
            StreamRelay.emit(self, rest)
        StreamRelay.finish_stream(self)


class HeldToolRelay(HeldRelay):
    """The same for a stream that guardrails hold until it is whole."""

    __slots__ = ()

    async def release(self) -> None:
        """Raises GuardrailViolation, or any error of the guardrails, before any of the answer has passed."""
        gate, data = Gate(self.exchange), await self.passed()
        passing = gate.feed(data) if len(data) <= PORTION else await self.exchange.plane.turns.run(gate.feed_steps(data))
        self.send(passing + await _released(self.exchange, gate, self._reader, self.ending()))


class GuardedTools:
    """A guardrail on tools behind its failure boundary: an exception inside denies (`closed`), or counts and passes (`open`)."""

    def __init__(
        self,
        name: str,
        guard: Any,
        fail_open: bool,
        on_failure: Callable[[str, str], None],
        *,
        monitor: bool = False,
        concerns: Callable[[Principal], bool] | None = None,
        tally: Tally | None = None,
    ) -> None:
        self.name, self._guard = name, guard
        self.monitor, self.concerns, self.tally = monitor, concerns, tally or Tally()
        self.may_hold: bool = guard.may_hold
        self.expires: float = guard.expires
        self.approvers: tuple[str, ...] = guard.approvers
        self._fail_open, self._on_failure = fail_open or monitor, on_failure

    def __eq__(self, other: object) -> bool:
        """Made of the same guardrail: each configuration makes its own."""
        return isinstance(other, GuardedTools) and self._guard is other._guard and self.concerns is other.concerns

    def __hash__(self) -> int:
        return id(self._guard)

    def judge(self, uses: Sequence[ToolUse], caller: Principal, model: str) -> Sequence[ToolFinding]:
        try:
            found: Sequence[ToolFinding] = self._guard.judge(uses, caller, model)
        except Exception as error:  # boundary: a guardrail that fails denies
            log.error("guardrail %s failed: %r", self.name, error, exc_info=error)
            self._on_failure(self.name, "open" if self._fail_open else "closed")
            if not self._fail_open:
                raise GuardrailViolation("The tools could not be inspected.", code=self.name) from error
            return ()
        worst = max([SEVERITY[finding.action] for finding in found], default=0)
        if worst:
            action = "block" if worst > 1 else "hold"
            self.tally.count(action, "pass" if self.monitor else action)
        else:
            self.tally.allowed += 1
        return found
