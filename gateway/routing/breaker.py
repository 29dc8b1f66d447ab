"""The circuit breaker of one endpoint: a pure state machine, driven by results and by the time passed in.

    state      event        next        when
    closed     failure      open        the consecutive failures reach the limit
    closed     trip         open        at once: the engine refuses connections, or hangs (a failed request, then a failed probe)
    open       due          half_open   the opening is over; each lasts twice as long, from open_for up to open_max
    half_open  admit        half_open   one probe request is let through, and no other until it has ended
    half_open  success      closed      the probe was answered, or its stream began
    half_open  failure      open        for longer
    half_open  neutral      half_open   the probe proved nothing (a client error, a cancellation): another one may go

Client errors and cancellations are neutral: neither success nor failure. Every change of state starts a new epoch, and a
result counts only in the epoch in which its request was admitted: an answer that was under way when the breaker
opened does not close it, and a late failure does not reopen it. An operator's `force` overrides all of this until it is lifted.
"""

from __future__ import annotations

from typing import Literal

from gateway.core.specs import BreakerSpec

State = Literal["closed", "open", "half_open"]
Forced = Literal["open", "closed"]


class Breaker:
    """Times are monotonic seconds, passed in. `state`: what the results say; `effective`: the same, unless an operator forces another."""

    __slots__ = ("epoch", "failures", "forced", "openings", "probing", "spec", "state", "until")

    def __init__(self, spec: BreakerSpec) -> None:
        self.spec = spec
        self.state: State = "closed"
        self.forced: Forced | None = None
        self.failures = 0
        self.openings = 0
        self.until = 0.0
        self.probing = False
        self.epoch = 0

    @property
    def effective(self) -> State:
        return self.forced or self.state

    @property
    def admits(self) -> bool:
        """Whether a request may go through now (half-open: only while no probe is under way)."""
        state = self.effective
        return state == "closed" or (state == "half_open" and not self.probing)

    def admitted(self) -> None:
        """A request was sent; in half-open it is the probe request."""
        if self.state == "half_open":
            self.probing = True

    def success(self, epoch: int) -> bool:
        """True when the state changed, as for all events below."""
        if epoch != self.epoch:
            return False
        self.failures = 0
        if self.state == "half_open":
            return self._enter("closed")
        return False

    def failure(self, epoch: int, now: float) -> bool:
        if epoch != self.epoch or self.state == "open":
            return False
        self.failures += 1
        if self.state == "half_open" or self.failures >= self.spec.failures:
            return self._open(now)
        return False

    def trip(self, now: float) -> bool:
        """The engine certainly refuses connections or hangs, so it opens at once, whatever the epoch."""
        return self.state != "open" and self._open(now)

    def neutral(self, epoch: int) -> bool:
        if epoch == self.epoch and self.state == "half_open":
            self.probing = False
        return False

    def due(self, now: float) -> bool:
        """Becomes half-open when the opening is over."""
        return self.state == "open" and now >= self.until and self._enter("half_open")

    def adopt(self, state: Literal["open", "closed"], until: float, openings: int) -> bool:
        """Takes over what another process of this gateway has learnt about the engine. until, openings: of its opening."""
        if state == "closed":
            self.failures = 0
            return self.state != "closed" and self._enter("closed")
        self.until, self.openings = until, openings
        return self.state != "open" and self._enter("open")

    def reset(self) -> bool:
        """Forgets everything: there is a new process behind the endpoint."""
        self.openings = 0
        self.failures = 0
        return self.state != "closed" and self._enter("closed")

    def _open(self, now: float) -> bool:
        if now - self.until > self.spec.open_max:
            self.openings = 0  # it has worked for long enough since the last opening: the next one is short again
        self.until = now + min(self.spec.open_for * 2.0 ** min(self.openings, 30), self.spec.open_max)
        self.openings += 1
        return self._enter("open")

    def _enter(self, state: State) -> bool:
        self.state = state
        self.epoch += 1
        self.probing = False
        self.failures = 0
        return True
