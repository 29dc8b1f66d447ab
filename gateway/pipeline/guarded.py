"""A guardrail as the pipeline sees it: behind a failure boundary, with its mode, its budget, whom it concerns, and what it did so far."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from time import perf_counter_ns, thread_time_ns
from typing import Any, Final, TypeVar

from gateway.core.deadlines import Deadline
from gateway.core.errors import EngineError, GatehouseError, GuardrailViolation
from gateway.core.ports import Guardrail, StreamMatcher
from gateway.core.pseudonyms import Layer
from gateway.core.slices import Steps, Turns
from gateway.core.snapshot import Inspector
from gateway.core.types import ALLOW, Finding, Principal, Verdict
from gateway.core.values import UNLABELLED
from gateway.core.waiting import Driver, Maybe, Signal

log = logging.getLogger("gatehouse.guardrails")
BUDGET: Final = 30.0
"""Seconds, where the configuration names no budget."""
SMALL_BUDGET: Final = 0.1
"""With less, a guardrail does at once what it would do when the first text needs it (`prepare`, where it has that)."""
UNREADABLE: Final = "The content could not be inspected."
MOST_SPANS: Final = 32
"""Findings of one guardrail in one record; further ones are counted."""
_RANK: Final = {"allow": 0, "annotate": 1, "rewrite": 2, "hold": 3, "error": 4, "block": 5}
_DONE: Final = {"block": "block", "rewrite": "rewrite", "hold": "hold"}
T = TypeVar("T")


class BudgetMissed(Exception):
    """A guardrail took longer than it may."""


class Tally:
    """What one guardrail did since the process started, over all reloads. verdicts: by verdict and action. ns: time spent in it."""

    __slots__ = ("allowed", "ns", "verdicts")

    def __init__(self) -> None:
        self.allowed = 0
        self.ns = 0
        self.verdicts: dict[tuple[str, str], int] = {}

    def count(self, verdict: str, action: str) -> None:
        key = (verdict, action)
        self.verdicts[key] = self.verdicts.get(key, 0) + 1


class Note:
    """What the audit record says of one guardrail: what it found in a request or an answer, and what was done. Never the text: a finding is
    a place, a length and a keyed hash."""

    __slots__ = ("_guarded", "_hash", "_more", "_spans", "action", "read", "verdict", "where", "why")

    def __init__(self, guarded: Guarded, where: str, hash_body: Callable[[bytes], str]) -> None:
        self._guarded, self.where, self._hash = guarded, where, hash_body
        self.verdict, self.action, self.why = "allow", "pass", ""
        self.read = False
        """Whether there was a text to read."""
        self._spans: list[dict[str, Any]] = []
        self._more = 0

    def add(self, verdict: str, why: str, findings: Sequence[Finding], text: int = -1) -> None:
        """text: the number of the text, where the findings do not say it."""
        if _RANK[verdict] > _RANK[self.verdict]:
            self.verdict, self.why = verdict, why[:256]
            self.action = self._guarded.done_with(verdict)
        for finding in findings:
            if len(self._spans) == MOST_SPANS:
                self._more += 1
                continue
            span: dict[str, Any] = {
                "text": finding.text if text < 0 else text,
                "offset": finding.start,
                "length": finding.end - finding.start,
                "entity": finding.entity,
            }
            if finding.score:
                span["score"] = finding.score
            if finding.value and (hashed := self._hash(finding.value.encode("utf-8", "replace"))):
                span["hash"] = hashed
            self._spans.append(span)

    def counted(self) -> None:
        """The request is over."""
        if self.verdict == "allow":
            self._guarded.tally.allowed += self.read
        else:
            self._guarded.tally.count(self.verdict, self.action)

    def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = {"guardrail": self._guarded.name, "on": self.where, "verdict": self.verdict, "action": self.action}
        if self.why:
            found["why"] = self.why
        if self._guarded.monitor:
            found["mode"] = "monitor"
        if self._spans:
            found["spans"] = self._spans
        if self._more:
            found["more"] = self._more
        return found


class Guarded:
    """A guardrail behind its failure boundary: an exception or a missed budget is a refusal (`closed`) or a counted pass (`open`).

    turns: shared by all guardrails of the process, for long work. holds: it cannot follow a stream, which is therefore held. monitor: its
    verdicts are counted and recorded, and nothing is done. budget: seconds that one request, answer or piece of a stream may take.
    concerns: whether it reads a caller's requests; None: everybody's. reads: whose texts of a request the guardrail wants to see. label:
    what it gives to a request in which it finds something with the action `label`. fail_open: what it fails on passes.
    """

    def __init__(
        self,
        guardrail: Guardrail,
        fail_open: bool,
        on_failure: Callable[[str, str], None],
        turns: Turns | None = None,
        *,
        monitor: bool = False,
        budget: float = BUDGET,
        tally: Tally | None = None,
        concerns: Callable[[Principal], bool] | None = None,
        label: str = "",
    ) -> None:
        self.name = guardrail.name
        self.monitor, self.concerns, self.label = monitor, concerns, label
        self.tally = tally or Tally()
        self.budget_ns = int(budget * 1e9)
        self._turns = turns or Turns()
        self.holds = self._cannot_follow(guardrail)
        self.reads: frozenset[str] | None = getattr(guardrail, "reads", None)
        self._check_labelled: Callable[[Sequence[str], frozenset[str]], Maybe[Verdict]] | None = getattr(guardrail, "check_labelled", None)
        self.layered: bool = getattr(guardrail, "layer", None) is not None
        plain = self.reads is None and self._check_labelled is None and not self.layered
        self.trigger: str = getattr(guardrail, "trigger", "") if plain else ""
        self.triggered: bool = self.trigger != ""
        self.patterned: bool = hasattr(guardrail, "trigger")
        self.guardrail, self.fail_open, self._on_failure = guardrail, fail_open or monitor, on_failure
        if budget < SMALL_BUDGET:
            prepare: Callable[[], None] | None = getattr(guardrail, "prepare", None)
            if prepare is not None:
                prepare()

    def _cannot_follow(self, guardrail: Guardrail) -> bool:
        try:
            return guardrail.stream() is None
        except Exception:  # noqa: BLE001 - boundary: it is asked again for each stream, and denies then
            return False

    def done_with(self, verdict: str) -> str:
        """What is done after a verdict: pass, rewrite, block or hold."""
        if self.monitor:
            return "pass"
        if verdict == "error":
            return "pass" if self.fail_open else "block"
        return _DONE.get(verdict, "pass")

    def note(self, where: str, hash_body: Callable[[bytes], str]) -> Note:
        """For the audit record. where: request or response."""
        return Note(self, where, hash_body)

    def failed(self, error: Exception) -> Verdict:
        """The verdict of a guardrail that failed."""
        if isinstance(error, BudgetMissed):
            log.error("guardrail %s took longer than its budget of %g s", self.name, self.budget_ns * 1e-9)
            why = "It took longer than its budget."
        elif isinstance(error, EngineError):  # of a server or model that it asks: no defect that a traceback would show
            log.error("guardrail %s failed: %s", self.name, error)
            why = "It failed."
        else:
            log.error("guardrail %s failed: %r", self.name, error, exc_info=error)
            why = "It failed."
        self._on_failure(self.name, "open" if self.fail_open else "closed")
        return Verdict("error", self.name, why)

    def layer(self, principal: Principal, secret: Callable[[str], bytes], now: float) -> Layer | None:
        """See gateway.core.snapshot.Inspector. Raises GuardrailViolation."""
        try:
            made: Layer = self.guardrail.layer(principal, secret, now)  # type: ignore[attr-defined]
        except Exception as error:  # noqa: BLE001 - boundary: a guardrail that fails denies
            self.broken(error, None)
            return None
        return made

    def gives(self, verdict: Verdict) -> bool:
        """Whether a request gets the guardrail's label for this verdict. One that has failed, and may, has not seen what would give it."""
        return bool(self.label) and not self.monitor and (verdict.label or verdict.action == "error")

    def asked(self, texts: Sequence[str], layer: Layer | None, labels: frozenset[str]) -> Maybe[Verdict] | Steps[Verdict]:
        """What the guardrail itself answers, without the boundary around it. Raises whatever it raises."""
        if layer is not None:
            return layer.check(texts, labels)
        if labels and self._check_labelled is not None:
            return self._check_labelled(texts, labels)
        return self.guardrail.check(texts)

    def check(self, texts: Sequence[str], layer: Layer | None = None, labels: frozenset[str] = UNLABELLED) -> Maybe[Verdict]:
        """Counts only what is allowed; whoever acts on another verdict counts it. layer: reads the texts in the guardrail's place. labels:
        of the texts, for a guardrail that shows them to others."""
        began = perf_counter_ns()
        try:
            verdict: Any = self.asked(texts, layer, labels)
        except Exception as error:  # noqa: BLE001 - boundary: a guardrail that fails denies
            return self.failed(error)
        took = perf_counter_ns() - began
        tally = self.tally
        tally.ns += took
        if isinstance(verdict, Verdict):
            if took > self.budget_ns:
                missed = self.failed(BudgetMissed())
                return missed if verdict is ALLOW or not self.fail_open else verdict  # what it found, it found, though late
            if verdict is ALLOW:
                tally.allowed += 1
            return verdict
        return self._waited(verdict)

    def allowed(self, ns: int) -> None:
        """See gateway.core.snapshot.Inspector."""
        tally = self.tally
        tally.ns += ns
        tally.allowed += 1

    async def _waited(self, verdict: Awaitable[Verdict] | Steps[Verdict]) -> Verdict:
        try:
            if isinstance(verdict, Generator):
                found = await self._turns.run(self._timed(verdict))
            else:
                began = perf_counter_ns()
                found = await within(verdict, self.budget_ns * 1e-9)
                self.tally.ns += perf_counter_ns() - began
        except Exception as error:  # boundary: a failing guardrail denies
            if isinstance(error, GatehouseError) and error.interrupts:
                raise
            return self.failed(error)
        if found is ALLOW:
            self.tally.allowed += 1
        return found

    def _timed(self, steps: Steps[Verdict]) -> Steps[Verdict]:
        """Counts the processor's time in the guardrail, not other work in between. Raises BudgetMissed."""
        spent = 0
        while True:
            began = thread_time_ns()
            try:
                next(steps)
            except StopIteration as done:
                self.tally.ns += thread_time_ns() - began
                verdict: Verdict = done.value
                return verdict
            took = thread_time_ns() - began
            self.tally.ns += took
            spent += took
            if spent > self.budget_ns:
                raise BudgetMissed
            yield

    def stream(self, note: Note | None = None, text: int = 0) -> StreamMatcher | None:
        """A matcher behind the same boundary. note: takes what it finds in the text with this number."""
        if note is not None:
            note.read = True
        try:
            matcher = self.guardrail.stream()
        except Exception as error:  # noqa: BLE001 - boundary: a guardrail that fails denies
            self.broken(error, note)
            return _Passing()
        if matcher is None:
            return None
        return Watching(self, matcher, note, text) if self.monitor else GuardedMatcher(self, matcher, note, text)

    def broken(self, error: Exception, note: Note | None) -> None:
        """A matcher failed. Raises GuardrailViolation unless the fail mode is `open`."""
        verdict = self.failed(error)
        if note is not None:
            note.add("error", verdict.reason, ())
        if not self.fail_open:
            raise GuardrailViolation(UNREADABLE, code=self.name) from error


def all_triggered(guardrails: tuple[Inspector, ...]) -> bool:
    """Whether `Snapshot.prefilter` looks for the triggers of all of them. Their class is asked, not the port: that is a few loads. A tuple
    is read by its index, compiled; any other sequence takes an iterator."""
    return all(isinstance(guardrail, Guarded) and guardrail.triggered for guardrail in guardrails)


def all_allowed(guardrails: tuple[Inspector, ...], ns: int) -> None:
    """Counts what a scan for all their triggers has cleared. ns: its time, which counts for the first."""
    for guardrail in guardrails:
        if isinstance(guardrail, Guarded):
            guardrail.allowed(ns)
            ns = 0


class GuardedMatcher:
    """A stream's matcher behind the same boundary."""

    __slots__ = ("_feed", "_findings", "_matcher", "_note", "_owner", "_seen", "_text")

    def __init__(self, owner: Guarded, matcher: StreamMatcher, note: Note | None, text: int) -> None:
        self._owner, self._matcher, self._note, self._text = owner, matcher, note, text
        self._feed: Callable[[str], str] = matcher.feed
        self._findings: Sequence[Finding] = getattr(matcher, "findings", ())  # it grows
        self._seen = 0

    @property
    def held(self) -> str:
        return self._matcher.held

    def feed(self, text: str) -> str:
        return self._passed(text, False)

    def finish(self) -> str:
        return self._passed("", True)

    def _passed(self, text: str, final: bool) -> str:
        owner, matcher = self._owner, self._matcher
        held = matcher.held if owner.fail_open else ""
        began = perf_counter_ns()
        try:
            out = matcher.finish() if final else self._feed(text)
        except GuardrailViolation as error:
            self._found(matcher, error.message)
            raise
        except GatehouseError:
            raise
        except Exception as error:  # noqa: BLE001 - boundary: a guardrail that fails denies
            owner.broken(error, self._note)
            self._matcher = _Passing()  # it may have lost its place
            self._feed = self._matcher.feed
            return held + text
        took = perf_counter_ns() - began
        owner.tally.ns += took
        if took > owner.budget_ns:
            owner.broken(BudgetMissed(), self._note)
        if len(self._findings) != self._seen and self._note is not None:
            self._found(matcher, "")
        return out

    def _found(self, matcher: StreamMatcher, blocked: str) -> None:
        """blocked: the reason, if nothing may pass."""
        note = self._note
        if note is not None:
            found = self._findings
            verdict = "block" if blocked else getattr(matcher, "verdict", "rewrite")
            note.add(verdict, blocked or getattr(matcher, "reason", ""), found[self._seen :], self._text)
            self._seen = len(found)


class Watching:
    """The matcher of a guardrail that only monitors: the text passes at once, whatever is found in it."""

    __slots__ = ("_matcher", "_note", "_owner")

    def __init__(self, owner: Guarded, matcher: StreamMatcher, note: Note | None, text: int) -> None:
        self._owner, self._note = owner, note
        self._matcher: GuardedMatcher | None = GuardedMatcher(owner, matcher, note, text)

    @property
    def held(self) -> str:
        return ""

    def feed(self, text: str) -> str:
        self._watch(text, False)
        return text

    def finish(self) -> str:
        self._watch("", True)
        return ""

    def _watch(self, text: str, final: bool) -> None:
        if self._matcher is not None:
            try:
                _ = self._matcher.finish() if final else self._matcher.feed(text)
            except GuardrailViolation:  # it is noted; a guardrail that blocks reads no further
                self._matcher = None


class _Passing:
    """Replaces a matcher that could not be made, or has failed, when the fail mode is `open`."""

    @property
    def held(self) -> str:
        return ""

    def feed(self, text: str) -> str:
        return text

    def finish(self) -> str:
        return ""


async def within(waiting: Awaitable[T], seconds: float) -> T:
    """What is awaited, or BudgetMissed after so long. No task is needed: a Driver steps it (gateway.core.waiting)."""
    found: Signal[T] = Signal()

    async def asked() -> None:
        found.set(await waiting)

    def over(error: BaseException | None) -> None:
        if error is not None:
            found.fail(error)

    driver = Driver(asked(), over)
    driver.start()
    if found.done:
        return await found
    timer = Deadline(seconds, partial(driver.cancel, BudgetMissed()))
    try:
        return await found
    finally:
        timer.cancel()
        driver.cancel(BudgetMissed())
