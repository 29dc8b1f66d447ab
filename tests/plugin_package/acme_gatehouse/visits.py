"""A hook: refuses a tenant's requests beyond a number, and logs how each one ended."""

from __future__ import annotations

import logging
from collections import Counter

from gateway.core.errors import PermissionDenied
from gateway.core.plugins import Context, HookRow
from gateway.core.specs import Spec
from gateway.core.types import IntentRecord, OutcomeRecord

log = logging.getLogger("gatehouse.acme")  # below `gatehouse`: it follows telemetry.log_level


class Settings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    most: int


class Visits:
    def __init__(self, settings: Settings) -> None:
        self._most = settings.most
        self._seen: Counter[str] = Counter()

    def before(self, request: IntentRecord) -> None:
        self._seen[request.tenant] += 1
        if self._seen[request.tenant] > self._most:
            raise PermissionDenied("Your visits are used up.")

    def after(self, outcome: OutcomeRecord) -> None:
        log.info("visit %s ended with %d", outcome.request_id, outcome.status)


def build(settings: Settings, context: Context) -> Visits:
    return Visits(settings)


ROW = HookRow(name="visits", settings=Settings, build=build)
