"""How traffic moves from an engine's old process to its new one: pure decisions from the time and what was observed.

    observed                                  decision
    the new process has ended                 back
    it failed more requests than allowed      back
    the old process has ended                 done: the new one has proved itself more than a process that is gone
    the step's time is not over               stay
    it is over, another step follows          moved to its share
    it is over, no step follows               done

A step without requests ends when its time is over, so an idle engine can be replaced too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gateway.core.specs import RolloutSpec

Decision = Literal["stay", "moved", "done", "back"]


@dataclass(frozen=True, slots=True)
class Observed:
    """What a decision is based on. now: monotonic seconds. lost: why the new process has ended, None while it runs."""

    now: float
    failures: int = 0
    requests: int = 0
    lost: str | None = None
    old_alive: bool = True


class ShiftPlan:
    """The steps of one engine. `share` is what the new process gets, `until` when the next decision is due."""

    def __init__(self, spec: RolloutSpec, now: float) -> None:
        self._spec = spec
        self.step = 0
        """How many steps have begun."""
        self.share = 0.0
        self.since = self.until = now
        self.reason = ""
        """Why it was rolled back."""

    def decide(self, seen: Observed) -> Decision:
        """Decides, and updates `share`, `step` and `until` accordingly."""
        spec = self._spec
        if seen.lost is not None:
            return self._back(f"its new process ended: {seen.lost}")
        if seen.failures > spec.max_failures:
            return self._back(f"{seen.failures} of {seen.requests} requests to its new process failed")
        if not seen.old_alive:
            return "done"
        if seen.now < self.until:
            return "stay"
        if self.step == len(spec.steps):
            return "done"
        self.share = spec.steps[self.step]
        self.step += 1
        self.since, self.until = seen.now, seen.now + spec.step_seconds
        return "moved"

    def _back(self, reason: str) -> Decision:
        self.reason, self.share = reason, 0.0
        return "back"

    def view(self) -> dict[str, Any]:
        """The steps as operators see them."""
        return {"share": self.share, "step": self.step, "steps": len(self._spec.steps)}
