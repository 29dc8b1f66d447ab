"""The request that a new process of an engine must answer before it gets traffic.

An engine that makes embeddings or classifies is asked for that; any other gets the request of its runtime's row (engines.runtimes): a short
completion of llama.cpp. An ONNX engine has run its graph once while it loaded (engines.onnx.app); a model of bare tensors, whose inputs
only its callers know, is therefore only asked whether it is ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from engines.runtimes import Ask, RuntimeRow
from gateway.core.errors import GatehouseError
from gateway.core.secret import MASK
from gateway.core.specs import EngineSpec
from gateway.transport.ask import ask
from gateway.transport.pool import EndpointClient

MAX_REASON = 300


class WarmupFailed(Exception):
    """The process did not answer as required; the message says what it did instead."""


def request_for(row: RuntimeRow, spec: EngineSpec, health: Mapping[str, Any]) -> Ask:
    """The smallest request that shows whether the engine works. health: the sidecar's last report."""
    warmup, task = spec.warmup, health.get("task")
    if task == "embeddings":
        return "POST", "/v1/embeddings", {"model": spec.name, "input": [warmup.prompt]}
    if task in ("classification", "entities"):
        return "POST", "/v1/classify", {"model": spec.name, "input": [warmup.prompt]}
    if task == "rerank":
        return "POST", "/v1/rerank", {"model": spec.name, "query": warmup.prompt, "documents": [warmup.prompt]}
    return row.warmup(spec)


async def warm(address: str, row: RuntimeRow, spec: EngineSpec, health: Mapping[str, Any]) -> None:
    """Sends the request to the process at this address. Raises WarmupFailed unless it answers 200 within `warmup.timeout` seconds."""
    if not spec.warmup.enabled:
        return
    method, path, body = request_for(row, spec, health)
    data = b"" if body is None else msgspec.json.encode(body)
    headers = {} if body is None else {"content-type": "application/json"}
    if spec.api_key is not None:
        headers["authorization"] = f"Bearer {spec.api_key.reveal()}"
    client = EndpointClient(address, max_idle=1)
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
        said = answer.body.decode("utf-8", "replace")
        if spec.api_key is not None:
            said = said.replace(spec.api_key.reveal(), MASK)  # an engine that refuses it may repeat it
        raise WarmupFailed(f"{path} answered {answer.head.status}: {said[:MAX_REASON]}")
