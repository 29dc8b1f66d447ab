"""The sidecar's counters: batches, rows, tokens, elements, seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from engines.onnx.text import Tokens
from engines.sidecar.batcher import Unit

WINDOW = 10.0
"""Seconds over which tokens per second are averaged."""
MAX_MARKS = 4096


class Stats:
    """Counters; changed only on the event loop."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.tokens = 0
        self.seconds = 0.0
        self.element_count = 0
        self._marks: deque[tuple[float, int]] = deque(maxlen=MAX_MARKS)

    def batch(self, units: Sequence[Unit], seconds: float, now: float) -> None:
        """Counts a batch that was run."""
        tokens = sum(len(unit.payload.ids) for unit in units if isinstance(unit.payload, Tokens))
        self.batches += 1
        self.rows += sum(unit.rows for unit in units)
        self.tokens += tokens
        self.seconds += seconds
        if tokens:
            self._marks.append((now, tokens))

    def elements(self, count: int) -> None:
        """Counts the tensor elements of a request."""
        self.element_count += count

    def tokens_per_second(self, now: float) -> float:
        """Tokens read per second, over the last seconds."""
        while self._marks and self._marks[0][0] < now - WINDOW:
            self._marks.popleft()
        if not self._marks:
            return 0.0
        return sum(tokens for _, tokens in self._marks) / max(1.0, now - self._marks[0][0])

    def render(self, queue: int) -> str:
        """Lines of the Prometheus text format."""
        counters = (
            ("batches_total", self.batches, "batches run"),
            ("batch_rows_total", self.rows, "rows in those batches"),
            ("batch_seconds_total", round(self.seconds, 6), "seconds spent in them"),
            ("tokens_total", self.tokens, "tokens read"),
            ("elements_total", self.element_count, "tensor elements received"),
        )
        lines = []
        for name, value, text in counters:
            lines += [f"# HELP gatehouse_onnx_{name} {text}", f"# TYPE gatehouse_onnx_{name} counter", f"gatehouse_onnx_{name} {value}"]
        lines += ["# HELP gatehouse_onnx_queue requests waiting", "# TYPE gatehouse_onnx_queue gauge", f"gatehouse_onnx_queue {queue}", ""]
        return "\n".join(lines)
