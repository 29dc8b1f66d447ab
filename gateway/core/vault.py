"""Data keys of the audit log's encryption: what the store keeps of them, and what the processes of a gateway tell each other.

Only the process with the store asks the master key. A worker that needs a tenant's data key asks that process (`GiveDataKey`) and keeps
what it gets for `seconds` at most; `DataKeysDropped` takes it away before.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from gateway.core.messages import Ask, Message
from gateway.core.secret import Secret

KeyState = Literal["active", "retired", "shredded"]
"""Active keys encrypt; retired ones open what they encrypted; of shredded ones only the row is left."""


class DataKeyRow(Struct, frozen=True, kw_only=True):
    """A data key as the store has it. wrapped: by the master of this id; "" once shredded. ended: when it was retired or shredded."""

    id: str
    tenant: str
    version: int
    state: KeyState
    master: str
    wrapped: str
    created: float
    ended: float | None = None


class DataKeyGiven(Message, frozen=True, kw_only=True):
    """key: 32 bytes in hex. seconds: for which it may be used without asking again."""

    id: str
    tenant: str
    version: int
    key: Secret
    seconds: float


class GiveDataKey(Ask[DataKeyGiven], frozen=True):
    """Asks for the data key that encrypts for a tenant now. Refused with MasterUnavailable, StoreUnavailable."""

    tenant: str


class DataKeyOpened(Message, frozen=True, kw_only=True):
    """given: a key that encrypted once; None where it is gone for good, and `why`."""

    given: DataKeyGiven | None = None
    why: str = ""


class OpenDataKey(Ask[DataKeyOpened], frozen=True):
    """Asks for a data key by its id, to read what it has encrypted. Refused with MasterUnavailable, StoreUnavailable."""

    id: str


class DataKeysDropped(Message, frozen=True):
    """Change: the keys of a tenant are not what they were; nothing that is remembered of them counts. None: of all tenants."""

    tenant: str | None


class CapturesChanged(Message, frozen=True):
    """Change: these are all keys (API keys) whose texts are kept for a while, with the moment at which that ends."""

    until: dict[str, float]


class ShredPlan(Struct, frozen=True, kw_only=True):
    """What shredding a tenant's keys would destroy. digest: of the ids; whoever confirms says it."""

    tenant: str
    keys: tuple[str, ...]
    digest: str
    held: str = ""
    """Why it may not be done; "" if it may."""


class RevealedText(Struct, frozen=True, kw_only=True):
    """One text of a request. kind: of the record (`intent`: the prompt; `outcome`: the answer). state: `text`, `shredded`, or `lost`."""

    kind: str
    time: float
    state: Literal["text", "shredded", "lost"]
    key: str
    text: Any = None
    why: str = ""
