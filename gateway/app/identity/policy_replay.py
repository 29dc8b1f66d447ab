"""Decisions of the past for the admin listener: what other roles and bindings would change, and why a request was decided as it was.

Both read the local audit log from its end, in a thread, so many records and for so long at most, and decide with Authorizers of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from admin.permissions import ROLES
from admin.ports import Candidate, Window
from gateway.app.identity import access
from gateway.app.identity.access import AccessBuilder
from gateway.config.additions import StoreAdditions
from gateway.core.errors import ConfigError, NotFound, Overloaded
from gateway.core.ports import AuditReader, Authorizer
from gateway.core.slices import at_once, in_slices
from gateway.core.snapshot import Snapshot
from gateway.core.specs import ConfigSpec
from gateway.core.types import Decision
from gateway.wire.table import APIS
from policies.replay import OLDER, Past, Records, Unrecorded, again

SECONDS: Final = 20.0
"""For reading and deciding; what was read until then is the answer."""
MAX_LINES: Final = 2_000_000
"""Lines of the log that are looked through for one request."""
MAX_CHANGES: Final = 1000
"""Groups of changed decisions in an answer."""
TURN: Final = 100
"""Records between two pauses, which leave the interpreter to the requests."""
UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError)
"""What is raised for a record whose facts are malformed, such as a shortened one."""
GENERATES: Final = tuple({api.operation for api in APIS if api.generates})


class PolicyReplay:
    """Implements admin.ports.Replays. file: the file's configuration in force. current: the Snapshot in force. country: of an address."""

    def __init__(
        self,
        additions: StoreAdditions,
        file: Callable[[], ConfigSpec],
        current: Callable[[], Snapshot],
        log: AuditReader,
        country: Callable[[str], str],
    ) -> None:
        self._additions, self._file, self._current, self._log, self._country = additions, file, current, log, country
        self._busy = False
        self._known: tuple[ConfigSpec, Authorizer] | None = None

    async def diff(self, candidate: Candidate, window: Window) -> dict[str, Any]:
        if self._busy:
            raise Overloaded("Another comparison is running; try again when it is done.", retry_after=5.0)
        self._busy = True
        try:
            merged, present = await self._merged(candidate), self._current().spec
            return await asyncio.to_thread(self._compared, present, merged, window)
        finally:
            self._busy = False

    def _compared(self, present: ConfigSpec, candidate: ConfigSpec, window: Window) -> dict[str, Any]:
        """Runs in a thread: conditions take long to compile, and there may be thousands."""
        before, after = (at_once(AccessBuilder(self._country).steps(spec)) for spec in (present, candidate))
        comparison = Comparison(Records(present.models, GENERATES), before.judge, after.judge, self._country)
        return comparison.of(self._log.newest(window.since), window)

    async def _merged(self, candidate: Candidate) -> ConfigSpec:
        """The configuration with the candidate's roles and bindings, in place of the file's or beside what there is. Raises ConfigError."""
        file, added = self._file(), list[tuple[str, dict[str, Any]]]()
        if candidate.beside:
            added += [("roles", {"name": name, **msgspec.to_builtins(role)}) for name, role in candidate.roles.items()]
            added += [("bindings", msgspec.to_builtins(binding)) for binding in candidate.bindings]
            await asyncio.to_thread(access.check_alone, candidate.roles, candidate.bindings, ROLES)
        else:
            file = msgspec.structs.replace(file, roles=candidate.roles, bindings=candidate.bindings)
            await asyncio.to_thread(access.check, file, lambda path, message: ConfigError(message, path=path), ROLES)
        merged = await self._additions.candidate(file, added)
        for kind, body in added:
            if (error := merged.left_out.get((kind, body["name"]))) is not None:
                raise ConfigError(error.message, path=f"{kind}.{body['name']}")
        await in_slices(access.models_there(candidate.roles, merged.spec.models, strict=True))
        return merged.spec

    async def _present(self) -> tuple[ConfigSpec, Authorizer]:
        """The configuration in force, and an Authorizer of it that only this thread uses."""
        spec = self._current().spec
        if self._known is None or self._known[0] is not spec:
            self._known = (spec, await in_slices(AccessBuilder(self._country).steps(spec)))
        return self._known

    async def past(self, request_id: str, sees: Callable[[str], bool]) -> dict[str, Any]:
        spec, authorizer = await self._present()
        found = await asyncio.to_thread(self._find, Records(spec.models, GENERATES), request_id, sees)
        if found is None:
            raise NotFound(f"There is no decision about a request {request_id!r} in the newest part of this gateway's audit log.")
        past, records = found
        return explained(past, authorizer, records.public(past.model), self._country)

    def _find(self, records: Records, request_id: str, sees: Callable[[str], bool]) -> tuple[Past, Records] | None:
        end = time.monotonic() + SECONDS
        for count, record in enumerate(self._log.newest(None, request_id)):
            if count >= MAX_LINES or time.monotonic() > end:
                return None
            if record.get("request_id") == request_id and sees(str(record.get("tenant", ""))):
                past = _read(records, record)
                if past is not None:
                    return past, records
        return None


def _read(records: Records, record: Mapping[str, Any]) -> Past | None:
    try:
        return records.past(record)
    except UNREADABLE:
        return None


class Comparison:
    """Compares two ways to decide. Counts and groups; what it keeps is bounded."""

    def __init__(
        self, records: Records, before: Callable[..., Decision], after: Callable[..., Decision], country: Callable[[str], str]
    ) -> None:
        self._records, self._before, self._after, self._country = records, before, after, country
        self._groups: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._not_replayed: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._first: float | None = None
        self._last: float | None = None

    def of(self, records: Iterator[dict[str, Any]], window: Window) -> dict[str, Any]:
        """Blocks for up to SECONDS."""
        end, complete = time.monotonic() + SECONDS, True
        for count, record in enumerate(records, 1):
            if self._counts["decisions"] >= window.last:
                break
            if count % TURN == 0:
                time.sleep(0.001)
                if time.monotonic() > end:
                    complete = False
                    break
            if window.tenants is None or record.get("tenant") in window.tenants:
                self._take(record)
        return self._answer(complete)

    def _take(self, record: Mapping[str, Any]) -> None:
        try:
            past = self._records.past(record)
        except UNREADABLE:
            self._counts["decisions"] += 1
            self._not_replayed["unreadable"] += 1
            return
        if past is not None:
            self._consider(past)

    def _consider(self, past: Past) -> None:
        self._counts["decisions"] += 1
        moment = past.time
        self._first = moment if self._first is None else min(self._first, moment)
        self._last = moment if self._last is None else max(self._last, moment)
        public = self._records.public(past.model)
        try:
            before = again(past, self._before, public, self._country)
            after = again(past, self._after, public, self._country)
        except Unrecorded as error:
            self._not_replayed[error.name] += 1
            return
        self._counts["replayed"] += 1
        self._counts["decided_otherwise_then"] += before.allow != past.allowed
        if before.allow == after.allow:
            self._counts["other_rule"] += before.rule != after.rule
            return
        self._counts["allowed" if after.allow else "denied"] += 1
        self._group(past, public, before, after, moment)

    def _group(self, past: Past, model: str, before: Decision, after: Decision, moment: float) -> None:
        who = past.principal
        key = (who.tenant, who.id, who.user, who.agent, model, past.operation, before.rule, after.rule, after.allow)
        known = self._groups.get(key)
        if known is None:
            if len(self._groups) >= MAX_CHANGES:
                self._counts["left_out"] += 1
                return
            known = self._groups[key] = {
                "tenant": who.tenant,
                "principal": who.id,
                "user": who.user,
                "agent": who.agent,
                "model": model,
                "operation": past.operation,
                "before": side(before),
                "after": side(after),
                "requests": 0,
                "first": moment,
                "last": moment,
                "request_id": str(past.record.get("request_id", "")),
            }
        known["requests"] += 1
        known["first"], known["last"] = min(known["first"], moment), max(known["last"], moment)

    def _answer(self, complete: bool) -> dict[str, Any]:
        counts = self._counts
        changes = sorted(self._groups.values(), key=lambda one: (one["tenant"], one["principal"], one["model"], -one["requests"]))
        return {
            "decisions": counts["decisions"],
            "replayed": counts["replayed"],
            "first": self._first,
            "last": self._last,
            "complete": complete,
            "allowed": counts["allowed"],
            "denied": counts["denied"],
            "other_rule": counts["other_rule"],
            "decided_otherwise_then": counts["decided_otherwise_then"],
            "not_replayed": [{"fact": name, "decisions": number} for name, number in self._not_replayed.most_common()],
            "changes": changes,
            "left_out": counts["left_out"],
        }


def side(decision: Decision) -> dict[str, Any]:
    return {"allow": decision.allow, "rule": decision.rule, "reason": decision.reason}


def explained(past: Past, authorizer: Authorizer, public: str, country: Callable[[str], str]) -> dict[str, Any]:
    """The decision as it was recorded, the facts of the record, and what the rules in force make of them."""
    record, who = past.record, past.principal
    known = {name: value for name, value in past.facts.items() if name not in past.missing and value not in ("", [], 0, False)}
    known["request.model"] = public
    older = OLDER in past.missing
    caller = record.get("caller") or {}
    now: dict[str, Any] | None = None
    rules: list[dict[str, Any]] = []
    lacking = ""
    try:
        decision = again(past, authorizer.judge, public, country)
        now = side(decision)
        rules = authorizer.considered(who, past.model, past.operation, past.version, past.reading(public, country))
    except Unrecorded as error:
        lacking = error.name
    return {
        "request_id": str(record.get("request_id", "")),
        "time": past.time,
        "tenant": who.tenant,
        "principal": who.id,
        "credential": who.kind,
        "user": who.user,
        "agent": who.agent,
        "session": who.session,
        "model": public,
        "operation": past.operation,
        "allow": past.allowed,
        "rule": past.rule,
        "config": int(record.get("config", 0)),
        "facts": {**known, **{f"principal.{name}": value for name, value in caller.items() if name != "unrecorded"}},
        "unrecorded": ["caller"] if older else sorted(past.missing),
        "now": now,
        "lacking": "caller" if lacking == OLDER else lacking,
        "rules": rules,
    }
