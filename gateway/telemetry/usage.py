"""What each key used of each model on each day. Outcomes are counted on their way to the audit log, and taken for the store's reports."""

from __future__ import annotations

from time import gmtime, strftime
from typing import Final

from gateway.core.ports import AuditLog
from gateway.core.storage import UsageRow
from gateway.core.types import OutcomeRecord

DAY: Final = 86400
MAX_USAGE_ROWS: Final = 100_000
"""Rows that may be counted between two writes."""

Counts = dict[tuple[int, str, str, str], list[int]]
"""(day since the epoch, tenant, key, model) to requests, prompt, completion and cached tokens."""


class UsageLedger:
    """Counts until it is taken. Synchronous, cheap, bounded."""

    def __init__(self) -> None:
        self._counts: Counts = {}
        self.lost = 0

    def add(self, record: OutcomeRecord) -> None:
        """Counts an exchange if it reached an engine; a denied one uses nothing."""
        if record.attempts:
            key = (int(record.time) // DAY, record.tenant, record.principal, record.model)
            counts = self._counts.get(key)
            if counts is None:
                self._add(key, 1, record.prompt_tokens, record.completion_tokens, record.cached_tokens)
                return
            counts[0] += 1
            counts[1] += record.prompt_tokens
            counts[2] += record.completion_tokens
            counts[3] += record.cached_tokens

    def _add(self, key: tuple[int, str, str, str], *added: int) -> None:
        counts = self._counts.get(key)
        if counts is None:
            if len(self._counts) >= MAX_USAGE_ROWS:
                self.lost += added[0]
                return
            counts = self._counts[key] = [0, 0, 0, 0]
        for position, number in enumerate(added):
            counts[position] += number

    def take(self) -> Counts:
        """What was counted since the last call."""
        counts, self._counts = self._counts, {}
        return counts

    def merge(self, counts: Counts) -> None:
        """Puts back what was taken and could not be written."""
        for key, numbers in counts.items():
            self._add(key, *numbers)


def rows(counts: Counts) -> list[UsageRow]:
    days = {day: strftime("%Y-%m-%d", gmtime(day * DAY)) for day, *_ in counts}
    return [UsageRow(days[day], tenant, key, model, *numbers) for (day, tenant, key, model), numbers in counts.items()]


class CountedAudit:
    """The audit log as the pipeline sees it: each outcome is counted as usage on its way. Everything else is the log's own method."""

    def __init__(self, log: AuditLog, usage: UsageLedger) -> None:
        self._log, self._usage, self._outcome = log, usage, log.outcome
        self.intent, self.event, self.hash_body, self.aclose = log.intent, log.event, log.hash_body, log.aclose

    def outcome(self, record: OutcomeRecord) -> None:
        self._usage.add(record)
        self._outcome(record)

    @property
    def accepting(self) -> bool:
        return self._log.accepting

    @property
    def fault(self) -> str | None:
        return self._log.fault
