"""How a machine speaks to one gateway: it joins, and then says several times within a lease that it is there.

A beat that fails is followed by the next one; whether the machine is there is the gateway's to judge. What ends the machine is to be told
that it has not joined, by every gateway that it knows and for long enough that it is no mistake of the moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from base64 import b64encode
from collections.abc import Callable
from typing import Final

import httpx
import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.core.addresses import quotable
from gateway.core.errors import ConfigError
from gateway.core.joining import BEATS, JOIN, REPORTS, SIGNATURE, Beat, Heard, Joined, Joining, signed
from gateway.core.tickets import SKEW

log = logging.getLogger("gatehouse.machine")
FINAL: Final = ("invalid_join_token", "name_taken")
"""Refusals of a join that another try does not change."""
UNKNOWN_SECONDS: Final = 4.0
"""How long a gateway may not know a machine that has joined, if another replica admitted it just now."""
UNKNOWN_TIMES: Final = 4
"""And how often at least: a machine that stood still for so long has asked only once before."""
JOIN_SECONDS: Final = 10.0
REPORT_SECONDS: Final = 5.0
WHOLE: Final = 3.0
MAX_ANSWER: Final = 4 * 1024 * 1024
"""Bytes of an answer that are read at most."""
LEASE: Final = 4
"""Beats that a gateway asks for in a lease."""
LEAST_SECONDS: Final = 0.2
FAR: Final = 3600.0
"""Seconds by which the clocks of a machine without a port for tickets may differ until it says so."""


class Refused(Exception):
    """The gateway will not have this machine; the text says why."""


class Caller:
    """One gateway. Life: `aclose`."""

    def __init__(self, url: str, name: str, key: Ed25519PrivateKey, verify: object) -> None:
        self.url, self._name, self._key = url, name, key
        self._client = httpx.AsyncClient(base_url=url, verify=verify, trust_env=False, http2=False)  # type: ignore[arg-type]
        self._path = f"{JOIN}/{name}/{BEATS}"
        self._session, self._sequence = "", 0
        self._unknown_since: float | None = None
        self._unknown = 0
        self._trouble = ""
        self.tickets = ""
        """The public key that verifies its tickets, as it was last heard."""
        self.every = 0.5
        self.heard_at: float | None = None
        """Monotonic seconds at which it took the last beat."""
        self.apart = False
        """Its clock and this machine's differ so far that its tickets would be refused here: it is told that there is no port for them."""

    async def aclose(self) -> None:
        await self._client.aclose()

    async def join(self, token: str) -> Joined | None:
        """None: it cannot be reached, or cannot say now. Raises Refused."""
        public = self._key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        body = msgspec.json.encode(Joining(name=self._name, public_key=b64encode(public).decode("ascii")))
        try:
            answer = await self._post(JOIN, body, JOIN_SECONDS, {"authorization": f"Bearer {token}"})
        except httpx.HTTPError as error:
            self._note(f"cannot be reached: {error or type(error).__name__}")
            return None
        if answer.status_code != 201:
            code, why = _problem(answer)
            if code in FINAL:
                raise Refused(why)
            self._note(why)
            return None
        try:
            joined = msgspec.json.decode(answer.content, type=Joined)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._note("its answer is not that of a gateway")
            return None
        self._note("")
        self.every = max(LEAST_SECONDS / 4, joined.every)
        return joined

    async def beat(self, made: Callable[[str, int], Beat]) -> Heard | None:
        """Says once how the machine is; once more where that begins a session. made: (session, sequence) -> what to say. None: it was not
        heard. Raises Refused."""
        for _ in range(2):
            self._sequence += 1
            said = made(self._session, self._sequence)
            body = msgspec.json.encode(msgspec.structs.replace(said, tickets=None) if self.apart else said)
            asked = time.time()
            try:
                answer = await self._post(self._path, body, max(LEAST_SECONDS, 2 * self.every))
            except httpx.HTTPError as error:
                self._note(f"cannot be reached: {error or type(error).__name__}")
                return None
            if answer.status_code == 200:
                heard = self._heard(answer)
                if heard is not None:
                    self._compare(heard.now, asked, time.time(), tickets=said.tickets is not None)
                return heard
            code, why = _problem(answer)
            if answer.status_code == 409 and code == "machine_session":
                self._session, self._sequence = why, 0
                continue
            if code == "unknown_machine":
                self._not_known(why)
            self._note(why)
            return None
        return None

    async def report(self, body: bytes) -> bytes | None:
        """Tells what became of tickets; the answer, None where there is none."""
        try:
            answer = await self._post(f"{JOIN}/{self._name}/{REPORTS}", body, REPORT_SECONDS)
        except httpx.HTTPError as error:
            log.warning("gateway %s: receipts are sent later: %s", self.url, error or type(error).__name__)
            return None
        if answer.status_code != 200:
            log.warning("gateway %s: receipts are sent later: %s", self.url, _problem(answer)[1])
            return None
        return answer.content

    def reached(self, within: float) -> bool:
        """Whether it was heard in the time of a lease, or this many seconds."""
        return self.heard_at is not None and time.monotonic() - self.heard_at < max(within, LEASE * self.every)

    def _heard(self, answer: httpx.Response) -> Heard | None:
        try:
            heard = msgspec.json.decode(answer.content, type=Heard)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._note("its answer is not that of a gateway")
            return None
        self._note("")
        self._unknown_since, self._unknown = None, 0
        self.every, self.heard_at = max(LEAST_SECONDS / 4, heard.every), time.monotonic()
        self.tickets = heard.tickets
        return heard

    def _compare(self, now: float, asked: float, answered: float, *, tickets: bool) -> None:
        """now: its clock at a moment between two of this machine's. tickets: whether the machine has a port for them."""
        most = SKEW if tickets else FAR
        apart = bool(now) and not asked - most <= now <= answered + most
        if apart and not self.apart:
            ahead = asked - now if now < asked else answered - now
            log.warning(
                "gateway %s: this machine's clock is %.0f s %s: %s", self.url, abs(ahead), "ahead" if ahead > 0 else "behind",
                "it takes no tickets of this gateway until that is mended" if tickets
                else "mend it; the certificates of gateways are not valid to one that is behind by more than a day",
            )  # fmt: skip
        elif self.apart and not apart:
            log.info("gateway %s: the clocks agree again", self.url)
        self.apart = apart

    def _not_known(self, why: str) -> None:
        now = time.monotonic()
        self._unknown_since = now if self._unknown_since is None else self._unknown_since
        self._unknown += 1
        if now - self._unknown_since > UNKNOWN_SECONDS and self._unknown >= UNKNOWN_TIMES:
            raise Refused(why)

    async def _post(self, path: str, body: bytes, seconds: float, headers: dict[str, str] | None = None) -> httpx.Response:
        """seconds: of each step; all of them take WHOLE times that at most. Raises httpx.HTTPError."""
        signature = b64encode(self._key.sign(signed(path, body))).decode("ascii")
        given = {SIGNATURE: signature, "content-type": "application/json", "accept-encoding": "identity", **(headers or {})}
        try:
            async with (
                asyncio.timeout(WHOLE * seconds),
                self._client.stream("POST", path, content=body, headers=given, timeout=seconds) as answer,
            ):
                if "content-encoding" in answer.headers:
                    raise httpx.ReadError("its answer is compressed, which was not asked for")
                content = bytearray()
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > MAX_ANSWER:
                        raise httpx.ReadError("its answer is too large")
        except TimeoutError:
            raise httpx.ReadTimeout("its answer does not end") from None
        return httpx.Response(answer.status_code, content=bytes(content))

    def _note(self, trouble: str) -> None:
        """Says a trouble once, and its end."""
        if trouble != self._trouble:
            if trouble:
                log.warning("gateway %s: %s", self.url, trouble)
            elif self._trouble:
                log.info("gateway %s: heard again", self.url)
            self._trouble = trouble


def _problem(answer: httpx.Response) -> tuple[str, str]:
    """(code, what it says). Of a new session: that."""
    try:
        said = answer.json()
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        return "", f"answered {answer.status_code}"
    if said.get("code") == "machine_session":
        return "machine_session", str(said.get("session"))[:64]
    return str(said.get("code") or ""), str(said.get("detail") or said.get("title") or f"answered {answer.status_code}")[:512]


def checked_url(text: str) -> str:
    """The URL of a gateway's admin listener. Raises ConfigError."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        raise ConfigError(f"--join {quotable(text)!r} is not a URL; write https://gateway.example:8081") from None
    local = url.host in ("127.0.0.1", "::1", "localhost")
    if not url.host or url.scheme not in ("http", "https") or url.path not in ("", "/") or url.query or url.userinfo:
        raise ConfigError(f"--join {quotable(text)!r} is not the URL of an admin listener; write https://gateway.example:8081")
    if url.scheme == "http" and not local:
        raise ConfigError(f"--join {quotable(text)!r} is without TLS: the token and what is done with it would be open to whoever listens")
    return text.rstrip("/")
