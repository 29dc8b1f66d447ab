"""Which request shows that an engine works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.host.warmup import WarmupFailed, request_for, warm
from engines.runtimes import RUNTIMES
from gateway.core.secret import Secret
from gateway.core.specs import EngineSpec, WarmupSpec
from tests.fakes.http_receiver import HttpReceiver

WARMUP = WarmupSpec(prompt="Ready?", max_tokens=2)


@pytest.mark.parametrize(
    ("runtime", "health", "expected"),
    [
        ("llama.cpp", {"task": "generation"}, ("/v1/completions", {"model": "e", "prompt": "Ready?", "max_tokens": 2, "temperature": 0})),
        ("llama.cpp", {}, ("/v1/completions", {"model": "e", "prompt": "Ready?", "max_tokens": 2, "temperature": 0})),
        ("llama.cpp", {"task": "embeddings"}, ("/v1/embeddings", {"model": "e", "input": ["Ready?"]})),
        ("onnx", {"task": "embeddings"}, ("/v1/embeddings", {"model": "e", "input": ["Ready?"]})),
        ("onnx", {"task": "classification"}, ("/v1/classify", {"model": "e", "input": ["Ready?"]})),
        ("onnx", {"task": "tensor"}, ("/v2/health/ready", None)),
    ],
)
def test_each_kind_of_engine_is_asked_for_what_it_does(runtime: Any, health: dict[str, Any], expected: tuple[str, Any]) -> None:
    assert request_for(RUNTIMES[runtime], EngineSpec(name="e", runtime=runtime, warmup=WARMUP), health)[1:] == expected


async def test_a_socket_where_nobody_is(tmp_path: Path) -> None:
    with pytest.raises(WarmupFailed, match="connect"):
        await warm(f"unix:{tmp_path}/none.sock", RUNTIMES["llama.cpp"], EngineSpec(name="e", runtime="llama.cpp"), {})


async def test_an_engine_that_repeats_its_key_does_not_bring_it_into_the_log() -> None:
    receiver = HttpReceiver()
    receiver.answers = [(401, b"Invalid key: s3cret-key")]
    address = receiver.url.removesuffix("/in")
    try:
        with pytest.raises(WarmupFailed, match=r"answered 401: Invalid key: \*+$"):
            await warm(address, RUNTIMES["llama.cpp"], EngineSpec(name="e", runtime="llama.cpp", api_key=Secret("s3cret-key")), {})
    finally:
        receiver.close()
