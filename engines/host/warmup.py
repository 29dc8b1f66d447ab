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

import msgspec

from gateway.core.errors import GatehouseError
from gateway.core.specs import EngineSpec
from gateway.transport.ask import ask
from gateway.transport.pool import EndpointClient

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
    data = b"" if body is None else msgspec.json.encode(body)
    headers = {} if body is None else {"content-type": "application/json"}
    client = EndpointClient(f"unix:{socket}", max_idle=1)
    try:
        async with asyncio.timeout(spec.warmup.timeout):
            answer = await ask(client, method, path, headers, data)
    except TimeoutError:
        raise WarmupFailed(f"no answer within {spec.warmup.timeout:g} s") from None
    except GatehouseError as error:
        raise WarmupFailed(error.message if error.__cause__ is None else f"{error.message} ({error.__cause__})") from None
    finally:
        await client.aclose()
    if answer.head.status != 200:
        raise WarmupFailed(f"{path} answered {answer.head.status}: {answer.body.decode('utf-8', 'replace')[:MAX_REASON]}")
