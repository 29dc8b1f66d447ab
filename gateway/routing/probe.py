"""The active probe over HTTP: GET `health.path`, or /health and, if that does not exist, /v1/models.

Any 2xx is good, unless the body has a `state` other than `ready`: a sidecar answers 200 while it loads its model. llama.cpp's own server
answers 503 "Loading model" then. `slots` in the body is how many requests the engine runs at once. Addresses are those of
gateway.transport.address.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import msgspec

from gateway.core.errors import ConfigError, EngineError, Overloaded
from gateway.core.specs import EngineSpec
from gateway.routing.health import ProbeResult
from gateway.transport.ask import MAX_BODY, Reply, ask
from gateway.transport.pool import EndpointClient

_DETAILS = ("state", "device", "model", "sha256", "slots", "in_use", "queue", "kv_used", "tokens_per_second", "vram_bytes")
_LOADING = ("starting", "loading")


class HttpProbe:
    """One client of the data plane's own transport per address: a probe costs a tenth of a millisecond of the loop that requests
    share, where a general HTTP client costs three. Kept between probes, dropped when the address or its settings change."""

    def __init__(self) -> None:
        self._clients: dict[str, tuple[EngineSpec, str, EndpointClient]] = {}
        self._without_health: set[str] = set()

    async def probe(self, spec: EngineSpec, address: str, timeout: float) -> ProbeResult | None:
        """One probe, `timeout` seconds at most."""
        try:
            async with asyncio.timeout(timeout):
                return await self._ask(spec, address)
        except TimeoutError:
            return ProbeResult(False, f"no answer within {timeout:g} s")
        except Overloaded:  # the gateway itself could not ask
            return None
        except EngineError as error:
            cause = f" ({error.__cause__})" if error.__cause__ is not None and str(error.__cause__) else ""
            return ProbeResult(False, f"{error.message}{cause}", refused=error.refused)
        except (ConfigError, ssl.SSLError, OSError, ValueError) as error:
            return ProbeResult(False, f"{type(error).__name__}: {error}")

    async def aclose(self) -> None:
        clients, self._clients = self._clients, {}
        for _, _, client in clients.values():
            await client.aclose()

    async def forget(self, engine: str) -> None:
        """Closes the client of an engine that is gone."""
        if (known := self._clients.pop(engine, None)) is not None:
            await known[2].aclose()

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
    headers = dict(spec.headers)
    if spec.api_key is not None:
        headers["authorization"] = f"Bearer {spec.api_key.reveal()}"
    return _judged(await ask(client, "GET", path, headers), path)


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
        except ValueError:
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
    except ValueError:
        return False
    if not isinstance(said, dict):
        return False
    error = said.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return said.get("state") in _LOADING or message == "Loading model"
