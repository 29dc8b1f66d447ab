"""One call of gRPC as the pipeline sees it: whose it is, its headers, and the client of its exchange. Knows nothing of grpcio."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

import msgspec

from gateway.core.errors import GatehouseError, Overloaded, PermissionDenied, RequestError
from gateway.core.ports import Reservation
from gateway.core.specs import ListenSpec
from gateway.core.types import Headers, Peer, Usage
from gateway.pipeline.plane import DataPlane
from gateway.server.answers import AnswerReader
from gateway.server.head import REQUEST_ID, UNDERSCORE
from gateway.server.peers import forwarded_peer, is_trusted, let_in, plain, refusal
from gateway.server.reading import SINGLE
from gateway.telemetry.refused import NETWORK

DROPPED: Final = frozenset(
    {"accept-encoding", "connection", "content-length", "content-type", "expect", "host", "inference-header-content-length", "te",
     "transfer-encoding", "upgrade"}
)  # fmt: skip
"""Names of metadata that say something of HTTP/2 or of a body, which the gateway says itself."""
STATUSES: Final = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 408: "DEADLINE_EXCEEDED",
    409: "FAILED_PRECONDITION", 413: "RESOURCE_EXHAUSTED", 415: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED",
    431: "RESOURCE_EXHAUSTED", 499: "CANCELLED",
    501: "UNIMPLEMENTED", 502: "UNAVAILABLE", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED", 507: "RESOURCE_EXHAUSTED",
}  # fmt: skip
"""gRPC's status for each of HTTP's that an error has; INTERNAL for any other."""
SHOWN: Final = ("x-", "retry-after", "www-authenticate", "dpop-nonce")
_CERTIFICATES: Final = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----\s*").findall
Metadata = tuple[tuple[str, str], ...]


class PeerCalls:
    """Calls under way, by the other end of their connection. grpcio bounds connections and calls, but not by whose they are: one client
    could have all of them, without any credential. Those of a trusted proxy are anybody's, and are not bounded."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    @contextmanager
    def entered(self, address: str, limits: ListenSpec) -> Iterator[None]:
        """Counts a call while it lasts. Raises Overloaded where the address has as many already as it may have connections."""
        count = self._counts.get(address, 0)
        if count >= limits.max_connections_per_peer and not is_trusted(address, limits.trusted_peers):
            raise Overloaded("Too many calls at once from this address.", retry_after=1.0)
        self._counts[address] = count + 1
        try:
            yield
        finally:
            if left := self._counts[address] - 1:
                self._counts[address] = left
            else:
                del self._counts[address]


class Failed(Exception):
    """A call that ends with a status. trailing: its metadata."""

    def __init__(self, status: str, message: str, trailing: Metadata = ()) -> None:
        super().__init__(message)
        self.status, self.message, self.trailing = status, message, trailing


def failed(error: GatehouseError, request_id: bytes) -> Failed:
    """The status of an error that met no exchange."""
    trailing = [("x-request-id", request_id.decode()), ("x-gatehouse-code", error.code)]
    trailing += [(name, value) for name, value in error.headers if name.startswith(SHOWN)]
    if error.retry_after is not None:
        trailing += _pushback(-(-error.retry_after * 1000 // 1))
    return Failed(STATUSES.get(error.status, "INTERNAL"), error.message, tuple(trailing))


def _pushback(milliseconds: float) -> list[tuple[str, str]]:
    """`grpc-retry-pushback-ms` tells clients with a retry policy when to try again (gRFC A6)."""
    return [("retry-after-ms", f"{milliseconds:.0f}"), ("grpc-retry-pushback-ms", f"{milliseconds:.0f}")]


def too_large(metadata: Sequence[tuple[str, str | bytes]], limits: ListenSpec) -> bool:
    """Whether a call has more metadata than a request may have headers. gRPC's own bounds count once a client has acknowledged them: until
    then a call may have 16 MB, of a few kilobytes on the wire."""
    return len(metadata) > limits.max_headers or sum([len(name) + len(value) for name, value in metadata]) > limits.max_header_bytes


def headers_of(metadata: Iterable[tuple[str, str | bytes]]) -> Headers:
    """A call's metadata as the headers of a request. Raises RequestError for a credential that is given twice."""
    headers: Headers = {}
    for name, value in metadata:
        if name in DROPPED or name.startswith((":", "grpc-")) or name.endswith("-bin") or isinstance(value, bytes):
            continue
        key = name.lower().encode("latin-1")
        if UNDERSCORE in key:
            continue
        data = value.encode("latin-1", "replace")
        if key in headers:
            if key in SINGLE:
                raise RequestError(f"The metadata {name} is given twice.", code="invalid_header")
            data = headers[key] + b", " + data
        headers[key] = data
    return headers


def request_id_of(headers: Headers, plane: DataPlane) -> bytes:
    given = headers.get(b"x-request-id")
    return given if given is not None and REQUEST_ID(given) else plane.next_id()


def address_of_peer(text: str) -> str:
    """The address in gRPC's name of a peer: `ipv4:1.2.3.4:5`, `ipv6:%5B::1%5D:5`."""
    kind, _, rest = text.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return "local"
    return plain(unquote(rest).rpartition(":")[0].strip("[]"))


def peer_of_call(plane: DataPlane, name: str, auth: Mapping[str, Iterable[bytes]], headers: Headers) -> Peer:
    """Who calls, as for a request over HTTP. Raises PermissionDenied, RequestError for somebody who is not let in."""
    snapshot = plane.current()
    limits, rules = snapshot.spec.listen, snapshot.networks
    address = address_of_peer(name)
    pem = next(iter(auth.get("x509_pem_cert", ())), None)
    certificate = None if pem is None else ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))
    sent = b"" if pem is None else next(iter(auth.get("x509_pem_cert_chain", ())), b"")
    peer = Peer(address, is_trusted(address, limits.trusted_peers), certificate, chain=_chain(sent) if sent else ())
    if rules is not None and not let_in(rules, peer):
        plane.refused.count("data", NETWORK, address)
        raise PermissionDenied("Requests from this address are not accepted.", code="network_denied")
    if peer.trusted:
        peer = forwarded_peer(peer, headers, limits.trusted_peers, snapshot.spec.identity, limits.forwarding)
        if (error := refusal(peer, headers, limits.trusted_peers, limits.forwarding, rules)) is not None:
            raise error
    return peer


@lru_cache(maxsize=1024)
def _chain(sent: bytes) -> tuple[bytes, ...]:
    """The certificates (PEM) that a client has sent, in DER: among them all that its own was verified by, but for configured ones."""
    return tuple(ssl.PEM_cert_to_DER_cert(one) for one in _CERTIFICATES(sent.decode("ascii")))


class CallClient:
    """The client of one exchange (gateway.pipeline.exchange.Client): gathers its answer. `done` completes when it is settled."""

    def __init__(self, plane: DataPlane, owner: str) -> None:
        self._plane, self._owner = plane, owner
        self._reader = AnswerReader()
        self._parts: list[bytes] = []
        self._held = 0
        self._unsettled: list[tuple[Reservation, Usage | None]] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def paused(self) -> bool:
        """Once the answer is whole, the client has not taken it yet: its reservation is settled when it has (`taken`)."""
        return self._reader.ended

    def send(self, data: bytes) -> None:
        self._parts += self._reader.feed(data)

    def finished(self, keep_alive: bool) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def read_body(self) -> None:
        """Nothing to do: the body came with the message."""

    def reserve(self, size: int) -> None:
        self._plane.memory.take(self._owner, size, self._plane.current().spec.listen)
        self._held += size

    def settle_when_taken(self, reservation: Reservation, usage: Usage | None) -> None:
        self._unsettled.append((reservation, usage))

    def taken(self) -> None:
        """The client has its answer, or is gone."""
        if self._held:
            self._plane.memory.give_back(self._owner, self._held)
            self._held = 0
        unsettled, self._unsettled = self._unsettled, []
        for reservation, usage in unsettled:
            reservation.settle(usage)

    # --- the answer

    @property
    def headers(self) -> Headers:
        return self._reader.headers

    def body(self) -> bytes:
        """The body of a successful answer. Raises Failed for any other."""
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        status = self._reader.status
        if status == 200:
            return body
        error = _error(body)
        trailing = [*self.shown(), ("x-gatehouse-code", str(error.get("code")))]
        if (after := self.headers.get(b"retry-after-ms")) is not None:
            trailing += _pushback(int(after))[1:]
        raise Failed(STATUSES.get(status, "INTERNAL"), str(error.get("message") or "The call was cancelled."), tuple(trailing))

    def shown(self) -> Metadata:
        """The headers of the answer that are the call's trailing metadata."""
        found = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.headers.items()]
        return tuple((name, value) for name, value in found if name.startswith(SHOWN))


def _error(body: bytes) -> dict[str, object]:
    try:
        found = msgspec.json.decode(body)
        error = found["error"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {"message": error, "code": found.get("code")}
