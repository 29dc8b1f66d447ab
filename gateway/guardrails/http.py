"""A guardrail that another server decides: the texts are sent to it, and its answer is the verdict.

The only shape so far is OpenAI's moderation endpoint (API reference, "Create moderation"): `{"input": [...]}` is answered by
`{"results": [{"flagged": ...}]}`, one result for each text. Whatever is not such an answer, within the deadline, is a failure of the
guardrail, which its fail mode decides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from gateway.core.errors import EngineError, EngineTimeout
from gateway.core.plugins import Context
from gateway.core.secret import Secret
from gateway.core.specs import ClientTlsSpec, Spec, Timeout
from gateway.core.tasks import TaskOwner
from gateway.core.types import ALLOW, Verdict
from gateway.core.waiting import Maybe
from gateway.transport.ask import ask
from gateway.transport.pool import EndpointClient

REASON: Final = "The text is not allowed here."
TICK_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 1024 * 1024


class HttpSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """url: where texts are posted to. timeout: for one question, waiting for its turn included. concurrent: questions at a time. max_bytes:
    of all the texts of one question; longer ones cannot be inspected. model, token: sent where they are given. tls: towards the server."""

    url: Annotated[str, Meta(min_length=1)]
    shape: Literal["openai_moderation"] = "openai_moderation"
    timeout: Timeout = 1.0
    concurrent: Annotated[int, Meta(ge=1, le=1024)] = 64
    max_bytes: Annotated[int, Meta(ge=1, le=64 * 1024 * 1024)] = 1024 * 1024
    model: str | None = None
    token: Secret | None = None
    tls: ClientTlsSpec | None = None


class _Result(Struct):
    flagged: bool


class _Results(Struct):
    results: list[_Result]


_RESULTS: Final = msgspec.json.Decoder(_Results)


class HttpGuardrail:
    """Asks for every set of texts. Streams are held until they end."""

    def __init__(self, name: str, settings: HttpSettings) -> None:
        self.name, self._settings = name, settings
        parts = urlsplit(settings.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{settings.url!r} is not an address to post to; write http://HOST/PATH or https://HOST/PATH")
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {"content-type": "application/json"}
        if settings.token is not None:
            self._headers["authorization"] = f"Bearer {settings.token.reveal()}"
        self._client = EndpointClient(
            f"{parts.scheme}://{parts.netloc}", tls=settings.tls, connect_timeout=settings.timeout, max_idle=settings.concurrent
        )
        self._tasks = TaskOwner(f"guardrail {name}")
        self._turns = asyncio.Semaphore(settings.concurrent)
        self._blocked = Verdict("block", name, REASON)

    async def start(self) -> None:
        self._tasks.every(TICK_SECONDS, self._tick, name="connections")

    async def aclose(self) -> None:
        await self._tasks.aclose()
        await self._client.aclose()

    def check(self, texts: Sequence[str]) -> Maybe[Verdict]:
        """Allow or block. Raises EngineError, EngineTimeout: the server did not say what the texts are."""
        asked = [text for text in texts if text]
        if not asked:
            return ALLOW
        return self._tasks.wait(self._verdict(self._question(asked), len(asked)), name="check")

    def stream(self) -> None:
        return None

    async def _tick(self) -> None:
        self._client.tick(time.monotonic())

    def _question(self, texts: list[str]) -> bytes:
        if sum(map(len, texts)) > self._settings.max_bytes:  # before anything is encoded
            raise EngineError(f"the texts are longer than max_bytes ({self._settings.max_bytes})")
        body: dict[str, Any] = {"input": texts}
        if self._settings.model is not None:
            body["model"] = self._settings.model
        try:
            question = msgspec.json.encode(body)
        except UnicodeEncodeError:  # half a surrogate pair, which UTF-8 cannot hold
            body["input"] = [text.encode("utf-8", "replace").decode() for text in texts]
            question = msgspec.json.encode(body)
        if len(question) > 2 * self._settings.max_bytes + 1024:
            raise EngineError(f"the texts are longer than max_bytes ({self._settings.max_bytes})")
        return question

    async def _verdict(self, question: bytes, count: int) -> Verdict:
        try:
            async with asyncio.timeout(self._settings.timeout), self._turns:
                reply = await ask(self._client, "POST", self._path, self._headers, question, max_body=MAX_ANSWER_BYTES)
        except TimeoutError:
            raise EngineTimeout(f"the server did not answer within {self._settings.timeout:g} s") from None
        if reply.head.status != 200:
            raise EngineError(f"the server answered with status {reply.head.status}")
        try:
            results = _RESULTS.decode(reply.body).results
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EngineError(f"the server's answer is not a moderation: {error}") from None
        if len(results) != count:
            raise EngineError(f"the server answered for {len(results)} of {count} texts")
        return self._blocked if any(result.flagged for result in results) else ALLOW


def build(settings: HttpSettings, context: Context) -> HttpGuardrail:
    """Raises ValueError; ConfigError for TLS files."""
    if not context.local:
        raise ValueError("a guardrail that calls a server belongs into the configuration file")
    return HttpGuardrail(context.name, settings)
