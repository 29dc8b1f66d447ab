"""The active probe over HTTP: GET `health.path`, or /health and, if that does not exist, /v1/models.

Any 2xx is good, unless the body has a `state` other than `ready`: a sidecar answers 200 while it loads its model. llama.cpp's own server
answers 503 "Loading model" then. `slots` in the body is how many requests the engine runs at once. Addresses are those of
gateway.transport.address.

The load of an external engine is read from its metrics (`health.metrics`), beside its probes and not more often than every LOAD_SECONDS:
neither a slow answer nor a wrong one changes what a probe says.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from gateway.core.errors import ConfigError, EngineError, Overloaded
from gateway.core.pauses import slept
from gateway.core.specs import EngineSpec
from gateway.core.tasks import TaskOwner
from gateway.routing.engine_metrics import load_in
from gateway.routing.health import ProbeResult
from gateway.transport.ask import MAX_BODY, Reply, ask
from gateway.transport.pool import EndpointClient

_DETAILS = ("state", "device", "model", "sha256", "slots", "in_use", "queue", "kv_used", "kv_held", "tokens_per_second", "vram_bytes")
_LOADING = ("starting", "loading")
LOAD_SECONDS: Final = 3.0
"""Between two questions for an engine's load."""
LOAD_PAUSE: Final = 60.0
"""Until an engine is asked again that did not tell its load."""
LOAD_FRESH: Final = 15.0
"""Seconds for which a reported load counts."""
LOAD_TIMEOUT: Final = 2.0
LOAD_BYTES: Final = 1024 * 1024
"""Sixteen engines of a data parallel vLLM report 800 KiB."""


class _Told:
    """What an engine has told of its load. asked: when it was asked last. said: when it answered last. load: what; None: it does not tell,
    or has not yet. Times are monotonic seconds."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.asked = self.said = float("-inf")
        self.load: dict[str, float] | None = None


class HttpProbe:
    """One client of the data plane's own transport per address: a probe costs a tenth of a millisecond of the loop that requests
    share, where a general HTTP client costs three. Kept between probes, dropped when the address or its settings change."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._clients: dict[str, tuple[EngineSpec, str, EndpointClient]] = {}
        self._without_health: set[str] = set()
        self._loads: dict[str, _Told] = {}
        """By engine."""
        self._tasks = TaskOwner("probe")

    async def probe(self, spec: EngineSpec, address: str, timeout: float) -> ProbeResult | None:
        """One probe, `timeout` seconds at most. None where this process stood still meanwhile: the engine may have, too."""
        begun = self._now()
        try:
            async with asyncio.timeout(timeout):
                result = await self._ask(spec, address)
        except TimeoutError:
            return None if slept(begun, timeout, self._now()) else ProbeResult(False, f"no answer within {timeout:g} s")
        except Overloaded:  # the gateway itself could not ask
            return None
        except EngineError as error:
            cause = f" ({error.__cause__})" if error.__cause__ is not None and str(error.__cause__) else ""
            return ProbeResult(False, f"{error.message}{cause}", refused=error.refused)
        except (ConfigError, ssl.SSLError, OSError, ValueError) as error:
            return ProbeResult(False, f"{type(error).__name__}: {error}")
        if result.ok and spec.runtime == "external" and spec.health.metrics is not None:
            self._add_load(result, spec, address, spec.health.metrics)
        return result

    async def aclose(self) -> None:
        await self._tasks.aclose()
        clients, self._clients = self._clients, {}
        for _, _, client in clients.values():
            await client.aclose()

    async def forget(self, engine: str) -> None:
        """Closes the client of an engine that is gone."""
        self._loads.pop(engine, None)
        if (known := self._clients.pop(engine, None)) is not None:
            await known[2].aclose()

    def _add_load(self, result: ProbeResult, spec: EngineSpec, address: str, where: str) -> None:
        """Adds the load that the engine told last, and asks for the next one."""
        now = time.monotonic()
        told = self._loads.get(spec.name)
        if told is None or told.address != address:
            told = self._loads[spec.name] = _Told(address)
        if told.load is not None and now - told.said < LOAD_FRESH:
            result.details["load"] = told.load
        if now - told.asked < (LOAD_SECONDS if told.load is not None else LOAD_PAUSE):
            return
        told.asked = now
        self._tasks.spawn(self._read_load(spec, told, where), name=f"{spec.name}: load")

    async def _read_load(self, spec: EngineSpec, told: _Told, where: str) -> None:
        """Where the engine does not answer, what it told before stays: a busy one may be late once."""
        port, _, path = where.partition("/")
        client = EndpointClient(_at_port(told.address, port), tls=spec.tls, connect_timeout=LOAD_TIMEOUT, max_idle=1)
        try:
            async with asyncio.timeout(LOAD_TIMEOUT):
                # Another port may be another server's: it gets no credentials.
                answer = await ask(client, "GET", f"/{path}", {} if port else _credentials(spec), max_body=LOAD_BYTES)
            whole = answer.head.status == 200 and len(answer.body) <= LOAD_BYTES
            told.load, told.said = load_in(answer.body) if whole else None, time.monotonic()
        except (TimeoutError, EngineError, Overloaded, ConfigError, OSError, ValueError):
            pass  # what it said before is fresh for a while
        finally:
            await client.aclose()

    async def _ask(self, spec: EngineSpec, address: str) -> ProbeResult:
        client = await self._client(spec, address)
        if spec.health.path is not None:
            return await _get(client, spec, spec.health.path)
        if spec.name not in self._without_health:
            result = await _get(client, spec, "/health")
            if result.details.get("status") not in (404, 405):
                return result
            self._without_health.add(spec.name)
        return await _get(client, spec, "/v1/models")

    async def _client(self, spec: EngineSpec, address: str) -> EndpointClient:
        known = self._clients.get(spec.name)
        if known is not None and known[0] == spec and known[1] == address:
            return known[2]
        await self.forget(spec.name)
        self._without_health.discard(spec.name)
        client = EndpointClient(address.rstrip("/"), tls=spec.tls, connect_timeout=spec.timeouts.connect, max_idle=1)
        self._clients[spec.name] = (spec, address, client)
        return client


async def _get(client: EndpointClient, spec: EngineSpec, path: str) -> ProbeResult:
    """Raises EngineError. Has no deadline of its own."""
    return _judged(await ask(client, "GET", path, _credentials(spec)), path)


def _credentials(spec: EngineSpec) -> dict[str, str]:
    headers = dict(spec.headers)
    if spec.api_key is not None:
        headers["authorization"] = f"Bearer {spec.api_key.reveal()}"
    return headers


def _at_port(address: str, port: str) -> str:
    """The address at another port (`:8002`) of the same host; "": as it is."""
    if not port:
        return address
    parts = urlsplit(address)
    host = parts.netloc.removesuffix(f":{parts.port}") if parts.port is not None else parts.netloc
    at = parts.fragment.rpartition(":")[0]
    return parts._replace(netloc=f"{host}{port}", fragment=f"{at}{port}" if at else parts.fragment).geturl()


def _judged(answer: Reply, path: str) -> ProbeResult:
    status, body = answer.head.status, answer.body
    details: dict[str, Any] = {"status": status}
    if not 200 <= status < 300:
        loading = status == 503 and _says_loading(body)
        reason = "it is loading its model" if loading else f"{path} answered {status}"
        return ProbeResult(False, reason, loading=loading, details=details)
    if (answer.head.get(b"content-type") or b"").startswith(b"application/json") and len(body) <= MAX_BODY:
        try:
            said = msgspec.json.decode(body)
        except (ValueError, RecursionError):
            return ProbeResult(False, f"{path} did not answer with JSON", details=details)
        if isinstance(said, dict):
            details.update((key, said[key]) for key in _DETAILS if key in said)
    state, slots = details.get("state"), details.get("slots")
    known = slots if isinstance(slots, int) and not isinstance(slots, bool) and 1 <= slots <= 65536 else None
    if isinstance(state, str) and state != "ready":
        return ProbeResult(False, f"state is {state}", slots=known, loading=state in _LOADING, details=details)
    return ProbeResult(True, slots=known, details=details)


def _says_loading(body: bytes) -> bool:
    """Whether the body of a 503 says that the model is being loaded, as a sidecar's state or as llama.cpp's own server does."""
    try:
        said = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return False
    if not isinstance(said, dict):
        return False
    error = said.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return said.get("state") in _LOADING or message == "Loading model"
