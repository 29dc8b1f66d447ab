"""Direct tickets: a request is inspected and signed by the gateway and then run at the machine that has the engine, in two calls.

    with Tickets("https://gateway.example", key) as tickets:
        ticket = tickets.ask({"model": "m1", "max_tokens": 64, "messages": [{"role": "user", "content": "Hello"}]})
        print(tickets.run(ticket).json()["choices"][0]["message"]["content"])

The machine's certificate is verified by the authority that came with the ticket, from the gateway, and by no other.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Generic, Self, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from gatehouse.client.calls import checked, uses_environment
from gatehouse.client.errors import ConnectionFailed, GatehouseClientError

CHAT: Final = "/v1/chat/completions"
PATH: Final = "/v1/tickets"
RECEIPT: Final = "x-gatehouse-receipt"
C = TypeVar("C", httpx.Client, httpx.AsyncClient)
"""The connections of one kind of client."""


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
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConnectionFailed(f"the answer is no ticket: {error}") from error


def machine_context(ticket: Ticket) -> ssl.SSLContext:
    """Trusts the machines of the gateway alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=ticket.ca)
    return context


@contextmanager
def _answering(trouble: str) -> Iterator[None]:
    """Whatever goes wrong with a connection is a ConnectionFailed, of this trouble."""
    try:
        yield
    except httpx.HTTPError as error:
        raise ConnectionFailed(f"{trouble}: {error or type(error).__name__}") from error


def _run(response: httpx.Response) -> httpx.Response:
    if response.status_code != 200:
        raise TicketRefused(response)
    return response


class _Both(Generic[C]):
    """What the two clients share. made: of connections to one gateway, and to its machines."""

    def __init__(self, made: Callable[..., C], url: str, key: str, timeout: float, verify: ssl.SSLContext | bool) -> None:
        _, headers = checked(url, key)
        self._made: Callable[..., C] = made
        self._timeout, self._host = timeout, urlsplit(url).hostname
        self._gateway: C = made(base_url=url, headers=headers, timeout=timeout, verify=verify, trust_env=uses_environment(url))
        self._machines: dict[str, C] = {}

    def _machine(self, ticket: Ticket) -> C:
        """The connections to machines of the ticket's authority."""
        found = self._machines.get(ticket.ca)
        if found is None:
            found = self._machines[ticket.ca] = self._made(verify=machine_context(ticket), timeout=self._timeout, trust_env=False)
        return found


class Tickets(_Both[httpx.Client]):
    """Direct tickets of the gateway whose data listener is at `url`. timeout: seconds without anything from the other side. verify: as for
    `Admin`, of the gateway. Raises ValueError for a URL or key that cannot be used."""

    def __init__(self, url: str, key: str, *, timeout: float = 60.0, verify: ssl.SSLContext | bool = True) -> None:
        super().__init__(httpx.Client, url, key, timeout, verify)

    def ask(self, request: Mapping[str, Any], *, endpoint: str = CHAT, expires_in: float | None = None) -> Ticket:
        """A ticket for a request: the body that would be posted to the endpoint. Raises TicketRefused, ConnectionFailed."""
        with _answering(f"no answer from {self._host}"):
            return _ticket(self._gateway.post(PATH, **_wish(request, endpoint, expires_in)))

    def run(self, ticket: Ticket) -> httpx.Response:
        """The machine's answer, whole. Raises TicketRefused, ConnectionFailed."""
        url, options = ticket.call()
        with _answering(f"no answer from {ticket.machine}"):
            return _run(self._machine(ticket).post(url, **options))

    @contextmanager
    def stream(self, ticket: Ticket) -> Iterator[httpx.Response]:
        """The machine's answer as it comes: `for line in response.iter_lines()`. Raises TicketRefused, ConnectionFailed."""
        url, options = ticket.call()
        with _answering(f"the answer of {ticket.machine} broke off"), self._machine(ticket).stream("POST", url, **options) as response:
            if response.status_code != 200:
                response.read()
            yield _run(response)

    def close(self) -> None:
        for client in (self._gateway, *self._machines.values()):
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncTickets(_Both[httpx.AsyncClient]):
    """`Tickets` for asyncio."""

    def __init__(self, url: str, key: str, *, timeout: float = 60.0, verify: ssl.SSLContext | bool = True) -> None:
        super().__init__(httpx.AsyncClient, url, key, timeout, verify)

    async def ask(self, request: Mapping[str, Any], *, endpoint: str = CHAT, expires_in: float | None = None) -> Ticket:
        """See `Tickets.ask`."""
        with _answering(f"no answer from {self._host}"):
            return _ticket(await self._gateway.post(PATH, **_wish(request, endpoint, expires_in)))

    async def run(self, ticket: Ticket) -> httpx.Response:
        """See `Tickets.run`."""
        url, options = ticket.call()
        with _answering(f"no answer from {ticket.machine}"):
            return _run(await self._machine(ticket).post(url, **options))

    @asynccontextmanager
    async def stream(self, ticket: Ticket) -> AsyncIterator[httpx.Response]:
        """See `Tickets.stream`; the lines come with `async for line in response.aiter_lines()`."""
        url, options = ticket.call()
        with _answering(f"the answer of {ticket.machine} broke off"):
            async with self._machine(ticket).stream("POST", url, **options) as response:
                if response.status_code != 200:
                    await response.aread()
                yield _run(response)

    async def aclose(self) -> None:
        for client in (self._gateway, *self._machines.values()):
            await client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
