"""The request that a new process of an engine must answer before traffic goes to it.

A llama.cpp engine gets a short completion, or an embedding where it makes those. An ONNX engine has run its graph once while it loaded
(engines.onnx.app), so the request proves what the load cannot: that its socket, tokenizer and batcher answer; a model of bare tensors,
whose inputs only its callers know, is asked whether it is ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from gateway.core.specs import EngineSpec

MAX_REASON = 300


class WarmupFailed(Exception):
    """The process did not answer as it must; the message says what it did instead."""


def request_for(spec: EngineSpec, health: Mapping[str, Any]) -> tuple[str, str, dict[str, Any] | None]:
    """(method, path, JSON body) of the smallest request that shows whether the engine works. health: what its sidecar said of itself."""
    warmup, task = spec.warmup, health.get("task")
    if task == "embeddings":
        return "POST", "/v1/embeddings", {"model": spec.name, "input": [warmup.prompt]}
    if task == "classification":
        return "POST", "/v1/classify", {"model": spec.name, "input": [warmup.prompt]}
    if spec.runtime == "onnx":
        return "GET", "/v2/health/ready", None
    return "POST", "/v1/completions", {"model": spec.name, "prompt": warmup.prompt, "max_tokens": warmup.max_tokens, "temperature": 0}


async def warm(socket: Path, spec: EngineSpec, health: Mapping[str, Any]) -> None:
    """Sends the request to the sidecar at this socket. Raises WarmupFailed unless it answers 200 within `warmup.timeout` seconds."""
    if not spec.warmup.enabled:
        return
    method, path, body = request_for(spec, health)
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    try:
        async with asyncio.timeout(spec.warmup.timeout), httpx.AsyncClient(transport=transport, timeout=None) as client:
            response = await client.request(method, f"http://sidecar{path}", json=body)
    except TimeoutError:
        raise WarmupFailed(f"no answer within {spec.warmup.timeout:g} s") from None
    except (httpx.HTTPError, OSError) as error:
        raise WarmupFailed(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from None
    if response.status_code != 200:
        raise WarmupFailed(f"{path} answered {response.status_code}: {response.text[:MAX_REASON]}")
