"""Retention of the audit log's closed segments: one process seals, compresses, archives and deletes them for all writers of a replica."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.app.audit.policy_texts import FOLDER as POLICIES
from gateway.app.audit.policy_texts import forget_texts
from gateway.app.events import Events
from gateway.app.limits.usage import UsageCounter
from gateway.audit.archive import Archive
from gateway.audit.checkpoint_copies import CheckpointCopy, checked
from gateway.audit.courier import Courier
from gateway.audit.crypto import Signer, load_signer
from gateway.audit.keeper import Keeper
from gateway.audit.signing_keys import KeyWatch
from gateway.audit.sinks import local_sink
from gateway.core.clock import Clock, SystemClock
from gateway.core.specs import AuditSpec, ConfigSpec
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.audit")

KEEP_SECONDS: Final = 5.0
"""Between two looks at closed segments."""
MOST_NAMED: Final = 3
"""Segments that one line of troubles names."""


class SignerInForce:
    """Call it: the signing key, also after it was replaced. Raises ConfigError when there is none at the start."""

    def __init__(self, state_dir: str) -> None:
        self._renew = KeyWatch(state_dir)
        self._signer = load_signer(state_dir)

    def __call__(self) -> Signer:
        self._signer = self._renew() or self._signer
        return self._signer


def archive_of(audit: AuditSpec, clock: Clock) -> tuple[Archive | None, tuple[CheckpointCopy, ...]]:
    """The archive, and the second places of checkpoints. Raises ConfigError with the path."""
    archive = None if audit.retention.archive is None else Archive(audit.retention.archive, clock)
    copies = []
    for number, wanted in enumerate(audit.checkpoint.copies):
        path = f"audit.checkpoint.copies[{number}]"
        checked(wanted, path, archive)
        copies.append(CheckpointCopy(wanted.folder or wanted.url or "archive", wanted, archive))
    return archive, tuple(copies)


class Keeping:
    """unsure: says why nothing may be taken away now, or "". Life: `start`, `aclose`. Raises ConfigError for settings that
    cannot be used."""

    def __init__(
        self,
        spec: ConfigSpec,
        writer: str,
        couriers: Sequence[Courier],
        usage: UsageCounter,
        events: Events,
        unsure: Callable[[], str],
    ) -> None:
        self._couriers, self._usage, self._events = couriers, usage, events
        clock = SystemClock()
        archive, copies = archive_of(spec.audit, clock)
        self.keeper = Keeper(
            local_sink(spec.audit, spec.state_dir, writer).directory,
            Path(spec.state_dir),
            spec.audit.retention,
            SignerInForce(spec.state_dir),
            clock,
            archive=archive,
            copies=copies,
            needed=self._needed,
            unsure=unsure,
        )
        self._clock, self._archives = clock, archive is not None
        self._spec, self._directory = spec, local_sink(spec.audit, spec.state_dir, writer).directory
        self._tasks = TaskOwner("audit segments")

    def start(self) -> None:
        self._tasks.every(KEEP_SECONDS, self.look, name="look")

    async def aclose(self) -> None:
        self.keeper.stop()
        await self._tasks.aclose()

    async def look(self) -> None:
        expired = self.keeper.expired
        for one in await asyncio.to_thread(self.keeper.look):
            self._events.record(one.event, one.target, one.detail, outcome=one.outcome)
        if self.keeper.expired > expired:
            await asyncio.to_thread(self._forget_texts)

    def _forget_texts(self) -> None:
        """The texts of policies that only records that were taken away name; with an archive, not as long as it must keep these."""
        archive = self._spec.audit.retention.archive
        kept = archive.lock_for if archive is not None else 0.0
        try:
            forget_texts(Path(self._spec.state_dir) / POLICIES, self._directory, self._clock.wall(), kept)
        except OSError as error:
            log.warning("old texts of policies could not be deleted, which is tried again: %s", error)

    def _needed(self, writer: str) -> int:
        """The oldest segment that a sink or the count of usage still has to read."""
        return min([self._usage.segment(writer), *(courier.segment(writer) for courier in self._couriers)])

    def troubles(self) -> Iterator[tuple[str, str, str]]:
        """For gateway.app.telemetry.troubles."""
        for courier in self._couriers:
            if courier.hangs or courier.fault is not None:
                yield "audit_sink", courier.name, courier.fault or "does not answer"
        for about, trouble in (("audit_archive", self.keeper.trouble), ("audit_checkpoint_copies", self.keeper.copy_trouble)):
            if trouble.reason is not None:
                yield about, "", trouble.reason
        if self.keeper.unsealed:
            yield (
                "audit_log",
                "",
                "closed segments cannot be sealed: "
                + ", ".join(f"{writer} {number}" for writer, number in sorted(self.keeper.unsealed)[:3]),
            )

    def collect(self) -> Iterable[Metric]:
        keeper = self.keeper
        yield GaugeMetricFamily("gatehouse_audit_unsealed_segments", "Closed segments that cannot be sealed", value=len(keeper.unsealed))
        yield CounterMetricFamily("gatehouse_audit_expired_segments", "Segments that were taken away", value=keeper.expired)
        if self._archives:
            oldest = keeper.oldest
            lag = 0.0 if oldest is None else max(0.0, self._clock.wall() - oldest)
            yield GaugeMetricFamily(
                "gatehouse_audit_archive_up", "Whether the archive takes segments", value=float(keeper.trouble.reason is None)
            )
            yield GaugeMetricFamily(
                "gatehouse_audit_archive_waiting_bytes", "Bytes of segments that are not archived yet", value=keeper.waiting
            )
            yield GaugeMetricFamily("gatehouse_audit_archive_lag_seconds", "Age of the oldest segment that is not archived yet", value=lag)
            yield CounterMetricFamily("gatehouse_audit_archived_segments", "Segments that were archived", value=keeper.archived)
        yield CounterMetricFamily(
            "gatehouse_audit_archive_failures", "Segments and copies of checkpoints that were not taken", value=keeper.failures
        )
