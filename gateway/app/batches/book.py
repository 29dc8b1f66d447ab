"""Batches in the process that has the store: made, shown and cancelled for clients and for operators.
The work on them is gateway.app.batches.work."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.app.batches.creators import KINDS
from gateway.core.batches import BATCH_PREFIX, ENDPOINTS, MIN_EXPIRY, BatchRecord, Creator, reached
from gateway.core.clock import Entropy, SystemEntropy
from gateway.core.conversations import owner_of
from gateway.core.errors import GatehouseError, PermissionDenied, RequestError
from gateway.core.specs.batches import BatchesSpec, FilesSpec
from gateway.core.types import Peer, Principal
from gateway.store.batches import StoredBatches
from gateway.store.files import StoredFiles

STATES: Final = ("validating", "in_progress", "finalizing", "cancelling", "completed", "failed", "expired", "cancelled")
LINES: Final = ("completed", "failed", "deferred", "repeated", "unknown")
MOST_METADATA: Final = 16
MOST_KEY: Final = 64
MOST_VALUE: Final = 512
FIELDS: Final = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
Record = Callable[..., None]


class BatchBook:
    """Implements gateway.core.batches.BatchDesk and the admin API's port. record: (event, target, detail, actor=, outcome=) for the audit
    log. made: called when there is a new one."""

    def __init__(
        self,
        settings: BatchesSpec,
        files_settings: FilesSpec,
        kept: StoredBatches,
        files: StoredFiles,
        record: Record,
        entropy: Entropy | None = None,
    ) -> None:
        self._settings, self._files_settings, self._kept, self._files, self._record = settings, files_settings, kept, files, record
        self._entropy: Entropy = entropy or SystemEntropy()
        self.made: Callable[[], None] = lambda: None
        self.counts: dict[str, int] | None = None
        """By state; None until they could be counted, and while they cannot be."""
        self.lines = dict.fromkeys(LINES, 0)
        self.running: Callable[[], int] = lambda: 0

    # --- for clients

    def _reached(self, owner: str) -> str | None:
        return reached(self._files_settings, owner)

    async def create(
        self, principal: Principal, peer: Peer, wanted: Mapping[str, Any], began: float, labels: Collection[str] = ()
    ) -> BatchRecord:
        return await self.make(Creator.of_batch(principal, peer, labels), wanted, began)

    async def make(self, creator: Creator, wanted: Mapping[str, Any], began: float | None) -> BatchRecord:
        """Raises as `create`."""
        if creator.kind != "api_key" and creator.kind not in KINDS:
            raise PermissionDenied(f"A batch cannot be made with a credential of the kind {creator.kind}: use an API key.")
        if unknown := sorted(wanted.keys() - set(FIELDS)):
            raise RequestError(f"There is no field {unknown[0][:64]!r}; known are {', '.join(FIELDS)}.", param=unknown[0][:64])
        endpoint, source = wanted.get("endpoint"), wanted.get("input_file_id")
        if endpoint not in ENDPOINTS:
            raise RequestError(f"endpoint is one of {', '.join(ENDPOINTS)}.", param="endpoint")
        if not isinstance(source, str):
            raise RequestError("input_file_id is the id of a file.", param="input_file_id")
        if wanted.get("completion_window") != "24h":
            raise RequestError("completion_window is 24h.", param="completion_window")
        file = await self._files.get(creator.tenant, source, self._reached(creator.owner))
        if file.purpose != "batch":
            raise RequestError("input_file_id: the file's purpose is not batch.", param="input_file_id")
        if file.labels:
            creator = creator.labelled(file.labels)
        record = BatchRecord(
            id=f"{BATCH_PREFIX}{int(time.time() * 1000):011x}{self._entropy.bytes(12).hex()}",
            creator=creator,
            endpoint=endpoint,
            input=file.id,
            state="validating",
            created=0.0,
            expires=0.0,
            window="24h",
            metadata=metadata_of(wanted.get("metadata")),
            salt=self._entropy.bytes(16).hex(),
            keep=keep_of(wanted.get("output_expires_after"), self._files_settings.expire_after),
        )
        made = await self._kept.add(record, self._settings.window, self._settings.max_open, began)
        detail = {"tenant": made.creator.tenant, "endpoint": made.endpoint, "input": made.input}
        self._record("batch_created", made.id, detail, actor=made.creator.name)
        self.made()
        return made

    async def batch(self, principal: Principal, id: str) -> BatchRecord:
        return await self.get(id, principal.tenant, self._reached(owner_of(principal)))

    async def batches(self, principal: Principal, *, limit: int, after: str | None) -> tuple[list[BatchRecord], bool]:
        return await self.page(principal.tenant, limit, after, caller=self._reached(owner_of(principal)))

    async def cancel(self, principal: Principal, id: str) -> BatchRecord:
        tenant = principal.tenant
        return await self.stop(id, tenant, f"{tenant}/{principal.id}", self._reached(owner_of(principal)))

    # --- for operators, and for workers. caller: whose alone; None for anybody's

    async def page(
        self, tenants: str | Sequence[str] | None, limit: int, after: str | None, state: str | None = None, caller: str | None = None
    ) -> tuple[list[BatchRecord], bool]:
        return await self._kept.page(tenants, limit, after, state, caller)

    async def get(self, id: str, tenants: str | Sequence[str] | None, caller: str | None = None) -> BatchRecord:
        """Raises NotFound."""
        return await self._kept.get(id, tenants, caller)

    async def stop(
        self, id: str, tenants: str | Sequence[str] | None, actor: str, caller: str | None = None, *, dry_run: bool = False
    ) -> BatchRecord:
        """Raises NotFound."""
        found = await self._kept.cancel(id, tenants, caller, dry_run=dry_run)
        if not dry_run and found.cancels:
            self._record("batch_cancelled", found.id, {"tenant": found.creator.tenant}, actor=actor)
            self.made()
        return found

    # --- told by the work

    async def count(self) -> None:
        try:
            self.counts = await self._kept.counts()
        except GatehouseError:
            self.counts = None

    def ended(self, batch: BatchRecord) -> None:
        counts = {name: getattr(batch, name) for name in ("total", "completed", "failed", "repeated", "unknown")}
        detail = {"tenant": batch.creator.tenant, **counts, "output": batch.output, "errors": batch.error}
        outcome = "ok" if batch.state == "completed" else "failed"
        self._record(f"batch_{batch.state}", batch.id, detail, actor=batch.creator.name, outcome=outcome)

    def collect(self) -> Iterable[Metric]:
        kept = GaugeMetricFamily("gatehouse_batches", "Batches in the store by state", labels=["state"])
        if self.counts is not None:  # else no series: those of a store that is away would seem to be new when it is back
            for state in STATES:
                kept.add_metric([state], float(self.counts.get(state, 0)))
        yield kept
        yield GaugeMetricFamily("gatehouse_batch_lines_running", "Lines of batches that run in this process", value=float(self.running()))
        lines = CounterMetricFamily("gatehouse_batch_lines", "Lines of batches by what became of them", labels=["outcome"])
        for what, count in self.lines.items():
            lines.add_metric([what], float(count))
        yield lines


def keep_of(given: Any, most: float) -> float:
    """Seconds for which the results are to be kept; 0: `most`. Raises RequestError."""
    if given is None:
        return 0.0
    seconds = given.get("seconds") if isinstance(given, dict) and given.keys() == {"anchor", "seconds"} else None
    if isinstance(seconds, bool) or not isinstance(seconds, int) or given["anchor"] != "created_at":
        raise RequestError("output_expires_after has the anchor created_at and a whole number of seconds.", param="output_expires_after")
    if not MIN_EXPIRY <= seconds <= max(most, MIN_EXPIRY):
        raise RequestError(
            f"output_expires_after.seconds is between {MIN_EXPIRY:.0f} and {most:.0f}.", param="output_expires_after.seconds"
        )
    return float(seconds)


def metadata_of(given: Any) -> dict[str, str] | None:
    """Raises RequestError."""
    if given is None:
        return None
    if not isinstance(given, dict) or len(given) > MOST_METADATA:
        raise RequestError(f"metadata has at most {MOST_METADATA} names with texts.", param="metadata")
    for name, value in given.items():
        good = isinstance(value, str) and 0 < len(name) <= MOST_KEY and len(value) <= MOST_VALUE
        if not good or "\0" in name + value:
            raise RequestError(
                f"metadata: names have up to {MOST_KEY} characters, values are texts of up to {MOST_VALUE}.", param="metadata"
            )
    return given
