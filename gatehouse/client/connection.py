"""The synchronous connection to an admin listener."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from typing import Any

import httpx

from gatehouse.client.calls import AGAIN, Call, checked, decoded, failed, pause_before, uses_environment
from gatehouse.client.errors import ConnectionFailed
from gatehouse.client.events import Event, Reader


class Connection:
    """Sends calls, several at a time if threads share it.

    timeout: seconds for each answer. retries: how often a call that does no harm twice (a read, a creation with an idempotency key) is
    sent again after a refusal that passes (429, 503) or a connection that failed.
    """

    def __init__(
        self, url: str, key: str, timeout: float, retries: int, verify: ssl.SSLContext | bool, transport: httpx.BaseTransport | None
    ) -> None:
        base, headers = checked(url, key)
        self.timeout, self.retries = timeout, retries
        self.http = httpx.Client(
            base_url=base, headers=headers, timeout=timeout, verify=verify, transport=transport, trust_env=uses_environment(url)
        )

    def json(self, call: Call) -> Any:
        """The answer, decoded. Raises AdminError, ConnectionFailed."""
        return decoded(self.send(call))

    def send(self, call: Call) -> httpx.Response:
        """A successful answer, read. Raises AdminError, ConnectionFailed."""
        options = call.options()
        for attempt in range(self.retries + 1):
            last = attempt == self.retries or not call.repeatable
            try:
                response = self.http.request(call.method, call.path, timeout=self.timeout, **options)
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
            time.sleep(pause or 0.0)
        raise AssertionError("the last attempt returns or raises")

    def parts(self, call: Call) -> Iterator[bytes]:
        """The bytes of a long answer as they come; `timeout` bounds the wait for each. Raises AdminError, ConnectionFailed."""
        try:
            with self.http.stream(call.method, call.path, timeout=self.timeout, **call.options()) as response:
                if response.is_error:
                    response.read()
                    raise failed(response)
                yield from response.iter_bytes()
        except httpx.HTTPError as error:
            raise ConnectionFailed(f"the answer broke off: {error or type(error).__name__}") from error

    def events(self, call: Call) -> Iterator[Event]:
        """Events as they happen, for as long as the caller asks for more. Raises AdminError, ConnectionFailed."""
        reader = Reader()
        try:
            with self.http.stream(call.method, call.path, timeout=httpx.Timeout(self.timeout, read=None), **call.options()) as response:
                if response.is_error:
                    response.read()
                    raise failed(response)
                for line in response.iter_lines():
                    if (event := reader.line(line)) is not None:
                        yield event
        except httpx.HTTPError as error:
            raise ConnectionFailed(f"the events broke off: {error or type(error).__name__}") from error
