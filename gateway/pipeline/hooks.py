"""Hooks in front of the audit log, which every request passes twice. Without hooks this wrapper is not installed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final, TypeVar

from gateway.core.hooks import Hook
from gateway.core.ports import AuditLog
from gateway.core.types import IntentRecord, OutcomeRecord
from gateway.core.waiting import Signal

R = TypeVar("R")
SLOW_SECONDS: Final = 0.005
"""A longer call is logged, once per hook, because it held up every other request."""
log = logging.getLogger("gatehouse.hooks")


class HookedAudit:
    """The audit log as the pipeline sees it, behind hooks, which are called in their order. hooks: (name, hook)."""

    def __init__(self, audit: AuditLog, hooks: Sequence[tuple[str, Hook]]) -> None:
        self._audit, self._hooks = audit, tuple(hooks)
        self._slow: set[str] = set()
        self.event, self.hash_body, self.aclose = audit.event, audit.hash_body, audit.aclose

    def intent(self, record: IntentRecord) -> Signal[None]:
        for name, hook in self._hooks:
            self._call(name, hook.before, record)
        return self._audit.intent(record)

    def outcome(self, record: OutcomeRecord) -> None:
        self._audit.outcome(record)
        for name, hook in self._hooks:
            try:
                self._call(name, hook.after, record)
            except Exception:  # boundary: the request has ended; the other hooks and the settlement go on
                log.exception("the hook %s failed after a request", name)

    @property
    def accepting(self) -> bool:
        return self._audit.accepting

    @property
    def fault(self) -> str | None:
        return self._audit.fault

    def _call(self, name: str, method: Callable[[R], None], record: R) -> None:
        began = perf_counter()
        try:
            method(record)
        finally:
            if perf_counter() - began > SLOW_SECONDS and name not in self._slow:
                self._slow.add(name)
                log.warning("the hook %s took %.1f ms; all requests waited for it", name, (perf_counter() - began) * 1000)
