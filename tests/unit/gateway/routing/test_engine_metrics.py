"""The load of engines, as their metrics tell it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.engine_metrics import load_in

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 12.0
vllm:num_requests_running{engine="1",model_name="meta-llama/Llama-3.1-8B-Instruct"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 5.0
vllm:kv_cache_usage_perc{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.75
vllm:num_requests_waiting_by_reason{engine="0"} 99.0
"""


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (VLLM, {"running": 15.0, "waiting": 5.0, "kv": 0.75}),
        (b'vllm:gpu_cache_usage_perc{model_name="m"} 1e-1\n', {"kv": 0.1}),
        (b'sglang:num_running_reqs{model_name="m"} 2.0\nsglang:num_queue_reqs{a="m"} 0.0\nsglang:token_usage{model_name="m"} 0.28\n',
         {"running": 2.0, "waiting": 0.0, "kv": 0.28}),
        (b'nv_inference_pending_request_count{model="a",version="1"} 4\nnv_inference_pending_request_count{model="b",version="1"} 1\n',
         {"waiting": 5.0}),
        (b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 3\r\n", {"running": 1.0, "waiting": 3.0}),
        (b"tgi_batch_current_size 7\ntgi_queue_size 2 1700000000000\n", {"running": 7.0, "waiting": 2.0}),
        (b"go_goroutines 7\n", None),
        (b"", None),
        (b"vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\nvllm:kv_cache_usage_perc 7\n", {"kv": 1.0}),
        (b"vllm:num_requests_running 1e300\n", None),
    ],
)  # fmt: skip
def test_what_is_said(text: bytes, load: dict[str, float] | None) -> None:
    assert load_in(text) == load


@given(st.binary(max_size=2000))
def test_whatever_comes(text: bytes) -> None:
    found = load_in(b"vllm:num_requests_running" + text)
    assert found is None or all(0 <= value < float("inf") for value in found.values())
