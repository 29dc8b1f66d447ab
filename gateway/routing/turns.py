"""Which worker may send the probe request of a half-open breaker: one at a time. Pure, but for the messages that it sends.

A worker has the turn until the breaker closes or opens anew. If it does not use it, the turn is taken back after TURN_SECONDS, or sooner
when requests wait in another worker, and goes on to the next one. It is given on only when the worker has confirmed that no probe
request is under way there, or when that worker is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from gateway.core.messages import Message
from gateway.routing import mirror_messages as m
from gateway.routing.endpoints import Endpoint

TURN_SECONDS: Final = 0.25
ANSWER_SECONDS: Final = 1.0
"""How long a worker may take to return its turn: one that hangs does not keep the others from trying."""
ASKED_SECONDS: Final = 0.02
"""How long a worker may use its turn while requests wait in another one."""


class _Turn:
    """since: when it was given or, once the worker was asked to return it (taken_back), when that was."""

    __slots__ = ("since", "taken_back", "worker")

    def __init__(self, worker: str, since: float) -> None:
        self.worker, self.since = worker, since
        self.taken_back = False


class Turns:
    """tell: (worker, message)."""

    def __init__(self, tell: Callable[[str, Message], None], now: Callable[[], float]) -> None:
        self._tell, self._now = tell, now
        self._turns: dict[str, _Turn] = {}
        self._had: dict[str, dict[str, float]] = {}
        """Endpoint -> worker -> when it last got the turn."""

    def mind(self, endpoint: Endpoint, workers: Collection[str], waiting: Collection[str] = ()) -> None:
        """Gives the turn out where there is none, takes it back where its time is over. waiting: those that need it most."""
        if endpoint.breaker.state == "closed":
            self.forget(endpoint.name)
            return
        turn = self._turns.get(endpoint.name)
        if turn is None or turn.worker not in workers:
            self._give(endpoint, workers, waiting)
        elif turn.taken_back:
            if self._now() - turn.since >= ANSWER_SECONDS:
                self._give(endpoint, workers, waiting)
        elif endpoint.breaker.state == "half_open" and len(workers) > 1:
            asked = not waiting or turn.worker in waiting
            if self._now() - turn.since >= (TURN_SECONDS if asked else ASKED_SECONDS):
                turn.taken_back, turn.since = True, self._now()
                self._tell(turn.worker, m.BreakerTurn(endpoint.name, False))

    def returned(self, endpoint: Endpoint, worker: str, used: bool, workers: Collection[str], waiting: Collection[str] = ()) -> None:
        """A worker has answered: it uses its turn, or gives it back."""
        turn = self._turns.get(endpoint.name)
        if turn is None or turn.worker != worker or not turn.taken_back:
            return
        if used:
            turn.taken_back, turn.since = False, self._now()
        else:
            del self._turns[endpoint.name]
            self.mind(endpoint, workers, waiting)

    def repeat(self, worker: str, only: Collection[str] | None = None) -> None:
        """Tells a worker again of the turns that it has; only: at these endpoints."""
        for name in self._turns if only is None else only:
            if (turn := self._turns.get(name)) is not None and turn.worker == worker and not turn.taken_back:
                self._tell(worker, m.BreakerTurn(name, True))

    def gone(self, known: Callable[[str], object]) -> None:
        """Forgets endpoints that are not there any more. known: None for their names."""
        for endpoint in [name for name in self._had if known(name) is None]:
            del self._had[endpoint]

    def forget(self, endpoint: str) -> None:
        """The breaker has changed over all workers, which ends every turn."""
        self._turns.pop(endpoint, None)

    def _give(self, endpoint: Endpoint, workers: Collection[str], waiting: Collection[str]) -> None:
        """To one where requests wait, if there are any; of those, to the one that has not had it for longest."""
        self._turns.pop(endpoint.name, None)
        had = self._had[endpoint.name] = {name: at for name, at in self._had.get(endpoint.name, {}).items() if name in workers}
        worker = min(workers, key=lambda name: (name not in waiting, had.get(name, 0.0)), default=None)
        if worker is not None:
            had[worker] = self._now()
            self._turns[endpoint.name] = _Turn(worker, self._now())
            self._tell(worker, m.BreakerTurn(endpoint.name, True))
