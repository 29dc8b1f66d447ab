"""Direct tickets: a request is inspected and signed by the gateway and then run at the machine that has the engine, in two calls.

    with Tickets("https://gateway.example", key) as tickets:
        ticket = tickets.ask({"model": "m1", "max_tokens": 64, "messages": [{"role": "user", "content": "Hello"}]})
        print(tickets.run(ticket).json()["choices"][0]["message"]["content"])

The machine's certificate is verified by the authority that came with the ticket, from the gateway, and by no other.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpx
import msgspec

from gatehouse.client.calls import checked, is_loopback
from gatehouse.client.errors import ConnectionFailed, GatehouseClientError

CHAT: Final = "/v1/chat/completions"
PATH: Final = "/v1/tickets"
RECEIPT: Final = "x-gatehouse-receipt"


class TicketRefused(GatehouseClientError):
    """The gateway gave no ticket, or the machine did not run it. status, code: as docs/errors.md lists them; `ticket_not_possible`: send
    the request to the gateway."""

    def __init__(self, response: httpx.Response) -> None:
        try:
            error = response.json()["error"]
            message, code = str(error["message"]), str(error["code"])
        except (ValueError, KeyError, TypeError):
            message, code = f"{response.status_code} {response.reason_phrase}", ""
        super().__init__(message)
        self.status, self.code = response.status_code, code


class Ticket(msgspec.Struct, frozen=True):
    """A ticket as the gateway gave it. body: what is sent with it. expires_at: seconds since the epoch."""

    id: str
    ticket: str
    url: str
    address: str
    ca: str
    body: str
    expires_at: float
    model: str
    machine: str
    max_tokens: int

    def call(self) -> tuple[str, dict[str, Any]]:
        """The URL and httpx's options of the request at the machine, which is dialled at its address."""
        parts = urlsplit(self.url)
        headers = {"authorization": f"Bearer {self.ticket}", "content-type": "application/json", "host": str(parts.hostname)}
        options = {"content": self.body.encode(), "headers": headers, "extensions": {"sni_hostname": parts.hostname}}
        return f"https://{self.address}{parts.path}", options


def receipt_in(text: str) -> str:
    """The receipt at the end of a stream, "" where there is none yet."""
    mark = f": {RECEIPT}: "
    place = text.rfind(mark)
    return "" if place < 0 else text[place + len(mark) :].partition("\n")[0]


def _wish(request: Mapping[str, Any], endpoint: str, expires_in: float | None) -> dict[str, Any]:
    wish: dict[str, Any] = {"endpoint": endpoint, "request": request}
    if expires_in is not None:
        wish["expires_in"] = expires_in
    return {"content": msgspec.json.encode(wish), "headers": {"content-type": "application/json"}}


def _ticket(response: httpx.Response) -> Ticket:
    if response.status_code != 200:
        raise TicketRefused(response)
    try:
        return msgspec.json.decode(response.content, type=Ticket)
    except msgspec.MsgspecError as error:
        raise ConnectionFailed(f"the answer is no ticket: {error}") from error


def machine_context(ticket: Ticket) -> ssl.SSLContext:
    """Trusts the machines of the gateway alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=ticket.ca)
    return context


class Tickets:
    """Direct tickets of the gateway whose data listener is at `url`. timeout: seconds without anything from the other side. verify: as for
    `Admin`, of the gateway. Raises ValueError for a URL or key that cannot be used."""

    def __init__(self, url: str, key: str, *, timeout: float = 60.0, verify: ssl.SSLContext | bool = True) -> None:
        _, headers = checked(url, key)
        self._timeout = timeout
        self._gateway = httpx.Client(base_url=url, headers=headers, timeout=timeout, verify=verify, trust_env=not is_loopback(url))
        self._machines: dict[str, httpx.Client] = {}

    def ask(self, request: Mapping[str, Any], *, endpoint: str = CHAT, expires_in: float | None = None) -> Ticket:
        """A ticket for a request: the body that would be posted to the endpoint. Raises TicketRefused, ConnectionFailed."""
        try:
            return _ticket(self._gateway.post(PATH, **_wish(request, endpoint, expires_in)))
        except httpx.HTTPError as error:
            raise ConnectionFailed(f"no answer from {self._gateway.base_url.host}: {error or type(error).__name__}") from error

    def run(self, ticket: Ticket) -> httpx.Response:
        """The machine's answer, whole. Raises TicketRefused, ConnectionFailed."""
        url, options = ticket.call()
        try:
            response = self._machine(ticket).post(url, **options)
        except httpx.HTTPError as error:
            raise ConnectionFailed(f"no answer from {ticket.machine}: {error or type(error).__name__}") from error
        if response.status_code != 200:
            raise TicketRefused(response)
        return response

    @contextmanager
    def stream(self, ticket: Ticket) -> Iterator[httpx.Response]:
        """The machine's answer as it comes: `for line in response.iter_lines()`. Raises TicketRefused, ConnectionFailed."""
        url, options = ticket.call()
        try:
            with self._machine(ticket).stream("POST", url, **options) as response:
                if response.status_code != 200:
                    response.read()
                    raise TicketRefused(response)
                yield response
        except httpx.HTTPError as error:
            raise ConnectionFailed(f"the answer of {ticket.machine} broke off: {error or type(error).__name__}") from error

    def _machine(self, ticket: Ticket) -> httpx.Client:
        found = self._machines.get(ticket.ca)
        if found is None:
            found = self._machines[ticket.ca] = httpx.Client(verify=machine_context(ticket), timeout=self._timeout, trust_env=False)
        return found

    def close(self) -> None:
        for client in (self._gateway, *self._machines.values()):
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncTickets:
    """`Tickets` for asyncio."""

    def __init__(self, url: str, key: str, *, timeout: float = 60.0, verify: ssl.SSLContext | bool = True) -> None:
        _, headers = checked(url, key)
        self._timeout = timeout
        self._gateway = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, verify=verify, trust_env=not is_loopback(url))
        self._machines: dict[str, httpx.AsyncClient] = {}

    async def ask(self, request: Mapping[str, Any], *, endpoint: str = CHAT, expires_in: float | None = None) -> Ticket:
        """See `Tickets.ask`."""
        try:
            return _ticket(await self._gateway.post(PATH, **_wish(request, endpoint, expires_in)))
        except httpx.HTTPError as error:
            raise ConnectionFailed(f"no answer from {self._gateway.base_url.host}: {error or type(error).__name__}") from error

    async def run(self, ticket: Ticket) -> httpx.Response:
        """See `Tickets.run`."""
        url, options = ticket.call()
        try:
            response = await self._machine(ticket).post(url, **options)
        except httpx.HTTPError as error:
            raise ConnectionFailed(f"no answer from {ticket.machine}: {error or type(error).__name__}") from error
        if response.status_code != 200:
            raise TicketRefused(response)
        return response

    @asynccontextmanager
    async def stream(self, ticket: Ticket) -> AsyncIterator[httpx.Response]:
        """See `Tickets.stream`; the lines come with `async for line in response.aiter_lines()`."""
        url, options = ticket.call()
        try:
            async with self._machine(ticket).stream("POST", url, **options) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise TicketRefused(response)
                yield response
        except httpx.HTTPError as error:
            raise ConnectionFailed(f"the answer of {ticket.machine} broke off: {error or type(error).__name__}") from error

    def _machine(self, ticket: Ticket) -> httpx.AsyncClient:
        found = self._machines.get(ticket.ca)
        if found is None:
            found = self._machines[ticket.ca] = httpx.AsyncClient(verify=machine_context(ticket), timeout=self._timeout, trust_env=False)
        return found

    async def aclose(self) -> None:
        for client in (self._gateway, *self._machines.values()):
            await client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
