"""The active probe over HTTP: GET `health.path`, or /health and, where there is none, /v1/models.

Any 2xx is good. A body that names a `state` must name `ready` (a sidecar answers 200 while it loads; llama.cpp's own server 503 with
the message "Loading model"); one that names `slots` tells how many requests the engine runs at once. Addresses are those of
gateway.transport.address.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import httpx

from gateway.core.errors import ConfigError
from gateway.core.specs import EngineSpec
from gateway.routing.health import ProbeResult
from gateway.transport.address import parse_address, tls_context

_DETAILS = ("state", "device", "model", "sha256", "slots", "in_use", "queue", "kv_used", "tokens_per_second", "vram_bytes")
_LOADING = ("starting", "loading")
_MAX_BODY = 64 * 1024


class HttpProbe:
    """One httpx client per address, kept between probes, dropped when the address or its settings change."""

    def __init__(self) -> None:
        self._clients: dict[str, tuple[EngineSpec, str, httpx.AsyncClient]] = {}
        self._without_health: set[str] = set()

    async def probe(self, spec: EngineSpec, address: str, timeout: float) -> ProbeResult:
        """One probe, `timeout` seconds at most."""
        try:
            async with asyncio.timeout(timeout):
                return await self._ask(spec, address)
        except TimeoutError:
            return ProbeResult(False, f"no answer within {timeout:g} s")
        except httpx.TimeoutException as error:
            return ProbeResult(False, type(error).__name__)
        except httpx.ConnectError as error:
            return ProbeResult(False, f"cannot connect: {error}", refused=not _is_tls(error))
        except (httpx.HTTPError, httpx.InvalidURL, ConfigError, OSError) as error:
            return ProbeResult(False, f"{type(error).__name__}: {error}")

    async def aclose(self) -> None:
        clients, self._clients = self._clients, {}
        for _, _, client in clients.values():
            await client.aclose()

    async def forget(self, engine: str) -> None:
        """The engine is gone: close its client."""
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

    async def _client(self, spec: EngineSpec, address: str) -> httpx.AsyncClient:
        known = self._clients.get(spec.name)
        if known is not None and known[0] == spec and known[1] == address:
            return known[2]
        await self.forget(spec.name)
        self._without_health.discard(spec.name)
        client = _open(spec, address)
        self._clients[spec.name] = (spec, address, client)
        return client


def _is_tls(error: BaseException | None) -> bool:
    """Whether a handshake failed: somebody is there, but not whom we trust."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


async def _get(client: httpx.AsyncClient, spec: EngineSpec, path: str) -> ProbeResult:
    extensions = {"sni_hostname": spec.tls.server_name} if spec.tls is not None and spec.tls.server_name else {}
    async with client.stream("GET", path.lstrip("/"), extensions=extensions) as response:
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > _MAX_BODY:
                break
    details: dict[str, Any] = {"status": response.status_code}
    if not response.is_success:
        loading = response.status_code == 503 and _says_loading(body)
        reason = "it loads its model" if loading else f"{path} answered {response.status_code}"
        return ProbeResult(False, reason, loading=loading, details=details)
    if response.headers.get("content-type", "").startswith("application/json") and len(body) <= _MAX_BODY:
        try:
            said = httpx.Response(200, content=body).json()
        except ValueError:
            return ProbeResult(False, f"{path} answered something that is not JSON", details=details)
        if isinstance(said, dict):
            details.update((key, said[key]) for key in _DETAILS if key in said)
    state, slots = details.get("state"), details.get("slots")
    known = slots if isinstance(slots, int) and not isinstance(slots, bool) and 1 <= slots <= 65536 else None
    if isinstance(state, str) and state != "ready":
        return ProbeResult(False, f"state is {state}", slots=known, loading=state in _LOADING, details=details)
    return ProbeResult(True, slots=known, details=details)


def _says_loading(body: bytes) -> bool:
    """Whether the body of a 503 tells that the model is being loaded: a sidecar's state, or the error of llama.cpp's own server."""
    try:
        said = httpx.Response(503, content=body).json()
    except ValueError:
        return False
    if not isinstance(said, dict):
        return False
    error = said.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return said.get("state") in _LOADING or message == "Loading model"


def _open(spec: EngineSpec, address: str) -> httpx.AsyncClient:
    """Raises ConfigError for an address or certificate that cannot be used."""
    headers = dict(spec.headers)
    if spec.api_key is not None:
        headers["authorization"] = f"Bearer {spec.api_key.reveal()}"
    where = parse_address(address)
    if where.scheme == "unix":
        transport = httpx.AsyncHTTPTransport(uds=where.path, verify=False)
        return httpx.AsyncClient(base_url="http://localhost/", transport=transport, headers=headers, timeout=None)
    verify: ssl.SSLContext | bool = tls_context(spec.tls) if where.scheme == "https" else False
    return httpx.AsyncClient(base_url=address.rstrip("/") + "/", headers=headers, timeout=None, verify=verify, trust_env=False)
