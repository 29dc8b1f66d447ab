"""The asynchronous connection to an admin listener."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import Any

import httpx

from gatehouse.client.calls import AGAIN, Call, checked, decoded, failed, pause_before, uses_environment
from gatehouse.client.errors import ConnectionFailed
from gatehouse.client.events import Event, Reader


class AsyncConnection:
    """Sends calls, several at a time if tasks share it.

    timeout: seconds for each answer. retries: how often a call that does no harm twice (a read, a creation with an idempotency key) is
    sent again after a refusal that passes (429, 503) or a connection that failed.
    """

    def __init__(
        self, url: str, key: str, timeout: float, retries: int, verify: ssl.SSLContext | bool, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        base, headers = checked(url, key)
        self.timeout, self.retries = timeout, retries
        self.http = httpx.AsyncClient(
            base_url=base, headers=headers, timeout=timeout, verify=verify, transport=transport, trust_env=uses_environment(url)
        )

    async def json(self, call: Call) -> Any:
        """The answer, decoded. Raises AdminError, ConnectionFailed."""
        return decoded(await self.send(call))

    async def send(self, call: Call) -> httpx.Response:
        """A successful answer, read. Raises AdminError, ConnectionFailed."""
        options = call.options()
        for attempt in range(self.retries + 1):
            last = attempt == self.retries or not call.repeatable
            try:
                response = await self.http.request(call.method, call.path, timeout=self.timeout, **options)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                if last:
                    raise ConnectionFailed(f"no answer from {self.http.base_url.host}: {error or type(error).__name__}") from error
                pause = pause_before(attempt, None)
            else:
                if not response.is_error:
                    return response
                error_ = failed(response)
                pause = pause_before(attempt, error_.retry_after)
                if last or response.status_code not in AGAIN or pause is None:
                    raise error_
            await asyncio.sleep(pause or 0.0)
        raise AssertionError("the last attempt returns or raises")

    async def parts(self, call: Call) -> AsyncIterator[bytes]:
        """The bytes of a long answer as they come; `timeout` bounds the wait for each. Raises AdminError, ConnectionFailed."""
        try:
            async with self.http.stream(call.method, call.path, timeout=self.timeout, **call.options()) as response:
                if response.is_error:
                    await response.aread()
                    raise failed(response)
                async for part in response.aiter_bytes():
                    yield part
        except httpx.HTTPError as error:
            raise ConnectionFailed(f"the answer broke off: {error or type(error).__name__}") from error

    async def events(self, call: Call) -> AsyncIterator[Event]:
        """Events as they happen, for as long as the caller asks for more. Raises AdminError, ConnectionFailed."""
        reader = Reader()
        try:
            async with self.http.stream(
                call.method, call.path, timeout=httpx.Timeout(self.timeout, read=None), **call.options()
            ) as response:
                if response.is_error:
                    await response.aread()
                    raise failed(response)
                async for line in response.aiter_lines():
                    if (event := reader.line(line)) is not None:
                        yield event
        except httpx.HTTPError as error:
            raise ConnectionFailed(f"the events broke off: {error or type(error).__name__}") from error
