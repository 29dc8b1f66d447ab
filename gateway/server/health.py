"""Readiness, shared by both listeners: a snapshot is loaded, a sink accepts records, an endpoint is ready. Never calls a model."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from gateway.pipeline.plane import DataPlane

WITHOUT_STORE: Final = MappingProxyType(
    {
        "works": ["remembered keys of the store", "keys of the configuration", "the configuration in force"],
        "refused": ["other keys of the store (503)", "writes of the admin API (503)"],
        "waits": ["changes and revocations made at other replicas", "usage, which is written later"],
    }
)
"""What a gateway can do while its store does not answer (docs/store.md)."""


def _rfc3339(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Health:
    """Reports what the data plane knows; asks nobody.

    store: since when the store has not answered (seconds since the epoch), None while it does. Without it the gateway stays ready, because
    remembered keys still work.
    keys: whether there is any key to log in with. Without one the gateway stays ready too: the first may be made at any moment.
    replica: its id, "" to leave it out. workers: how many processes serve, and how many are to; None where this one serves.
    seen: whether any engine has been seen to work since the start. Until then an external one is assumed to, so that a first request need
    not wait for a probe; but a load balancer is not told so.
    """

    def __init__(
        self,
        plane: DataPlane,
        store: Callable[[], float | None] | None = None,
        keys: Callable[[], bool] | None = None,
        replica: str = "",
        workers: Callable[[], tuple[int, int]] | None = None,
        seen: Callable[[], bool] | None = None,
    ) -> None:
        self._plane, self._store, self._keys, self._replica, self._workers = plane, store, keys, replica, workers
        self._seen = seen

    def welcome(self) -> bool:
        """Whether the gateway is ready for traffic. Of ten thousand models it looks for one that is."""
        snapshot = self._plane.snapshot
        if snapshot is None or not snapshot.audit.accepting or self._plane.draining:
            return False
        if self._workers is not None and not self._workers()[0]:
            return False
        if not snapshot.models:
            return True
        return (self._seen is None or self._seen()) and any(entry.route.ready for entry in snapshot.models.values())

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether the gateway is ready for traffic, and a report that names what is not."""
        snapshot = self._plane.snapshot
        if snapshot is None:
            return False, {"status": "not ready", "not_ready": ["snapshot"]}
        models = {entry.name: entry.route.ready for entry in snapshot.models.values()}
        missing: list[str] = []
        if not snapshot.audit.accepting:
            missing.append("audit")
        unseen = self._seen is not None and not self._seen()
        if models and (unseen or not any(models.values())):
            missing.append("endpoints")
        if self._plane.draining:
            missing.append("draining")
        serving = None if self._workers is None else self._workers()
        if serving is not None and not serving[0]:
            missing.append("workers")
        report: dict[str, Any] = {
            "status": "not ready" if missing else "ready",
            "config_version": snapshot.version,
            "audit": snapshot.audit.accepting,
            "models": {name: "no ready endpoint" if not up else "not probed yet" if unseen else "ready" for name, up in models.items()},
        }
        if self._replica:
            report["replica"] = self._replica
        if serving is not None:
            report["workers"] = {"ready": serving[0], "wanted": serving[1]}
        if self._store is not None:
            lost = self._store()
            report["store"] = lost is None
            if lost is not None:
                report["store_lost"] = {"since": _rfc3339(lost), **WITHOUT_STORE}
        if self._keys is not None and not self._keys():
            report["no_keys"] = True
        if snapshot.audit.fault is not None:
            report["audit_fault"] = snapshot.audit.fault
        if missing:
            report["not_ready"] = missing
        lax = {m.name: m.unknown_fields for m in snapshot.spec.models if m.unknown_fields != "refuse"}
        if lax:
            report["unknown_fields"] = lax
        unwatched = {m.name: m.engine_tools for m in snapshot.spec.models if m.engine_tools}
        if unwatched:
            report["engine_tools"] = unwatched
        if snapshot.spec.insecure:
            report["insecure"] = True
        return not missing, report
