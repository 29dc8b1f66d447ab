"""What a process holds of the store: the store itself, the API keys that the data plane remembers, the feed of changes, usage.

Nothing here is on the path of a request but a look into the key cache and one addition to the usage. What is counted between
two writes (usage, last use) is lost when the process is killed, at most `WRITE_SECONDS` of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from time import gmtime, strftime
from typing import TypeVar

import msgspec

from gateway.core.errors import ConfigError, GatehouseError, StoreUnavailable
from gateway.core.feed import LocalFeed
from gateway.core.ports import AuditLog, Change
from gateway.core.specs import ConfigSpec, GuardrailSpec, LimitSpec
from gateway.core.storage import StoreChange, UsageRow
from gateway.core.tasks import TaskOwner
from gateway.core.types import OutcomeRecord
from gateway.identity import keys
from gateway.identity.stored import USED_SECONDS, StoredKeys
from gateway.store.feed import CHANGE, RESYNC, ChangePoller
from gateway.store.pepper import VARIABLE
from gateway.store.store import Store

log = logging.getLogger("gatehouse.store")

WRITE_SECONDS = 5.0
PRUNE_SECONDS = 600.0
MAX_USAGE_ROWS = 100_000
BATCH = 1000
"""Rows that are written in one transaction."""
POLICIES = ("limits", "guardrails")
"""Kinds of resources that are part of what is in force."""
P = TypeVar("P", LimitSpec, GuardrailSpec)
DAY = 86400


class Control:
    """Opens the store and keeps the process in step with it. Life: `start`, `aclose`.

    Raises ConfigError when the store's settings cannot be used.
    """

    def __init__(self, spec: ConfigSpec, environ: Mapping[str, str], feed: LocalFeed) -> None:
        self.store = Store(spec.store.url, Path(spec.state_dir), keys, given_pepper=environ.get(VARIABLE))
        self._tasks = TaskOwner("control")
        self.keys = StoredKeys(self.store.find_key, self._tasks)
        self.usage = UsageLedger()
        self._poller = ChangePoller(self.store, feed, spec.store.poll_interval)
        self._used: dict[str, float] = {}
        self._limits: tuple[LimitSpec, ...] = ()
        self._guardrails: tuple[GuardrailSpec, ...] = ()
        self._started = self._any_key = False
        self.store.subscribe(self._poller.written)
        feed.subscribe(self._heard)

    @property
    def has_keys(self) -> bool:
        """Whether the store has ever shown a key: then there is a way to log in."""
        return self._any_key

    async def start(self) -> None:
        """Brings the schema up to date and follows the changes from now on. Raises StoreUnavailable, ConfigError."""
        await self.store.start()
        await self._poller.start()
        self._any_key = bool((await self.store.list_keys(limit=1)).items)
        self._tasks.every(WRITE_SECONDS, self.write, name="write usage")
        self._tasks.every(PRUNE_SECONDS, self.store.prune, name="prune")
        self._started = True

    async def aclose(self) -> None:
        """Writes what was counted, and closes. Requests must have ended before."""
        await self._poller.aclose()
        await self._tasks.aclose()
        if self._started:
            await self.write(0.0)
        await self.store.aclose()

    async def merged(self, spec: ConfigSpec) -> ConfigSpec:
        """The configuration with the limits and guardrails of the store behind its own; its own win over the same names.

        What was read last counts while the store does not answer. Raises ConfigError for what this version cannot use.
        """
        try:
            self._limits = await self._read("limits", LimitSpec)
            self._guardrails = await self._read("guardrails", GuardrailSpec)
        except StoreUnavailable as error:
            log.warning("limits and guardrails of the store stay as they were read last: %s", error.message)
        return msgspec.structs.replace(
            spec,
            limits=(*spec.limits, *_others(self._limits, spec.limits)),
            guardrails=(*spec.guardrails, *_others(self._guardrails, spec.guardrails)),
        )

    async def _read(self, kind: str, wanted: type[P]) -> tuple[P, ...]:
        found: list[P] = []
        cursor: str | None = None
        while True:
            page = await self.store.list(kind, limit=1000, cursor=cursor)
            for resource in page.items:
                try:
                    found.append(msgspec.convert({**resource.body, "name": resource.name}, wanted))
                except msgspec.ValidationError as error:
                    raise ConfigError(
                        f"the store holds one that this version cannot use: {error}", path=f"{kind}.{resource.name}"
                    ) from None
            cursor = page.cursor
            if cursor is None:
                return tuple(found)

    def _heard(self, change: Change) -> None:
        _, kind, payload = change
        if kind == CHANGE:
            assert isinstance(payload, StoreChange)
            if payload.kind == "keys":
                self._any_key = True
                self.keys.changed(payload.name, payload.action)
        elif kind == RESYNC:
            self.keys.clear()

    async def write(self, interval: float = USED_SECONDS) -> None:
        """Usage and last use into the store, in small transactions. What cannot be written now is kept for the next time.

        interval: each key's last use is written at most once in so many seconds.
        """
        counts = self.usage.take()
        self._used.update(self.keys.take_used(interval))
        try:
            while counts:
                part = dict(islice(counts.items(), BATCH))
                await self.store.add_usage(rows(part))
                counts = {key: numbers for key, numbers in counts.items() if key not in part}
            while self._used:
                used = dict(islice(self._used.items(), BATCH))
                await self.store.touch_keys(used)
                for id in used:
                    del self._used[id]
        except GatehouseError as error:
            log.warning("usage could not be written yet: %s", error.message)
            self.usage.merge(counts)


def touches_policies(change: Change) -> bool:
    """Whether a change on the feed may have changed what `merged` gives."""
    _, kind, payload = change
    return kind == RESYNC or (kind == CHANGE and payload.kind in POLICIES)


def _others(stored: tuple[P, ...], own: tuple[P, ...]) -> tuple[P, ...]:
    names = {policy.name for policy in own}
    return tuple(policy for policy in stored if policy.name not in names)


Counts = dict[tuple[int, str, str, str], list[int]]
"""(day since the epoch, tenant, key, model) to requests, prompt, completion and cached tokens."""


class UsageLedger:
    """Counts what each key used of each model on each day, until it is taken. Synchronous, cheap, bounded."""

    def __init__(self) -> None:
        self._counts: Counts = {}
        self.lost = 0

    def add(self, record: OutcomeRecord) -> None:
        """One exchange that reached an engine; a denied one uses nothing."""
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
        self._log, self._add, self._outcome = log, usage.add, log.outcome
        self.intent, self.event, self.hash_body, self.aclose = log.intent, log.event, log.hash_body, log.aclose

    def outcome(self, record: OutcomeRecord) -> None:
        self._add(record)
        self._outcome(record)

    @property
    def accepting(self) -> bool:
        return self._log.accepting

    @property
    def fault(self) -> str | None:
        return self._log.fault
