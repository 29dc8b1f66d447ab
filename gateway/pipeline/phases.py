"""Times the phases of an exchange, for the few exchanges that are sampled."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any, Final


class PhaseClock:
    """Is told the end of each phase. This class times nothing; most exchanges share one instance."""

    __slots__ = ()

    def mark(self, phase: str) -> None:
        """A phase has ended, and the next one begins."""

    def finish(self, histograms: Mapping[str, Any]) -> None:
        """The exchange is settled: hands each phase's microseconds to the histogram of its name."""


class SampledPhases(PhaseClock):
    """Times every phase of one exchange. started_ns: when its first began."""

    __slots__ = ("_marks",)

    def __init__(self, started_ns: int) -> None:
        self._marks: list[tuple[str, int]] = [("", started_ns)]

    def mark(self, phase: str) -> None:
        self._marks.append((phase, perf_counter_ns()))

    def finish(self, histograms: Mapping[str, Any]) -> None:
        self.mark("settle")
        for (_, before), (phase, at) in itertools.pairwise(self._marks):
            if phase in histograms:
                histograms[phase].observe((at - before) / 1000)


UNTIMED: Final = PhaseClock()
