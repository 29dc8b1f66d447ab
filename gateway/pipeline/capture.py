"""Texts of prompts and answers that are kept, encrypted, because a policy says so or somebody debugs one key (docs/audit.md).

Without any such rule the pipeline pays for one look at `DataPlane.texts`. For a request whose text is kept, everything that its client is
sent passes through a `Listener`, so that the record has what the client got, after guardrails, however it came about.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from gateway.core.errors import AuditUnavailable, GatehouseError
from gateway.core.ports import Reservation
from gateway.core.specs.audit import RAW_FACTOR, TextSpec
from gateway.core.types import InferenceRequest, Principal, Usage
from gateway.core.waiting import Maybe

MOST_KNOWN: Final = 4096
BOTH: Final = frozenset({"request", "response"})
NOTHING: Final[frozenset[str]] = frozenset()


class Keys(Protocol):
    """gateway.audit.keyring.KeyRing."""

    def current(self, tenant: str) -> Maybe[Any]:
        """Raises, or fails with, GatehouseError."""
        ...


def why(error: GatehouseError) -> str:
    """Why there is no key, worded for refusals and records: if a worker's control process is away, the worker itself is not overloaded."""
    return "the data keys cannot be reached at present" if error.code == "overloaded" else error.code


class RecordKeys:
    """Fetches the data key of a request before anything is done for it. For logs in which whole records are encrypted."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def at_hand(self, tenant: str) -> None:
        """Raises AuditUnavailable if there is no key: a request that cannot be recorded is refused."""
        if not tenant:
            return
        try:
            key = self._keys.current(tenant)
            if hasattr(key, "__await__"):
                await key
        except GatehouseError as error:
            raise AuditUnavailable(f"The record of this request cannot be encrypted: {why(error)}.", retry_after=1.0) from None


class Sealable(Protocol):
    """Makes what stands in a record until the writer encrypts it: gateway.audit.sealing.Pending."""

    def __call__(self, key: Any, tenant: str, parts: Sequence[bytes], most: int, *, answer: bool = False) -> Any: ...


class Client(Protocol):
    """As gateway.pipeline.exchange.Client."""

    @property
    def paused(self) -> bool: ...

    def send(self, data: bytes) -> None: ...

    def finished(self, keep_alive: bool) -> None: ...

    def read_body(self) -> None: ...

    def reserve(self, size: int) -> None: ...

    def settle_when_taken(self, reservation: Reservation, usage: Usage | None) -> None: ...


class Listener:
    """A client that passes everything on, and remembers its first `most` bytes."""

    def __init__(self, client: Client, most: int) -> None:
        self._client, self._left = client, most
        self.parts: list[bytes] = []
        self.finished, self.read_body, self.reserve = client.finished, client.read_body, client.reserve
        self.settle_when_taken = client.settle_when_taken

    @property
    def paused(self) -> bool:
        return self._client.paused

    def send(self, data: bytes) -> None:
        if self._left > 0:
            self.parts.append(data if len(data) <= self._left else data[: self._left])
            self._left -= len(data)
        self._client.send(data)


class Kept:
    """What is kept of one request. listener: None where its answer is not."""

    def __init__(self, texts: Texts, key: Any, tenant: str, what: frozenset[str], listener: Listener | None) -> None:
        self._texts, self._key, self._tenant, self._what, self._listener = texts, key, tenant, what, listener

    def prompt(self, body: bytes) -> Any:
        """The body, for the intent, if it is kept."""
        if "request" not in self._what:
            return None
        most = self._texts.spec.max_bytes
        return self._texts.sealable(self._key, self._tenant, [body[: most + 1]], most)

    def answer(self) -> Any:
        """What the client was sent, for the outcome, if it is kept."""
        if self._listener is None or not self._listener.parts:
            return None
        return self._texts.sealable(self._key, self._tenant, self._listener.parts, self._texts.spec.max_bytes, answer=True)


class Texts:
    """Whose texts are kept, in one process. active: whether any may be. until: API keys that are debugged, with the moment of the end."""

    def __init__(
        self,
        spec: TextSpec,
        keys: Keys,
        sealable: Sealable,
        matches: Callable[[str, str], bool],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.spec, self.sealable = spec, sealable
        self._keys, self._matches, self._wall = keys, matches, wall
        self._by_rule = BOTH if spec.record == "both" else NOTHING if spec.record == "none" else frozenset({spec.record})
        self._known: dict[tuple[str, str, tuple[str, ...], str], bool] = {}
        self.until: dict[str, float] = {}
        self.active = False
        self.debug({})

    def debug(self, until: dict[str, float]) -> None:
        """From now on these are all keys that are debugged."""
        self.until = dict(until)
        self.active = bool(until) or bool(self._by_rule and self.spec.when)

    def wanted(self, principal: Principal, model: str) -> frozenset[str]:
        """What is kept of a request: `request`, `response`, both or nothing."""
        if principal.kind == "api_key" and self.until.get(principal.id, 0.0) > self._wall():
            return BOTH
        if not self._by_rule:
            return NOTHING
        asked = (principal.tenant, principal.id, principal.roles, model)
        found = self._known.get(asked)
        if found is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            found = self._known[asked] = self._fits(principal, model)
        return self._by_rule if found else NOTHING

    def _fits(self, principal: Principal, model: str) -> bool:
        def one(patterns: Sequence[str], name: str) -> bool:
            return any(self._matches(pattern, name) for pattern in patterns)

        return any(
            one(rule.tenants, principal.tenant)
            and one(rule.models, model)
            and one(rule.keys, principal.id)
            and (rule.roles == ("*",) or any(one(rule.roles, role) for role in principal.roles))
            for rule in self.spec.when
        )

    async def keep(self, x: Any, principal: Principal, request: InferenceRequest) -> Kept | None:
        """Before the intent: what is kept of a request, with its tenant's data key; listens to the answer. Raises AuditUnavailable where
        there is no key and the settings say `closed`."""
        what = self.wanted(principal, x.entry.name) if self.active else NOTHING
        if not what:
            return None
        try:
            key = self._keys.current(principal.tenant)
            if hasattr(key, "__await__"):
                key = await key
        except GatehouseError as error:
            if self.spec.on_failure == "open":
                x.detail = {**(x.detail or {}), "text": f"not kept: {why(error)}"}
                return None
            raise AuditUnavailable(f"The text of this request cannot be encrypted: {why(error)}.", retry_after=1.0) from None
        listener = None
        if "response" in what:
            listener = Listener(x.client, RAW_FACTOR * self.spec.max_bytes)
            x.client = listener
        return Kept(self, key, principal.tenant, what, listener)
