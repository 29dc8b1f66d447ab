"""Shadow traffic: a sample of a model's requests is also put to a candidate, whose answers nobody gets.

A request is mirrored once an engine of its model has answered it, as the engine got it: after guardrails have rewritten it. From then on
the mirrored request has nothing to do with the client's any more: it waits in a bounded queue, takes a slot of the candidate that nobody
else wants, has a deadline and a record of its own, and is charged to nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from time import monotonic, time
from typing import Any, Final
from weakref import WeakValueDictionary

from gateway.core.approvals import HEADER
from gateway.core.errors import AuditUnavailable, EngineTimeout, GatehouseError
from gateway.core.likeness import likeness
from gateway.core.ports import Attempt, AttemptResult
from gateway.core.rollouts import ShadowFigures, Side, class_of
from gateway.core.slices import in_slices
from gateway.core.snapshot import ModelEntry, Snapshot
from gateway.core.specs import ModelSpec
from gateway.core.specs.rollouts import ShadowSpec
from gateway.core.standing import Stop
from gateway.core.types import EventRecord, InferenceRequest, Principal, ResponseHead, Usage
from gateway.core.waiting import as_future
from gateway.pipeline.asking import granted
from gateway.pipeline.attempt import result_of
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.plane import DataPlane
from gateway.pipeline.taps import Room, Seen, TappedAttempt, failed

log = logging.getLogger("gatehouse.shadows")

KINDS: Final = frozenset({"chat", "completions", "embeddings", "rerank", "score", "classify"})
"""Operations whose requests are mirrored: those without a form or an effect."""
NO_ANSWER: Final = (0, 429, 503)
"""Statuses of an engine that has not answered, or had no room for the request."""
MOST_REQUEST: Final = 1024 * 1024
"""The largest request, in bytes, that is mirrored."""
MOST_ANSWER: Final = 256 * 1024
"""The largest answer, in bytes, that is compared."""
ROOM: Final = 16 * 1024 * 1024
"""The most bytes of answers that a process keeps for comparison."""
POLL: Final = 0.05
"""Seconds between two looks for a slot that no request needs."""
OPERATION: Final = "shadow"
"""The operation under which the candidate's metrics count these requests."""
_TOP: Final = 1 << 64
KeyOf = Callable[[InferenceRequest, Principal, bytes | None], int]


class Stopped(GatehouseError):
    """The caller or one of the models was stopped (gateway.core.standing). Says nothing about the engine."""


class Job:
    """One request to be mirrored. seen: how it was answered. read: the guardrails that have read it. until: monotonic seconds, from the end
    of that answer on."""

    __slots__ = ("principal", "read", "request", "request_id", "seen", "until")

    def __init__(self, request: InferenceRequest, principal: Principal, request_id: str, seen: Seen, read: Sequence[object]) -> None:
        self.request, self.principal, self.request_id, self.seen, self.read = request, principal, request_id, seen, read
        self.until = 0.0


class ShadowState:
    """The figures of one model and candidate; they outlive the configuration."""

    __slots__ = ("__weakref__", "figures", "queue")

    def __init__(self, candidate: str) -> None:
        self.figures = ShadowFigures(candidate)
        self.queue: deque[Job] = deque()


class Shadows:
    """All shadow traffic of a process. idle: whether a model has a free slot that no request needs, with this share of its slots to
    spare."""

    def __init__(self, plane: DataPlane, idle: Callable[[ModelEntry, float], bool]) -> None:
        self.plane, self.idle = plane, idle
        self.room = Room(ROOM)
        self.under_way: dict[Gathering, Callable[[], bool]] = {}
        """Mirrored requests that are at an engine, and whether each has been stopped since."""
        plane.standing.changed.append(self._reconsider)
        self._states: WeakValueDictionary[str, ShadowState] = WeakValueDictionary()

    def of(self, model: ModelSpec, key: KeyOf | None) -> Shadow | None:
        """The shadow of a model, with the figures that it had before; None if it has none. key: of requests that are sampled together;
        None: each by itself."""
        spec = model.shadow
        if spec is None:
            return None
        state = self._states.get(model.name)
        if state is None or state.figures.candidate != spec.model:
            state = self._states[model.name] = ShadowState(spec.model)
        return Shadow(self, model, spec, key, state)

    def _reconsider(self, source: str) -> None:
        """Something was stopped, or may go on."""
        for gathering, stopped in list(self.under_way.items()):
            if stopped():
                gathering.on_failed(Stopped("The mirrored request was stopped."))

    def figures(self) -> dict[str, ShadowFigures]:
        """The figures by model."""
        found = {}
        for name, state in sorted(self._states.items()):
            state.figures.waiting = len(state.queue)
            found[name] = state.figures
        return found


class Shadow:
    """The shadow of one model, as configured. Implements gateway.core.rollouts.Watch."""

    def __init__(self, shadows: Shadows, model: ModelSpec, spec: ShadowSpec, key: KeyOf | None, state: ShadowState) -> None:
        self._all, self._plane = shadows, shadows.plane
        self._model, self._spec, self._key, self._state = model.name, spec, key, state
        self._header: bytes | None = None
        if spec.key == "session":
            self._header = b"x-session-id"
        elif spec.key.startswith("header:"):
            self._header = spec.key[7:].lower().encode()
        self._below = round(spec.share * _TOP)

    # --- beside the client's request: nothing here waits or raises

    def watched(self, exchange: Exchange, attempt: Attempt) -> Attempt:
        request, principal = exchange.request, exchange.principal
        assert request is not None and principal is not None
        if exchange.upload is not None or request.operation not in KINDS or HEADER in exchange.headers or exchange.spent is not None:
            return attempt
        if request.unknown and exchange.entry is not None and exchange.entry.spec.engine_tools:
            return attempt  # what an engine does by itself has effects
        if not self._samples(exchange, request, principal):
            return attempt
        if request.size > MOST_REQUEST:
            self._state.figures.sampled += 1
            self._state.figures.drop("too_large")
            return attempt
        seen = Seen(self._all.room, MOST_ANSWER)
        read = () if exchange.entry is None else readers(exchange.entry, principal)
        job = Job(mirrored(request, self._spec.model), principal, exchange.request_id.decode(), seen, read)
        candidate = exchange.snapshot.models.get(self._spec.model)
        if candidate is not None and not covered(job, candidate):
            self._state.figures.sampled += 1
            self._state.figures.skip("guardrails")
            return attempt
        return TappedAttempt(attempt, request, seen, lambda seen: self._answered(job), self._closed)

    def _samples(self, exchange: Exchange, request: InferenceRequest, principal: Principal) -> bool:
        if self._key is None:
            given = exchange.request_id
        else:
            header = self._header
            session = exchange.headers.get(header) if header is not None and exchange.peer.trusted else None
            given = self._key(request, principal, session).to_bytes(8, "big")
        digest = blake2b(given, digest_size=8, key=self._model.encode()[:64]).digest()
        return int.from_bytes(digest, "big") < self._below

    def _closed(self, seen: Seen, result: AttemptResult) -> None:
        if not seen.ended:  # the client has left, or another attempt answers instead: there is nothing to compare with
            seen.left, seen.whole = True, False  # nothing more of it is kept
            seen.drop()

    def _answered(self, job: Job) -> None:
        """An engine of the model has answered, or failed."""
        if job.seen.left:
            return
        state, spec = self._state, self._spec
        figures = state.figures
        figures.sampled += 1
        if job.seen.error is not None or job.seen.status in NO_ANSWER:
            self._give_up(job, figures.skip, "unanswered")
        elif len(state.queue) >= spec.queue or self._plane.closing:
            self._give_up(job, figures.drop, "queue_full")
        else:
            job.until = monotonic() + spec.timeout
            state.queue.append(job)
            if figures.running < spec.concurrency:
                figures.running += 1
                try:
                    self._plane.tasks.spawn(self._run(), name=f"shadow of {self._model}")
                except RuntimeError:  # the process ends
                    figures.running -= 1

    def _give_up(self, job: Job, count: Callable[[str], None], reason: str) -> None:
        job.seen.drop()
        count(reason)

    # --- in a task of its own

    async def _run(self) -> None:
        state = self._state
        try:
            while state.queue and state.figures.running <= self._spec.concurrency:
                job = state.queue.popleft()
                try:
                    await self._put(job)
                except Exception:  # boundary: whatever happens to a mirrored request concerns no client
                    log.exception("a mirrored request of %s has failed", self._model)
                    state.figures.drop("failed")
                finally:
                    job.seen.drop()
        finally:
            state.figures.running -= 1

    async def _put(self, job: Job) -> None:
        """Puts one request to the candidate, unless it must not be or cannot be in time."""
        figures, plane = self._state.figures, self._plane
        while True:
            snapshot = plane.current()
            entry = snapshot.models.get(self._spec.model)
            if entry is None or (why := self._barred(snapshot, entry, job)):
                figures.skip("no_model" if entry is None else why)
                return
            if monotonic() >= job.until:
                figures.drop("late")
                return
            if self._all.idle(entry, self._spec.spare):
                break
            await asyncio.sleep(POLL)
        if (labels := snapshot.labels) is not None:  # it may have come under other rules
            job.request.labels |= labels.of_tenant(job.principal.tenant) | labels.of_model(self._model) | labels.of_model(entry.name)
        principal = Principal(OPERATION, job.principal.tenant, "internal", ("*",), "batch")
        waiting = asyncio.timeout(job.until - monotonic())
        try:
            async with waiting:
                attempt = await granted(entry, job.request, principal, (), job.until)
        except TimeoutError:
            figures.drop("late")
            return
        except GatehouseError as error:
            figures.skip(error.code or error.type)
            return
        await self._sent(snapshot, entry, attempt, job)

    def _barred(self, snapshot: Snapshot, entry: ModelEntry, job: Job) -> str:
        """Why the candidate must not get the request; "" where it may."""
        model, request = snapshot.models.get(self._model), job.request
        if any(self._stops(entry, job)):
            return "stopped"
        if model is None or model.spec.shadow is None or model.spec.shadow.model != self._spec.model:
            return "removed"
        if entry.spec.max_tokens is not None and request.max_tokens > entry.spec.max_tokens:
            return "max_tokens"
        return "" if covered(job, entry) else "guardrails"

    def _stops(self, entry: ModelEntry, job: Job) -> list[Stop]:
        standing = self._plane.standing
        if not standing.active:
            return []
        found = (standing.of_model(entry.name, self._model, job.request.asked), standing.of(job.principal))
        return [stop for stop in found if stop is not None]

    async def _sent(self, snapshot: Snapshot, entry: ModelEntry, attempt: Attempt, job: Job) -> None:
        request_id = self._plane.next_id()
        detail: dict[str, Any] = {"shadow_of": job.request_id, "request_id": request_id.decode(), "model": self._model}
        detail |= {"principal": job.principal.id, "endpoint": attempt.endpoint_name}
        if job.request.labels:
            detail["labels"] = sorted(job.request.labels)
        result, seen = AttemptResult.NEUTRAL, Seen(self._all.room, MOST_ANSWER)
        try:
            try:
                await self._recorded(snapshot, "request_mirrored", detail, job)
            except AuditUnavailable:
                self._state.figures.skip("audit")
                return
            self._state.figures.mirrored += 1
            try:
                result = await self._answer(snapshot, entry, attempt, job, seen, request_id)
            finally:
                if not seen.ended:
                    seen.end(EngineTimeout("The gateway has stopped."))
                attempt.close(result)
            if isinstance(seen.error, Stopped):
                self._state.figures.skip("stopped")
            else:
                await self._compare(entry, job, seen, detail)
            try:
                await self._recorded(snapshot, "mirror_answered", detail, job, "ok" if seen.status == 200 else "failed")
            except AuditUnavailable:
                log.warning("the answer of %s to a mirrored request is not in the audit log", entry.name)
        finally:
            seen.drop()
            attempt.close(AttemptResult.NEUTRAL)  # unless it is closed already

    async def _recorded(self, snapshot: Snapshot, event: str, detail: dict[str, Any], job: Job, outcome: str = "ok") -> None:
        """Returns once it is durable. Raises AuditUnavailable."""
        record = EventRecord(time(), event, "gatehouse", self._spec.model, outcome, dict(detail), (job.principal.tenant,))
        ticket = snapshot.audit.event(record)
        if not ticket.done:
            await as_future(ticket)
        elif ticket.error is not None:
            raise ticket.error

    async def _answer(
        self, snapshot: Snapshot, entry: ModelEntry, attempt: Attempt, job: Job, seen: Seen, request_id: bytes
    ) -> AttemptResult:
        """Sends it and gathers the answer until its deadline. How the engine fared, for its breaker."""
        request = job.request
        request.foreign = request.api.dialect != "" and request.api.dialect not in attempt.apis
        salt = b"" if attempt.salting == "none" else snapshot.salts.salt(job.principal, entry.spec.prefix_sharing)
        path, body = request.api.target(request, attempt.upstream_model, salt if attempt.salting != "header" else b"")
        head = b"POST %b%b HTTP/1.1\r\n%b%bx-request-id: %b\r\nx-gatehouse-priority: batch\r\nx-gatehouse-deadline-ms: %d\r\n%b" % (
            attempt.client.base_path,
            path,
            request.content,
            b"x-gatehouse-cache-salt: %b\r\n" % salt if salt and attempt.salting == "header" else b"",
            request_id,
            max(1, int((job.until - monotonic()) * 1000)),
            attempt.request_headers,
        )
        seen.begin(request.foreign)
        gathering = Gathering(seen, attempt if request.stream else None)
        self._all.under_way[gathering] = lambda: any(stop.interrupts for stop in self._stops(entry, job))
        call = attempt.client.send(head, body, gathering, attempt.total_timeout, attempt.total_timeout)
        try:
            async with asyncio.timeout(max(0.0, job.until - monotonic())):
                await gathering.done
        except TimeoutError:
            seen.end(EngineTimeout("The candidate took longer than the mirrored request may."))
            return AttemptResult.NEUTRAL
        finally:
            del self._all.under_way[gathering]
            call.cancel()
        if isinstance(seen.error, Stopped):
            return AttemptResult.NEUTRAL
        if seen.error is not None:
            return AttemptResult.REFUSED if getattr(seen.error, "refused", False) else AttemptResult.FAILURE
        return result_of(seen.head)

    # --- what came of it

    async def _compare(self, entry: ModelEntry, job: Job, seen: Seen, detail: dict[str, Any]) -> None:
        """Counts both answers, and how alike they are."""
        figures, compares = self._state.figures, self._spec.compare
        ours, _ = await note(figures.model, job.request, job.seen, compares)
        theirs, usage = await note(figures.shadow, job.request, seen, compares)
        seconds = seen.ended - seen.began
        entry.meter.record(OPERATION, seen.status or 504, "failed" if failed(seen) else "ok", 0.0, seconds, usage)
        detail |= {"status": seen.status, "duration_ms": round(seconds * 1000, 3)}
        if usage is not None:
            detail |= {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        if compares and ours and len(ours) == len(theirs):
            alike = sum(likeness(one, other) for one, other in zip(ours, theirs, strict=True)) / len(ours)
            figures.alike(alike)
            detail["likeness"] = round(alike, 4)


class Gathering:
    """Receiver of the candidate's answer. attempt: to be told when a stream's first byte comes."""

    __slots__ = ("_attempt", "_seen", "done")

    def __init__(self, seen: Seen, attempt: Attempt | None) -> None:
        self._seen, self._attempt = seen, attempt
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_head(self, head: ResponseHead) -> None:
        self._seen.head = head

    def on_body(self, data: bytes) -> None:
        self._seen.came(data)
        if self._attempt is not None and self._seen.status == 200:
            self._attempt.answering()
            self._attempt = None

    def on_end(self) -> None:
        self._ended(None)

    def on_failed(self, error: Exception) -> None:
        self._ended(error)

    def _ended(self, error: Exception | None) -> None:
        if not self._seen.ended:
            self._seen.end(error)
        if not self.done.done():
            self.done.set_result(None)

    def stranded(self) -> bool:
        return True


def mirrored(request: InferenceRequest, model: str) -> InferenceRequest:
    """The request as it is now, for another model. What happens to the first one later does not change it."""
    made = InferenceRequest(
        request.api,
        request.path,
        request.model,
        dict(request.fields),
        request.view,
        request.stream,
        request.include_usage,
        request.prompt_tokens,
        request.max_tokens,
        request.content,
    )
    made.labels, made.choices, made.size, made.asked = request.labels, request.choices, request.size, request.asked
    made.api.rename(made, model)
    return made


def readers(entry: ModelEntry, principal: Principal) -> Sequence[object]:
    """The guardrails that read a caller's requests to a model."""
    seen = entry.seen_by(principal) if entry.scoped else entry
    return (*seen.request_guardrails, *seen.request_tools)


def covered(job: Job, candidate: ModelEntry) -> bool:
    """Whether the guardrails that now read the caller's requests to the candidate have all read the one that is to be mirrored."""
    return all([guardrail in job.read for guardrail in readers(candidate, job.principal)])


async def note(side: Side, request: InferenceRequest, seen: Seen, texts: bool) -> tuple[list[str], Usage | None]:
    """Counts an answer; its texts and its usage."""
    try:
        return await _noted(side, request, seen, texts)
    finally:
        side.answers += 1  # last: a scrape while it is read must not take it for one that went well


async def _noted(side: Side, request: InferenceRequest, seen: Seen, texts: bool) -> tuple[list[str], Usage | None]:
    if failed(seen):
        side.errors += 1
        return [], None
    side.latency[class_of(seen.ended - seen.began)] += 1
    if seen.status != 200:
        side.refusals += 1
        return [], None
    if request.stream:
        side.first[class_of(seen.first - seen.began)] += 1
    if not seen.whole:
        return [], None
    try:
        usage, _, found, refused = await in_slices(seen.read(request, texts))
    except GatehouseError:
        side.errors += 1
        return [], None
    side.refusals += refused
    if usage is not None:
        side.prompt_tokens += usage.prompt_tokens
        side.completion_tokens += usage.completion_tokens
        if usage.completion_tokens:
            side.seconds += seen.ended - (seen.first if request.stream else seen.began)
    return found, usage
