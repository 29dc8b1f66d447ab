"""The load of an engine from its metrics in Prometheus' text format: requests that run and wait, KV memory in use. Pure.

vLLM, SGLang, Triton (with TensorRT-LLM, too), llama.cpp's own server and TGI are known by the names of their metrics; nothing has to be
configured. Only lines that begin with such a name are read.

SGLang says the same thing more than once. With priorities, `priority=""` has all requests and `priority="5"` some of the same. Ranks that
share one scheduler's requests (tensor, pipeline and expert parallel) each report them; those of data parallel report their own.
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
        b"nv_trt_llm_request_metrics": None,
        b"nv_trt_llm_kv_cache_block_metrics": None,
        b"llamacpp:requests_processing": RUNNING,
        b"llamacpp:requests_deferred": WAITING,
        b"llamacpp:kv_cache_usage_ratio": KV,
        b"tgi_batch_current_size": RUNNING,
        b"tgi_queue_size": WAITING,
    }
)
"""Metric -> what it is; None: a label says. KV is a share from 0 to 1 in all of them, whatever its name says."""
_BY_LABEL: Final = MappingProxyType(
    {
        (b"request_type", b"scheduled"): RUNNING,
        (b"request_type", b"waiting"): WAITING,
        (b"kv_cache_block_type", b"fraction"): KV,
    }
)
_KNOWN: Final = b"|".join(re.escape(name) for name in NAMES)
_LINE: Final = re.compile(
    rb"^(" + _KNOWN + rb")(?:\{([^\n]{0,1024})\})? +([0-9.eE+-]{1,32})(?: [0-9]{1,20})?\r?$",
    re.MULTILINE,
)
_LABEL: Final = re.compile(rb'(?:^|,) ?(priority|request_type|kv_cache_block_type)="([^"\\]{1,128})"')
_RANK: Final = re.compile(rb'(?:^|,) ?(?:tp|pp|moe_ep)_rank="[^"\\]{0,16}"')
MOST_READ: Final = 128 * 1024
"""Bytes of labels, and LINE for each line, that are read: a Triton has a line for each of its models. More would hold the event loop."""
LINE: Final = 32
MOST: Final = 1e9


def load_in(text: bytes) -> dict[str, float] | None:
    """`running`, `waiting` and `kv`, as far as known: sums over models and schedulers, for `kv` the highest. None: nothing is known."""
    found: dict[tuple[str, bytes], float] = {}
    left = MOST_READ
    for line in _LINE.finditer(text):
        labels = line[2] or b""
        if (left := left - LINE - len(labels)) < 0:
            break
        kind = _kind(line[1], labels)
        try:
            value = float(line[3])
        except ValueError:
            continue
        if kind is None or not 0 <= value < MOST:  # a NaN is refused too
            continue
        series = kind, line[1] + _RANK.sub(b"", labels)
        found[series] = max(found.get(series, 0.0), value)
    load: dict[str, float] = {}
    for (kind, _), value in found.items():
        load[kind] = max(load.get(KV, 0.0), min(value, 1.0)) if kind == KV else load.get(kind, 0.0) + value
    return load or None


def _kind(name: bytes, labels: bytes) -> str | None:
    """None for a part of what another line has whole, and for what is no load."""
    said = dict(_LABEL.findall(labels))
    if b"priority" in said and name.startswith(b"sglang:"):
        return None
    return NAMES[name] or next((kind for label in said.items() if (kind := _BY_LABEL.get(label)) is not None), None)
