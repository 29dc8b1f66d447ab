"""The port of a joined machine where clients run requests with tickets: HTTP/1.1 over TLS, without client certificates, as the ticket is
the credential. What is not exactly the request of a ticket reaches no engine.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.app.joined.listener import UNIX
from gateway.app.joined.receipts import Receipts
from gateway.app.joined.small_server import Scope, answer, cut, small_server
from gateway.app.joined.tally import Tally
from gateway.app.joined.ticket_check import Checker
from gateway.core.deadlines import within
from gateway.core.errors import AuthenticationError, EngineError, GatehouseError, NotFound, Overloaded, RequestError
from gateway.core.tasks import TaskOwner
from gateway.core.tickets import PATHS, RECEIPT, RECEIPT_HEADER, Receipt, Ticket, sealed

log = logging.getLogger("gatehouse.machine")
BODY_SECONDS: Final = 30.0
MAX_BODY: Final = 64 * 1024 * 1024
MAX_CONNECTIONS: Final = 1024
END_SECONDS: Final = 2.0
WITHDRAWN: Final = 3600.0
"""Seconds for which a withdrawn ticket is remembered."""


class TicketPort:
    """name: of the machine. key: its own, which signs receipts. place: (engine) -> where it is served, `unix:PATH` or `http://HOST:PORT`;
    None while it is not. reached: whether a gateway is heard. Life: `present`, `start`, `drain`, `aclose`."""

    def __init__(
        self,
        name: str,
        key: Ed25519PrivateKey,
        checker: Checker,
        receipts: Receipts,
        place: Callable[[str], str | None],
        reached: Callable[[], bool],
    ) -> None:
        self._name, self._key, self.checker, self._receipts = name, key, checker, receipts
        self._place, self._reached = place, reached
        self._owner = TaskOwner("tickets")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.set_alpn_protocols(["http/1.1"])
        self._arriving: set[str] = set()
        """Tickets whose body is being read: of each one at a time, as else one ticket could fill the memory."""
        self._running: dict[str, asyncio.Event] = {}
        """Requests that run, by their ticket's id. An event is set if its request must end."""
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._leaving = False
        self._server = small_server(self._application, connections=MAX_CONNECTIONS, keep_alive=30, graceful=2, tls=self._context)

    @property
    def running(self) -> int:
        return len(self._running)

    def present(self, certificate: Path, key: Path) -> None:
        """Raises OSError, ssl.SSLError."""
        self._context.load_cert_chain(certificate, key)

    def start(self, listening: socket.socket) -> None:
        self._owner.spawn(self._server.serve(sockets=[listening]), name="listener")

    def withdraw(self, ids: tuple[str, ...]) -> None:
        """The gateway has ended these."""
        self.checker.withdraw(ids, WITHDRAWN)
        for id in ids:
            if (running := self._running.get(id)) is not None:
                running.set()

    def stop_all(self) -> None:
        """No gateway can be heard, so none could end what runs."""
        for running in self._running.values():
            running.set()

    async def drain(self, seconds: float) -> None:
        """Takes no more tickets, and waits until those that were taken have run."""
        self._leaving = True
        deadline = time.monotonic() + seconds
        while self._running and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        self.stop_all()

    async def aclose(self) -> None:
        self._leaving = True
        self.stop_all()
        self._server.end()
        self._server.force_exit = True
        await self._owner.finish(END_SECONDS)  # the server takes its socket out of the loop, and closes it
        for client in self._clients.values():
            await client.aclose()

    # --- one request

    async def _application(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        try:
            ticket, text, body = await self._admitted(scope, receive)
        except GatehouseError as error:
            await _refuse(send, error)
            return
        except TimeoutError:
            await _refuse(send, RequestError("The body did not arrive in time.", code="request_timeout", status=408))
            return
        if not await _Run(self, ticket, text, body, receive, send).run():
            await cut(scope, receive)

    async def _admitted(self, scope: Scope, receive: Any) -> tuple[Ticket, str, bytes]:
        """The ticket, which is used up now, its text, and the body that it is for. Raises GatehouseError, TimeoutError."""
        if scope["method"] != "POST" or scope["raw_path"] not in PATHS:
            raise NotFound("Here are only requests with tickets of a gateway.")
        scheme, _, text = _header(scope, b"authorization").decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not text:
            raise AuthenticationError("Send the ticket as 'Authorization: Bearer ght_...'.", code="missing_credentials")
        ticket = self.checker.ticket(text.strip())
        if self._leaving or not self._reached() or self._receipts.full:
            raise Overloaded("This machine takes no tickets at the moment.", retry_after=1.0)
        if ticket.size > MAX_BODY:
            raise RequestError("The body is too large.", code="request_too_large", status=413)
        if ticket.id in self._arriving:
            raise Overloaded("The body of this ticket is being received on another connection.", retry_after=1.0)
        self._arriving.add(ticket.id)
        try:
            async with within(BODY_SECONDS):
                body = await _body(receive, ticket.size)
        finally:
            self._arriving.remove(ticket.id)
        if self._place(ticket.engine) is None:
            raise Overloaded("The engine is not up.", retry_after=1.0)
        self.checker.use(ticket, scope["raw_path"].decode("ascii"), body)
        return ticket, text.strip(), body

    def client(self, engine: str) -> httpx.AsyncClient:
        """The connections to an engine's sidecar. Raises Overloaded."""
        place = self._place(engine)
        if place is None:
            raise Overloaded("The engine is not up.", retry_after=1.0)
        if place not in self._clients:
            limits = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=16)
            path = place.removeprefix(UNIX) if place.startswith(UNIX) else None
            transport = httpx.AsyncHTTPTransport(uds=path, limits=limits)
            url = place if path is None else "http://engine"
            self._clients[place] = httpx.AsyncClient(transport=transport, base_url=url, timeout=None, trust_env=False)
        return self._clients[place]

    def begin(self, ticket: Ticket, text: str) -> asyncio.Event:
        self._receipts.begun(ticket, text)
        ended = self._running[ticket.id] = asyncio.Event()
        return ended

    def end(self, ticket: Ticket, text: str, receipt: Receipt) -> str:
        """Signs and keeps what became of a ticket; the receipt as text, "" where it cannot be kept."""
        self._running.pop(ticket.id, None)
        made = sealed(RECEIPT, receipt, self._key.sign)
        try:
            self._receipts.add(ticket, text, made)
        except OSError as error:
            log.error("the receipt of %s cannot be written down: %s", ticket.request, error)
            return ""
        return made

    def watch(self, client_left: Any, name: str) -> asyncio.Task[None]:
        return self._owner.spawn(client_left, name=name)


class _Run:
    """One ticket's request, from its engine to its client."""

    def __init__(self, port: TicketPort, ticket: Ticket, text: str, body: bytes, receive: Any, send: Any) -> None:
        self._port, self._ticket, self._text, self._body = port, ticket, text, body
        self._receive, self._send = receive, send
        self._tally = Tally(ticket.stream)
        self._begun, self._first = time.time(), 0.0
        self._status = 0
        self._started = self._told = False

    async def run(self) -> bool:
        """Whether the client has a whole answer, if only an error."""
        stop = self._port.begin(self._ticket, self._text)
        watching = self._port.watch(self._left(stop), "client")
        passing = self._port.watch(self._passed(), "engine")
        stopping = self._port.watch(stop.wait(), "stop")
        try:
            async with within(self._ticket.seconds):
                await asyncio.wait((passing, stopping), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass  # its time is over: what has been generated counts
        finally:
            cut = not passing.done()
            for task in (passing, watching, stopping):
                task.cancel()
        if cut:
            await asyncio.wait((passing,))
            self._ended("cancelled", whole=False)
            if not self._started:
                await _refuse(self._send, EngineError("The request was ended.", code="ticket_ended", status=503))
            return not self._started
        error = passing.exception()
        if error is not None:
            if not isinstance(error, httpx.HTTPError | GatehouseError):
                log.error("a request with a ticket failed", exc_info=error)
            self._ended("failed", whole=False)
            if not self._started:
                await _refuse(self._send, EngineError("The engine failed."))
                return True
        return error is None

    async def _left(self, stop: asyncio.Event) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        stop.set()

    async def _passed(self) -> None:
        ticket = self._ticket
        headers = [(name, value) for name, _, value in (line.partition(": ") for line in ticket.head.split("\r\n") if line)]
        headers.append(("x-gatehouse-deadline-ms", str(int(ticket.seconds * 1000))))
        client = self._port.client(ticket.engine)
        async with client.stream("POST", ticket.path, content=self._body, headers=headers) as answer:
            self._status = answer.status_code
            if answer.status_code == 200 and ticket.stream:
                await self._streamed(answer)
            else:
                await self._whole(answer)

    async def _whole(self, answer: httpx.Response) -> None:
        parts = []
        async for data in answer.aiter_raw():
            self._first = self._first or time.time()
            self._tally.feed(data)
            parts.append(data)
        done = answer.status_code == 200
        receipt = self._ended("ok" if done else "failed", whole=done)
        content = b"".join(parts)
        self._started = True
        await self._head(answer, receipt, len(content))
        await self._send({"type": "http.response.body", "body": content})

    async def _streamed(self, answer: httpx.Response) -> None:
        self._started = True
        await self._head(answer, "", None)
        async for data in answer.aiter_raw():
            self._first = self._first or time.time()
            self._tally.feed(data)
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
        receipt = self._ended("ok" if self._tally.done else "failed", whole=self._tally.done)
        last = f": {RECEIPT_HEADER}: {receipt}\n\n".encode() if receipt else b""
        await self._send({"type": "http.response.body", "body": last})

    async def _head(self, answer: httpx.Response, receipt: str, length: int | None) -> None:
        headers = [
            (b"content-type", answer.headers.get("content-type", "application/json").encode("latin-1")),
            (b"cache-control", b"no-store"),
            (b"x-request-id", self._ticket.request.encode()),
        ]
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        if receipt:
            headers.append((RECEIPT_HEADER.encode(), receipt.encode()))
        await self._send({"type": "http.response.start", "status": answer.status_code, "headers": headers})

    def _ended(self, outcome: str, *, whole: bool) -> str:
        if self._told:
            return ""
        self._told = True
        ticket, tally = self._ticket, self._tally
        nothing = outcome == "failed" and not tally.chunks
        used = {} if nothing else tally.used(ticket.prompt_tokens, ticket.max_tokens, whole=whole)
        return self._port.end(
            ticket,
            self._text,
            Receipt(
                ticket=ticket.id,
                machine=ticket.machine,
                outcome=outcome,
                status=self._status,
                bytes=tally.bytes,
                sha256=tally.sha256,
                begun=self._begun,
                first=self._first,
                ended=time.time(),
                **used,
            ),
        )


async def _body(receive: Any, most: int) -> bytes:
    """Raises RequestError for one that is longer."""
    data = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError("The client left.", code="client_gone", status=400)
        data += message.get("body", b"")
        if len(data) > most:
            raise RequestError("The body is longer than the one that the ticket is for.", code="ticket_mismatch")
        if not message.get("more_body"):
            return bytes(data)


def _header(scope: Scope, name: bytes) -> bytes:
    """The one value; b"" where there are several."""
    found = [value for given, value in scope["headers"] if given == name]
    return found[0] if len(found) == 1 else b""


async def _refuse(send: Any, error: GatehouseError) -> None:
    headers = [(b"cache-control", b"no-store")]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, int(error.retry_after))))
    await answer(send, error.status, error.body(), headers)
