"""The load of engines, as their metrics tell it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.engine_metrics import LINE, MOST_READ, load_in

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

SGLANG = b"""# SGLang with --enable-priority-scheduling, two data parallel ranks and metrics of all schedulers
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="0"} 7.0
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",pp_rank="0",priority="1",tp_rank="0"} 5.0
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",pp_rank="0",priority="9",tp_rank="0"} 2.0
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="1"} 7.0
sglang:num_running_reqs{dp_rank="1",engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="2"} 1.0
sglang:num_running_reqs{dp_rank="1",engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="3"} 1.0
sglang:num_queue_reqs{model_name="m",moe_ep_rank="0",pp_rank="0",priority="",tp_rank="0"} 3.0
sglang:num_queue_reqs{model_name="m",moe_ep_rank="0",pp_rank="0",priority="None",tp_rank="0"} 3.0
sglang:num_queue_reqs{model_name="m",moe_ep_rank="1",pp_rank="1",priority="",tp_rank="1"} 2.0
sglang:token_usage{model_name="m",pp_rank="0",priority="",tp_rank="0"} 0.5
"""

TRT_LLM = b"""nv_inference_pending_request_count{model="tensorrt_llm",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 3
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 4
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 7
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.25
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
        (SGLANG, {"running": 8.0, "waiting": 3.0, "kv": 0.5}),
        (b'sglang:num_queue_reqs{model_name="a,priority=\\"1\\""} 2.0\n', {"waiting": 2.0}),
        (TRT_LLM, {"running": 4.0, "waiting": 4.0, "kv": 0.25}),
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


def test_an_engine_of_many_models_is_read_up_to_a_bound() -> None:
    line = b'nv_inference_pending_request_count{model="m",version="1"} 1\n'
    assert load_in(line * 1000) == {"waiting": 1.0}, "one series has one value"
    text = b"".join(line.replace(b'"m"', b'"%04d"' % number) for number in range(5000))
    most = MOST_READ // (LINE + len(b'model="0000",version="1"'))
    assert most > 2000 and load_in(text) == {"waiting": float(most)}


@given(st.binary(max_size=2000))
def test_whatever_comes(text: bytes) -> None:
    found = load_in(b"vllm:num_requests_running" + text)
    assert found is None or all(0 <= value < float("inf") for value in found.values())
