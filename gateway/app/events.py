"""What happens outside requests (configuration changes, engines, load shedding): one audit record and one change on the feed each."""

from __future__ import annotations

import time
from typing import Any

from gateway.core.ports import AuditLog, Feed
from gateway.core.types import EventRecord


class Events:
    """Records from `open` on; what happens before the audit log is open is not recorded."""

    def __init__(self, audit: AuditLog, feed: Feed) -> None:
        self._audit, self._feed = audit, feed
        self._open = False

    def open(self) -> None:
        """The audit log has been started."""
        self._open = True

    def record(self, event: str, target: str, detail: dict[str, Any], *, actor: str = "gatehouse", outcome: str = "ok") -> None:
        if self._open:
            self._audit.event(EventRecord(time.time(), event, actor, target, outcome, detail))
            self._feed.publish("event", {"event": event, "target": target, "actor": actor, "outcome": outcome, **detail})
