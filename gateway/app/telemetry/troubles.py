"""What is wrong beside engines, the store and the configuration, for whoever looks at `gatehouse status` first: one line each, none while
all is well."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from gateway.core.ports import Change

LATELY: Final = 300.0
"""Seconds for which a guardrail that failed is told of."""
DAMAGE_SECONDS: Final = 86400.0
CRL_SOON: Final = 86400.0
MOST_FAILURES: Final = 1000
"""Failures of a guardrail that are counted; beyond it, `1000 or more` is said."""
CRL: Final = "identity.mtls.crl"

Found = tuple[str, str, str]
"""About what, its name ("": there is one), and what is wrong."""


class Figures(Protocol):
    """What workers have measured (gateway.app.workers.figures)."""

    def known(self, name: str) -> list[float]: ...


class Troubles:
    """found: says what is wrong in a part. limits, proofs: whether Redis answers about them, or
    is not asked about them by this process. measured: what
    authenticators measure. fault: why the audit log takes no records here, or None. damaged: when damage of it was last found here."""

    def __init__(
        self,
        found: Sequence[Callable[[], Iterator[Found]]],
        *,
        limits: Callable[[], bool],
        proofs: Callable[[], bool],
        fault: Callable[[], str | None],
        damaged: Callable[[], float],
        measured: Mapping[str, float],
        figures: Figures | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._found, self._limits, self._proofs, self._fault, self._damaged = found, limits, proofs, fault, damaged
        self._measured, self._figures, self._clock = measured, figures, clock
        self._failures: dict[tuple[str, str], deque[float]] = {}

    def heard(self, change: Change) -> None:
        """For the feed, which tells of workers' events too."""
        _, kind, payload = change
        if kind == "event" and payload["event"] == "guardrail_failed":
            key = (payload["target"], payload["fail_mode"])
            self._failures.setdefault(key, deque(maxlen=MOST_FAILURES)).append(self._clock())

    def view(self) -> list[dict[str, Any]]:
        return [{"about": about, "name": name, "reason": reason} for about, name, reason in self._all()]

    def _all(self) -> Iterator[Found]:
        for part in self._found:
            yield from part()
        yield from self._redis()
        yield from self._audit_log()
        yield from self._revocation_list()
        yield from self._guardrails()

    def _of_workers(self, gauge: str) -> list[float]:
        return [] if self._figures is None else self._figures.known(gauge)

    def _audit_log(self) -> Iterator[Found]:
        fault = self._fault()
        if fault is not None or 0.0 in self._of_workers("gatehouse_audit_accepting"):
            yield "audit_log", "", f"takes no records, so requests are refused: {fault or 'the log names the reason in each worker'}"
        damaged = max([self._damaged(), *self._of_workers("gatehouse_audit_damage_seconds")])
        if damaged > self._clock() - DAMAGE_SECONDS:
            yield "audit_log", "", f"damage was found at {day(damaged)}: run `gatehouse audit verify`"

    def _redis(self) -> Iterator[Found]:
        if not self._limits() or 0.0 in self._of_workers("gatehouse_limits_redis_up"):
            yield "redis", "limits", "does not answer; each limit's on_failure applies"
        if not self._proofs():
            yield "redis", "proofs", "does not answer; identity.dpop.on_failure applies"

    def _revocation_list(self) -> Iterator[Found]:
        ends = self._measured.get("crl")
        if self._measured.get("crl_refused"):
            before = "there is no other" if ends is None else f"the one read before counts until {day(ends)}"
            yield "revocation_list", CRL, f"the file cannot be used, as the log explains; {before}"
        elif ends is not None and ends - self._clock() < CRL_SOON:
            yield "revocation_list", CRL, f"{'is out of date since' if ends <= self._clock() else 'expires'} {day(ends)}"

    def _guardrails(self) -> Iterator[Found]:
        since = self._clock() - LATELY
        for (name, mode), times in list(self._failures.items()):
            while times and times[0] < since:
                times.popleft()
            if not times:
                del self._failures[name, mode]
                continue
            count = "once" if len(times) == 1 else f"{len(times)}{' or more' if len(times) == MOST_FAILURES else ''} times"
            what = "texts pass unchecked" if mode == "open" else "requests are refused"
            yield "guardrail", name, f"failed {count} in the last {LATELY / 60:g} minutes; {what} (fail_mode: {mode})"


def day(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))
