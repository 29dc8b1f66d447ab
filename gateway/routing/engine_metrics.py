"""The load of an engine from its metrics in Prometheus' text format: requests that run and wait, KV memory in use. Pure.

vLLM, SGLang, Triton, llama.cpp's own server and TGI are known by the names of their metrics; nothing has to be configured. Only lines that
begin with such a name are read.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

RUNNING: Final = "running"
WAITING: Final = "waiting"
KV: Final = "kv"
NAMES: Final = MappingProxyType(
    {
        b"vllm:num_requests_running": RUNNING,
        b"vllm:num_requests_waiting": WAITING,
        b"vllm:kv_cache_usage_perc": KV,
        b"vllm:gpu_cache_usage_perc": KV,
        b"sglang:num_running_reqs": RUNNING,
        b"sglang:num_queue_reqs": WAITING,
        b"sglang:token_usage": KV,
        b"nv_inference_pending_request_count": WAITING,
        b"llamacpp:requests_processing": RUNNING,
        b"llamacpp:requests_deferred": WAITING,
        b"llamacpp:kv_cache_usage_ratio": KV,
        b"tgi_batch_current_size": RUNNING,
        b"tgi_queue_size": WAITING,
    }
)
"""Metric -> what it is. KV is a share from 0 to 1 in all of them, whatever its name says."""
_KNOWN: Final = b"|".join(re.escape(name) for name in NAMES)
_LINE: Final = re.compile(
    rb"^(" + _KNOWN + rb")(?:\{[^\n]{0,2048}\})? +([0-9.eE+-]{1,32})(?: [0-9]{1,20})?\r?$",
    re.MULTILINE,
)
MOST: Final = 1e9


def load_in(text: bytes) -> dict[str, float] | None:
    """`running`, `waiting` and `kv`, as far as known: sums over models and ranks, for `kv` the highest. None: nothing is known."""
    found: dict[str, float] = {}
    for line in _LINE.finditer(text):
        kind = NAMES[line[1]]
        try:
            value = float(line[2])
        except ValueError:
            continue
        if not 0 <= value < MOST:  # a NaN is refused too
            continue
        found[kind] = max(found.get(KV, 0.0), min(value, 1.0)) if kind == KV else found.get(kind, 0.0) + value
    return found or None
