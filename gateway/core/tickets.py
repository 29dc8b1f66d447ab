"""Direct tickets: what a gateway signs, what the machine that runs the request signs, and what the two tell each other (docs/tickets.md).

A ticket allows its bearer one request at one machine: exactly the body that the gateway has inspected, for an engine, until a moment. It is
the JSON of `Ticket` and its Ed25519 signature, both base64url (RFC 4648, 5) without padding, with a dot between them; a receipt is the same
of `Receipt`, signed with the machine's key.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Annotated, Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Meta

from gateway.core.messages import Ask, Message

TICKET: Final = "ght_"
RECEIPT: Final = "ghr_"
MAX_TEXT: Final = 4096
"""Characters of a ticket."""
SKEW: Final = 2.0
"""Seconds by which the clocks of gateway and machine may differ."""
OPERATION: Final = "tickets"
"""The operation that a right to tickets names, besides that of the request itself."""
PATHS: Final = (b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings")
"""The operations that a ticket can be for: those whose answers the gateway need not see."""
RECEIPT_HEADER: Final = "x-gatehouse-receipt"
_TEXT: Final = re.compile(r"(?:ght|ghr)_[A-Za-z0-9_-]{2,4000}\.[A-Za-z0-9_-]{86}", re.ASCII)
_TAGS: Final = {TICKET: b"gatehouse ticket 1\n", RECEIPT: b"gatehouse receipt 1\n"}
"""Prefix of the signed bytes, so that no signature of another protocol is valid here."""


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """id: 128 random bits in hex; good once. request: the id in the audit log. issuer: REPLICA or REPLICA/WORKER, which settles it.
    boot: of the machine's process. head: the lines of the request's head, as the engine gets them. sha256, size: of the body.
    prompt_tokens: the estimate that was reserved. max_tokens: that it may generate. issued, expires: seconds since the epoch; it must have
    arrived by then. seconds: that it may run."""

    id: str
    request: str
    issuer: str
    tenant: str
    machine: str
    boot: str
    engine: str
    path: str
    head: str
    sha256: str
    size: int
    stream: bool
    prompt_tokens: int
    max_tokens: int
    issued: float
    expires: float
    seconds: float


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """How a ticket's request ended. ticket: its id. outcome: `ok`, `cancelled` (by its client or the gateway) or `failed` (by the engine).
    bytes, sha256: of the answer. estimated: the engine did not count tokens, so chunks were counted. begun, first, ended: seconds since the
    epoch by the machine's clock; first: 0 if no answer began."""

    ticket: str
    machine: str
    outcome: str
    status: Annotated[int, Meta(ge=0, le=999)]
    finish: Annotated[str, Meta(max_length=64)] = ""
    prompt_tokens: Annotated[int, Meta(ge=0, le=2**40)] = 0
    completion_tokens: Annotated[int, Meta(ge=0, le=2**40)] = 0
    cached_tokens: Annotated[int, Meta(ge=0, le=2**40)] = 0
    reasoning_tokens: Annotated[int, Meta(ge=0, le=2**40)] = 0
    estimated: bool = False
    bytes: Annotated[int, Meta(ge=0, le=2**50)] = 0
    sha256: Annotated[str, Meta(max_length=64)] = ""
    begun: float = 0.0
    first: float = 0.0
    ended: float = 0.0


class ReportedTicket(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One ticket in a report. receipt: "" if the request has only begun."""

    ticket: Annotated[str, Meta(max_length=MAX_TEXT)]
    receipt: Annotated[str, Meta(max_length=MAX_TEXT)] = ""


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A machine's report on tickets."""

    told: Annotated[tuple[ReportedTicket, ...], Meta(max_length=8)]


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a report. ids: the tickets whose receipts need not be sent again."""

    ids: tuple[str, ...]


# --- between the process that gives a ticket and the one that signs it


class Signed(Message, frozen=True):
    """address: ADDRESS:PORT of the machine. host: what its certificate is for. ca: the authority of that, PEM."""

    ticket: str
    address: str
    host: str
    ca: str


class SignTicket(Ask[Signed], frozen=True, kw_only=True):
    """`ticket` without what only the control process knows (issuer, boot). Refused with RequestError where the machine takes none."""

    ticket: dict[str, Any]


class WithdrawTicket(Message, frozen=True):
    """The machine must not run it, or stop. until: seconds since the epoch, from when on it has nothing to run."""

    machine: str
    id: str
    until: float


class SettleTicket(Ask["TicketSettled"], frozen=True):
    """What a machine tells of a ticket, for the process that gave it. receipt: None where it has begun."""

    machine: str
    id: str
    ticket: str
    receipt: dict[str, Any] | None = None


class TicketSettled(Message, frozen=True):
    """known: it was open, or this receipt has settled it before."""

    known: bool


MESSAGES: Final[tuple[type[Message], ...]] = (Signed, SignTicket, WithdrawTicket, SettleTicket, TicketSettled)


class TicketDesk(Protocol):
    """Signs tickets, and passes on to machines which are not good any more."""

    async def sign(self, wanted: SignTicket) -> Signed:
        """Raises RequestError where the machine takes no tickets, Overloaded."""
        ...

    def withdraw(self, wanted: WithdrawTicket) -> None: ...


T = TypeVar("T", bound=msgspec.Struct)


def sealed(prefix: str, content: msgspec.Struct, sign: Callable[[bytes], bytes]) -> str:
    """A ticket or a receipt as text. sign: Ed25519."""
    payload = msgspec.json.encode(content)
    return f"{prefix}{_text(payload)}.{_text(sign(_TAGS[prefix] + payload))}"


def opened(prefix: str, text: str, kind: type[T]) -> tuple[T, bytes, bytes]:
    """(content, the bytes that are signed, the signature), of which nothing is verified yet. Raises ValueError for what has another form.

    There is one text for each content and signature: what decodes to the same bytes with other characters is refused.
    """
    if len(text) > MAX_TEXT or not text.startswith(prefix) or _TEXT.fullmatch(text) is None:
        raise ValueError("not of this form")
    first, _, second = text[len(prefix) :].partition(".")
    payload, signature = _bytes(first), _bytes(second)
    try:
        return msgspec.json.decode(payload, type=kind), _TAGS[prefix] + payload, signature
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode("ascii").rstrip("=")


def _bytes(text: str) -> bytes:
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _text(data) != text:
        raise ValueError("not of this form")
    return data
