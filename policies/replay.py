"""Decisions of the past, made again: from a record of the audit log to what would be decided about the same caller and request now.

A record has the facts on which its decision was made (gateway.core.decided). What it does not have is not guessed: a decision that reads
such a fact raises Unrecorded. Records of earlier versions have no facts of the caller. The country of an address is what the database of
today says of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from gateway.core.specs import ModelSpec
from gateway.core.types import Decision, Login, Principal, Scope
from policies.conditions import NAMES, instant
from policies.facts import UNBOUNDED, adapter_of, of_caller

CALLERS: Final = 4096
"""Callers that are remembered while records are read."""
OLDER: Final = "older"
"""Stands for all facts of the caller, in records of earlier versions."""
REFUSED: Final = frozenset({"policy_denied", "insufficient_scope"})
_KEPT: Final = ("models", "operations", "groups", "roles", "scopes", "reach", "bounds")
"""Facts of the caller that no decision can do without."""
METADATA: Final = "metadata"
"""The operation of records about a model's metadata; it is decided and limited as `infer`."""


class Unrecorded(Exception):
    """A decision needs a fact that the record does not have. name: which."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Past:
    """One decision of the past. model: the name asked for. allowed, rule: what was decided. facts: by their names in conditions."""

    __slots__ = ("allowed", "facts", "missing", "model", "operation", "principal", "record", "rule", "time", "version")

    def __init__(self, record: Mapping[str, Any], principal: Principal, missing: frozenset[str], generates: bool) -> None:
        facts: Mapping[str, Any] = record.get("facts") or {}
        self.record, self.principal, self.missing = record, principal, missing
        self.time = float(record["time"])
        self.allowed = record.get("kind") == "intent" or record.get("decision") == "allow"
        self.rule = str(record.get("rule", ""))
        self.model = str(facts.get("model") or record.get("model", ""))
        operation = str(record.get("operation", ""))
        self.operation = "infer" if operation == METADATA else operation
        self.version = str(facts.get("version", ""))
        bound = int(facts.get("max_tokens", 0))
        self.facts: dict[str, Any] = {
            "request.operation": self.operation,
            "request.version": self.version,
            "request.stream": bool(record.get("stream") or facts.get("stream")),
            "request.max_tokens": bound if bound > 0 else UNBOUNDED if generates else 0,
            "request.bytes": int(record["bytes"] if record.get("kind") == "intent" else facts.get("bytes", 0)),
            "request.tools": [str(name) for name in facts.get("tools", ())],
            "request.label": str(facts.get("label", "")),
            "source.address": str(record.get("peer", "")),
            "source.certificate": str(facts.get("certificate", "")),
        }

    def reading(self, public: str, country: Callable[[str], str]) -> Callable[[str], Any]:
        """What conditions read. public: the model's public name. The function raises Unrecorded."""

        def read(name: str) -> Any:
            if name in self.missing:
                raise Unrecorded(name)
            if name.startswith("principal."):
                return of_caller(self.principal, name)
            if name == "request.model":
                return public
            if name == "request.adapter":
                return adapter_of(public)
            if name == "now":
                return instant(self.time)
            if name == "source.country":
                return country(self.facts["source.address"])
            return self.facts[name]

        return read

    def insist(self) -> None:
        """Raises Unrecorded where the record lacks what every decision needs."""
        if OLDER in self.missing:
            raise Unrecorded(OLDER)
        for name in sorted(self.missing):
            if name == "request.model" or name == "request.version" or name.removeprefix("principal.") in _KEPT:
                raise Unrecorded(name)


class Records:
    """Reads records. generates: the operations that generate text."""

    def __init__(self, models: Iterable[ModelSpec], generates: Iterable[str]) -> None:
        self._public = {alias: model.name for model in models for alias in model.aliases}
        self._generates = frozenset(generates)
        self._callers: dict[tuple[Any, ...], tuple[Principal, frozenset[str]]] = {}

    def public(self, model: str) -> str:
        """A model's public name, of the name asked for."""
        return self._public.get(model, model)

    def past(self, record: Mapping[str, Any]) -> Past | None:
        """The decision that a record holds; None for a record of anything else. Raises ValueError, KeyError or TypeError for what no writer
        of records has written."""
        kind = record.get("kind")
        if kind == "outcome":
            if not record.get("decision") and not (record.get("code") in REFUSED and record.get("principal")):
                return None
        elif kind != "intent":
            return None
        principal, missing = self._caller(record)
        return Past(record, principal, missing, record.get("operation") in self._generates)

    def _caller(self, record: Mapping[str, Any]) -> tuple[Principal, frozenset[str]]:
        told = record.get("caller")
        facts: Mapping[str, Any] = record.get("facts") or {}
        named = tuple(str(record.get(name, "")) for name in ("principal", "tenant", "credential", "user", "agent", "session"))
        key = (*named, None if told is None else msgspec.json.encode(told))
        known = self._callers.get(key)
        if known is None:
            known = _caller(named, told)
            if len(self._callers) >= CALLERS:
                del self._callers[next(iter(self._callers))]
            self._callers[key] = known
        unrecorded = facts.get("unrecorded")
        return known if not unrecorded else (known[0], known[1] | {str(name) for name in unrecorded})


def _caller(named: tuple[str, ...], told: Mapping[str, Any] | None) -> tuple[Principal, frozenset[str]]:
    id, tenant, kind, user, agent, session = named
    if told is None:
        missing = {name for name in NAMES if name.startswith(("principal.", "request.")) or name == "source.certificate"}
        return Principal(id, tenant, kind, user=user, agent=agent, session=session), frozenset(missing | {OLDER})
    texts = {name: tuple(str(one) for one in told.get(name, ())) for name in ("models", "operations", "groups", "roles", "scopes", "amr")}
    time = told.get("auth_time")
    login = Login(
        str(told.get("strength", "")),
        issuer=str(told.get("issuer", "")),
        acr=str(told.get("acr", "")),
        amr=texts["amr"],
        auth_time=None if time is None else float(time),
    )
    made = Principal(
        id,
        tenant,
        kind,
        texts["models"],
        roles=texts["roles"],
        operations=texts["operations"],
        user=user,
        groups=texts["groups"],
        scopes=texts["scopes"],
        agent=agent,
        session=session,
        login=login,
        bounds=tuple(tuple(Scope(tuple(models), tuple(operations)) for models, operations in scopes) for scopes in told.get("bounds", ())),
        personal=bool(told.get("personal")),
        reach=None if told.get("reach") is None else tuple(str(one) for one in told["reach"]),
    )
    return made, frozenset(f"principal.{name}" for name in told.get("unrecorded", ()))


def again(past: Past, judge: Callable[..., Decision], public: str, country: Callable[[str], str]) -> Decision:
    """What an Authorizer's `judge` decides about it. Raises Unrecorded."""
    past.insist()
    return judge(past.principal, past.model, past.operation, past.version, past.reading(public, country))
