"""What records say of people, as configured: kept, truncated, replaced by a keyed hash, or left out. Before a record is encoded anywhere.

A hash is the same for the same value and field in all records of one state directory, so that records can still be grouped; nobody
without `audit-body.key` can confirm a guess. What hides a value is remembered, so that a request pays for look-ups.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import Any, Final, TypeVar

import msgspec

from gateway.core.specs.audit import PrivacySpec
from gateway.core.types import AuditRecord, EventRecord, IntentRecord, OutcomeRecord

OMITTED: Final = "-"
"""Stands for what is left out: an empty `peer` of an outcome means that its intent has it."""
MOST: Final = 65536
_NAMES: Final = ("user", "agent", "session")
_AT_PEERS: Final = frozenset({"denials", "admin.login"})
"""Events whose target is an address."""
R = TypeVar("R", IntentRecord, OutcomeRecord)


class Privacy:
    """Applies the settings to records. key: 32 secret bytes. For one event loop."""

    def __init__(self, spec: PrivacySpec, key: bytes) -> None:
        self._spec, self._key = spec, key
        self._hidden: dict[tuple[str, str], str] = {}
        self._callers: dict[bytes, msgspec.Raw] = {}
        self._are_keys: dict[tuple[str, str], bool] = {}
        self._how = {"peer": spec.peer, "user": spec.user, "principal": spec.principal, "agent": spec.agent, "session": spec.session}
        self._names = tuple(name for name in _NAMES if self._how[name] != "keep")

    def __call__(self, record: AuditRecord) -> AuditRecord:
        if isinstance(record, IntentRecord):
            return self.request(record)
        return self.request(record) if isinstance(record, OutcomeRecord) else self._of_event(record)

    def request(self, record: R) -> R:
        spec = self._spec
        changes: dict[str, Any] = {name: self.hide(name, value) for name in self._names if (value := getattr(record, name))}
        if record.peer and spec.peer != "keep":
            changes["peer"] = self.hide("peer", record.peer)
        if record.principal and spec.principal != "keep" and not self._is_key(record):
            changes["principal"] = self.hide("principal", record.principal)
        if spec.groups == "omit" and isinstance(record.caller, msgspec.Raw):
            changes["caller"] = self._without_groups(record.caller)
        return msgspec.structs.replace(record, **changes) if changes else record

    def _is_key(self, record: IntentRecord | OutcomeRecord) -> bool:
        """Whether the principal is the id of an API key, which names nobody. Outcomes do not say; the intents before them did."""
        who = (record.tenant, record.principal)
        if record.credential:
            if len(self._are_keys) >= MOST:
                self._are_keys.clear()
            self._are_keys[who] = record.credential == "api_key"
        return self._are_keys.get(who, False)

    def _of_event(self, record: EventRecord) -> EventRecord:
        detail = record.detail
        if detail is not None:
            given = {name: detail.get(name) for name in ("peer", *_NAMES)}
            changed: dict[str, Any] = {name: self.hide(name, value) for name, value in given.items() if value and isinstance(value, str)}
            peers = detail.get("peers")
            if self._spec.peer != "keep" and isinstance(peers, list):
                changed["peers"] = [self.hide("peer", str(peer)) for peer in peers]
            if changed:
                record = msgspec.structs.replace(record, detail={**detail, **changed})
        if record.event in _AT_PEERS and record.target:
            record = msgspec.structs.replace(record, target=self.hide("peer", record.target))
        return record

    def hide(self, name: str, value: str) -> str:
        """A field's value as records have it."""
        how = self._how[name]
        if how == "keep":
            return value
        found = self._hidden.get((name, value))
        if found is None:
            if len(self._hidden) >= MOST:
                self._hidden.clear()
            found = self._hidden[name, value] = self._made(how, name, value)
        return found

    def _made(self, how: str, name: str, value: str) -> str:
        if how == "omit":
            return OMITTED
        if how == "truncate":
            return truncated(value)
        digest = hashlib.blake2b(value.encode("utf-8", "replace"), key=self._key, digest_size=16, person=name.encode())
        return f"h:{digest.hexdigest()}"

    def _without_groups(self, caller: msgspec.Raw) -> msgspec.Raw:
        known = self._callers.get(bytes(caller))
        if known is None:
            if len(self._callers) >= MOST:
                self._callers.clear()
            facts = msgspec.json.decode(caller)
            if facts.pop("groups", None) is not None:
                facts["unrecorded"] = [*facts.get("unrecorded", ()), "groups"]
            known = self._callers[bytes(caller)] = msgspec.Raw(msgspec.json.encode(facts))
        return known


def truncated(address: str) -> str:
    """An address's network: /24 of IPv4, /48 of IPv6; anything else is left out."""
    try:
        found = ip_address(address.partition("%")[0].partition("/")[0])
    except ValueError:
        return OMITTED
    mapped = getattr(found, "ipv4_mapped", None)
    if mapped is not None:
        found = mapped
    return str(ip_network((found, 24 if found.version == 4 else 48), strict=False))


def privacy_of(spec: PrivacySpec, key: Callable[[], bytes]) -> Privacy | None:
    """None where everything is kept."""
    return None if spec == PrivacySpec() else Privacy(spec, key())
