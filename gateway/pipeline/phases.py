"""Times the phases of an exchange, for the few exchanges that are sampled or traced."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any, Final

from gateway.core.types import Headers, Peer
from gateway.pipeline.plane import DataPlane


class PhaseClock:
    """Is told the end of each phase. This class times nothing; most exchanges share one instance.

    trace: of a traced exchange (gateway.telemetry.tracing.Trace), else None. marks: the phases so far, each with its end in nanoseconds.
    """

    __slots__ = ("marks", "trace")

    def __init__(self) -> None:
        self.trace: Any = None
        self.marks: list[tuple[str, int]] = []

    def mark(self, phase: str) -> None:
        """A phase has ended, and the next one begins."""

    def finish(self, histograms: Mapping[str, Any]) -> None:
        """The exchange is settled: hands each phase's microseconds to the histogram of its name."""


class SampledPhases(PhaseClock):
    """Times every phase of one exchange. started_ns: when its first began."""

    __slots__ = ("_counted",)

    def __init__(self, started_ns: int, trace: Any = None, counted: bool = True) -> None:
        super().__init__()
        self.trace, self._counted = trace, counted
        self.marks.append(("", started_ns))

    def mark(self, phase: str) -> None:
        self.marks.append((phase, perf_counter_ns()))

    def finish(self, histograms: Mapping[str, Any]) -> None:
        self.mark("settle")
        if not self._counted:
            return  # the histograms are of a fair sample: what is traced because it was asked for is none
        for (_, before), (phase, at) in itertools.pairwise(self.marks):
            if phase in histograms:
                histograms[phase].observe((at - before) / 1000)


UNTIMED: Final = PhaseClock()


def clock_of(plane: DataPlane, headers: Headers, peer: Peer, started_ns: int) -> PhaseClock:
    """The clock of an exchange that begins, when `plane.timed()` says that it may need one."""
    trace = None if plane.sampler is None else plane.sampler.begin(headers.get(b"traceparent"), peer.trusted)
    return SampledPhases(started_ns, trace, plane.counts_phases) if plane.counts_phases or trace is not None else UNTIMED
