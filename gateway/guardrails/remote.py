"""A server that guardrails ask: its connections, deadline, breaker and signature.

Whatever goes wrong is an EngineError, which the guardrail's fail mode decides. After several failures in a row the server is left alone for
a while, so that requests need not wait for a deadline that will be missed; then one question tries it.
"""

from __future__ import annotations

import time
from typing import Annotated, Final
from urllib.parse import urlsplit
from uuid import uuid4

from msgspec import Meta

from gateway.core.addresses import quotable
from gateway.core.deadlines import Patience, within
from gateway.core.errors import EngineError, EngineTimeout
from gateway.core.secret import Secret
from gateway.core.signatures import key_fault, signature
from gateway.core.specs import ClientTlsSpec, Seconds, Spec, Timeout
from gateway.core.tasks import TaskOwner
from gateway.guardrails.fair_turns import FairTurns, Party
from gateway.transport.ask import ask
from gateway.transport.pool import EndpointClient

TICK_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 1024 * 1024
OF_THE_QUESTION: Final = frozenset({200, 400, 413, 414, 422})
"""Statuses of failures that are about the question, not about the server: it refuses it, or says too much about it."""


class GuardBreakerSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """failures: in a row, after which the server is not asked for `open_for`."""

    failures: Annotated[int, Meta(ge=1, le=1000)] = 5
    open_for: Seconds = 5.0


class Breaker:
    """Closed: questions are asked. Open: none. Then one question tries the server, and its end decides."""

    def __init__(self, settings: GuardBreakerSpec) -> None:
        self._settings = settings
        self._failures = 0
        self._until = 0.0
        self._trying = False

    def admit(self, now: float) -> None:
        """Raises EngineError while the server is left alone."""
        if self._failures < self._settings.failures:
            return
        if self._trying or now < self._until:
            raise EngineError(f"the server failed {self._failures} times in a row and is not asked for a while")
        self._trying = True

    def ended(self, good: bool, now: float) -> None:
        """A question that was admitted has its answer, or none."""
        self._trying = False
        self._failures = 0 if good else self._failures + 1
        self._until = now + self._settings.open_for

    def left(self) -> None:
        """A question that was admitted was given up by its caller: it says nothing."""
        self._trying = False


class _Asked:
    """One question. since: when the server was asked, by the monotonic clock; 0.0 while it was not. late: it did not answer in time.
    status: of its answer, 0 without one."""

    __slots__ = ("late", "since", "status")

    def __init__(self) -> None:
        self.late, self.since, self.status = False, 0.0, 0

    def blames(self, timeout: float) -> bool:
        """Whether a failure is the server's. It is not where the server refuses the question itself, nor where other questions took most of
        the time: a caller who sends very many texts, or strange ones, must not bring it about that nobody is served."""
        if self.late:
            return self.since > 0.0 and time.monotonic() - self.since >= timeout / 2
        return self.status not in OF_THE_QUESTION


class Remote:
    """One server. secret: of signatures. Life: `start`, `aclose`."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        timeout: Timeout,
        concurrent: int,
        tls: ClientTlsSpec | None,
        token: Secret | None,
        secret: Secret | None,
        breaker: GuardBreakerSpec,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{quotable(url)!r} is not an address to post to; write http://HOST/PATH or https://HOST/PATH")
        if secret is not None and (fault := key_fault(secret.reveal())):
            raise ValueError(f"secret: {fault}")
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token.reveal()}"
        self._secret = None if secret is None else secret.reveal()
        self._timeout = timeout
        self._client = EndpointClient(f"{parts.scheme}://{parts.netloc}", tls=tls, connect_timeout=timeout, max_idle=concurrent)
        self._turns = FairTurns(concurrent)
        self._breaker = Breaker(breaker)
        self.tasks = TaskOwner(f"guardrail {name}")

    def start(self) -> None:
        self.tasks.every(TICK_SECONDS, self._tick, name="connections")

    async def aclose(self) -> None:
        await self.tasks.aclose()
        await self._client.aclose()

    async def _tick(self) -> None:
        self._client.tick(time.monotonic())

    def patience(self) -> Patience:
        """The deadline of all questions about one request or answer, beginning now."""
        return Patience(self._timeout)

    async def post(self, question: bytes, patience: Patience, max_body: int = MAX_ANSWER_BYTES, party: Party | None = None) -> bytes:
        """The body of an answer with status 200. party: the request that has several questions. Raises EngineError."""
        breaker, asked = self._breaker, _Asked()
        breaker.admit(time.monotonic())
        try:
            body = await self._post(question, patience, max_body, asked, party or Party())
        except EngineError:
            if asked.blames(self._timeout):
                breaker.ended(False, time.monotonic())
            else:
                breaker.left()
            raise
        except BaseException:
            breaker.left()
            raise
        breaker.ended(True, time.monotonic())
        return body

    async def _post(self, question: bytes, patience: Patience, max_body: int, asked: _Asked, party: Party) -> bytes:
        try:
            async with within(patience.left()), self._turns.turn(party):
                asked.since = time.monotonic()
                reply = await ask(self._client, "POST", self._path, self._signed(question), question, max_body=max_body)
        except TimeoutError:
            asked.late = True
            raise EngineTimeout(f"the server did not answer within {self._timeout:g} s") from None
        asked.status = reply.head.status
        if reply.head.status != 200:
            raise EngineError(f"the server answered with status {reply.head.status}")
        if len(reply.body) > max_body:
            raise EngineError(f"the server's answer is longer than {max_body} bytes")
        return reply.body

    def _signed(self, body: bytes) -> dict[str, str]:
        """The headers of a question; signed by Standard Webhooks (gateway.core.signatures) where there is a secret."""
        if self._secret is None:
            return self._headers
        id, now = f"gr_{uuid4().hex}", int(time.time())
        signed = {"webhook-id": id, "webhook-timestamp": str(now), "webhook-signature": signature(self._secret, id, now, body)}
        return {**self._headers, **signed}
