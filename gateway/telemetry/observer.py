"""What becomes of settled requests beside the audit log: lines in the process's log, and traces.

A request's path only decides whether anybody wants to know of it, and puts its record into a bounded queue. A thread of its own writes
the lines and hands on what is traced to a second one, which sends: a receiver that hangs delays no line. Between them is a bounded queue,
too; what does not fit is dropped and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Protocol

from msgspec.structs import replace
from prometheus_client.core import CounterMetricFamily, Metric

from gateway.core.types import OutcomeRecord, ResponseHead
from gateway.telemetry.tracing import Trace, of_header

log = logging.getLogger("gatehouse.requests")
FAILED: Final = ("failed", "timeout")
"""Outcomes that are our fault or an engine's."""
MOST: Final = 8192
"""Requests that wait for a thread."""
WAKE: Final = 1024
"""So many wake it before its time."""
PHASES: Final = b"x-gatehouse-phases"
"""The header in which a sidecar tells the phases of a traced request (engines/sidecar/http.py)."""
PERIOD: Final = 1.0
"""Seconds between two rounds."""
SENT_AT_ONCE: Final = 512
"""Requests whose traces are given to the receiver at once."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One settled request. trace: None where it is only logged. marks: the ends of its phases in nanoseconds, after its beginning.
    phases: what its engine says of itself, as it came (`x-gatehouse-phases`)."""

    record: OutcomeRecord
    trace: Trace | None
    marks: list[tuple[str, int]]
    phases: bytes = b""


class SpanSink(Protocol):
    """Where traces go. Both methods may block, within their own deadline."""

    def send(self, traced: list[Seen]) -> int:
        """Sends what it is given; returns how many requests did not arrive."""
        ...

    def hurry(self) -> None:
        """Before the process ends: what does not arrive is not sent again."""
        ...

    def close(self) -> None: ...


ROUNDED: Final = 0.001
"""Milliseconds to which a record's duration is rounded."""


class RequestLog:
    """Says which requests get a line, and writes it. which: `none`, `slow`, `failed` or `all`. slow: from so many milliseconds on."""

    def __init__(self, which: str, slow: float) -> None:
        self._which, self._slow = which, slow
        self.calm = -1.0 if which == "all" else inf if which == "none" else slow
        """Requests that took fewer milliseconds, and did not fail, are of no interest."""

    def wants(self, record: OutcomeRecord) -> bool:
        if self._which == "all":
            return True
        slow = record.duration_ms >= self._slow
        return (slow or failed(record)) if self._which == "failed" else slow and self._which == "slow"

    def write(self, record: OutcomeRecord, trace: str) -> None:
        """One line: the request's facts, no text of it. A failed or slow one is a warning."""
        slow = record.duration_ms >= self._slow
        level = logging.WARNING if slow or failed(record) else logging.INFO
        log.log(level, "%s", line_of(record, slow), extra={"request": facts_of(record, slow, trace)})


class Observer:
    """Life: `start`, `settled` for each request, `close`. traces: where they go, or None. Its counts outlive it: `counts` is given on.
    traced: is told of each request that has a trace, with its 32 digits; in the thread."""

    def __init__(
        self,
        requests: RequestLog,
        traces: SpanSink | None,
        counts: dict[str, int],
        traced: Callable[[OutcomeRecord, str], None] = lambda record, trace: None,
    ) -> None:
        self._requests, self._traces, self.counts, self._traced = requests, traces, counts, traced
        self._calm = requests.calm
        self.calm = (requests.calm - ROUNDED) / 1000
        """Seconds: nobody wants to know of a request that went well, took less and has no trace, so `settled` need not be called for it."""
        self._queue: deque[tuple[OutcomeRecord, Any, bytes | None, bytes]] = deque()
        self._wake, self._ended = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._outbox: deque[Seen] = deque()
        self._filled, self._last = threading.Event(), False
        """Whether there is something to send, and whether nothing more will come."""
        self._sender = None if traces is None else threading.Thread(target=self._send, args=(traces,), name="traces", daemon=True)

    def start(self) -> None:
        self._thread.start()
        if self._sender is not None:
            self._sender.start()

    def settled(self, record: OutcomeRecord, clock: Any, header: bytes | None, head: ResponseHead | None = None) -> None:
        """Called on the request's path: keeps its record if anybody wants it. clock: with `trace` and `marks`. header: the caller's
        `traceparent`. head: of the answer of the last engine that was asked, where there is one."""
        if clock.trace is None:
            if record.duration_ms < self._calm and record.status < 500 and record.outcome not in FAILED:
                return  # as nearly all do: without a further call
            if not self._requests.wants(record) and (self._traces is None or not failed(record)):
                return
        if len(self._queue) >= MOST:
            self.counts["dropped"] += 1
            return
        if record.text is not None:  # nobody here reads it, and a receiver that is away would have thousands of answers kept
            record = replace(record, text=None)
        phases = head.get(PHASES) if head is not None and clock.trace is not None else None
        self._queue.append((record, clock, header, phases or b""))
        if len(self._queue) == WAKE:
            self._wake.set()

    def close(self, seconds: float = 5.0) -> None:
        """Ends the threads when they have written and sent what waits, or after so many seconds. May block."""
        until = time.monotonic() + seconds
        self._ended = True
        if self._traces is not None:
            self._traces.hurry()
        self._wake.set()
        self._thread.join(seconds)
        if self._sender is not None:
            self._sender.join(max(0.0, until - time.monotonic()))

    # --- the threads

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(PERIOD)
            self._wake.clear()
            self._round()
        self._round()
        self._last = True
        self._filled.set()

    def _round(self) -> None:
        traced: list[Seen] = []
        while self._queue:
            record, clock, header, phases = self._queue.popleft()
            trace = clock.trace
            if trace is None and self._traces is not None and failed(record):
                trace = of_header(header)
            if self._requests.wants(record):
                self._requests.write(record, "" if trace is None else trace.trace)
            if trace is not None and self._traces is not None:
                self._traced(record, trace.trace)
                traced.append(Seen(record, trace, clock.marks, phases))
        if traced:
            room = MOST - len(self._outbox)
            self.counts["dropped"] += max(0, len(traced) - room)
            self._outbox.extend(traced[:room])
            self._filled.set()

    def _send(self, traces: SpanSink) -> None:
        last = False
        while not last:
            self._filled.wait()
            self._filled.clear()
            last = self._last
            while self._outbox:
                traced = [self._outbox.popleft() for _ in range(min(SENT_AT_ONCE, len(self._outbox)))]
                lost = self._sent(traced, traces)
                self.counts["dropped"] += lost
                self.counts["sent"] += len(traced) - lost
        traces.close()

    def _sent(self, traced: list[Seen], traces: SpanSink) -> int:
        """How many did not arrive."""
        try:
            return traces.send(traced)
        except Exception:  # boundary: a defect in telemetry costs telemetry alone
            log.exception("%d traces could not be sent", len(traced))
            return len(traced)


def failed(record: OutcomeRecord) -> bool:
    """Whether it is our fault or an engine's; refusals and clients that leave are not."""
    return record.status >= 500 or record.outcome in FAILED


def facts_of(record: OutcomeRecord, slow: bool, trace: str) -> dict[str, Any]:
    """What a line in JSON has beside its message; empty values are left out."""
    found: dict[str, Any] = {
        "request_id": record.request_id,
        "trace_id": trace,
        "status": record.status,
        "outcome": record.outcome,
        "code": record.code,
        "operation": record.operation,
        "model": record.model,
        "endpoint": record.endpoint,
        "tenant": record.tenant,
        "principal": record.principal,
        "attempts": record.attempts,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "duration_ms": record.duration_ms,
        "first_ms": record.first_ms,
        "route": record.route,
        "slow": slow,
    }
    return {name: value for name, value in found.items() if value not in ("", 0, False)}


def line_of(record: OutcomeRecord, slow: bool) -> str:
    """The message: `93b8a52c-2f0c-4c6e-9d6b-00000000001f chat demo-chat 200 ok 1234.5 ms`."""
    words = [record.request_id, record.operation or "-", record.model or "-", str(record.status), record.outcome]
    if record.code:
        words.append(record.code)
    return f"{' '.join(words)} {record.duration_ms:.1f} ms{', slow' if slow else ''}"


def collector(counts: dict[str, int]) -> Callable[[], Iterable[Metric]]:
    """For a scrape."""

    def collect() -> Iterable[Metric]:
        found = CounterMetricFamily("gatehouse_traces", "Traced or logged requests, by what became of them", labels=["result"])
        for result, count in counts.items():
            found.add_metric([result], count)
        yield found

    return collect
