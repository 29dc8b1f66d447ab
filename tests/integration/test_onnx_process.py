"""The ONNX sidecar as a process: refusing bad models with a reason, draining, deadlines, clients that leave, a second start."""

from __future__ import annotations

import hashlib
import json
import select
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import helper

from tests.integration.onnx_process import OnnxProcess
from tests.unit.engines.onnx import models
from tests.waiting import until

DEADLINE = 300.0


def slow(path: Path, rounds: int) -> Path:
    """y = x after so many matrix products: some tenths of a second for each thousand."""
    weight = np.eye(256, dtype=np.float32)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["go_on"]),
            helper.make_node("MatMul", ["state", "w"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("index", models.ONNX_TYPES["INT64"], []),
            helper.make_tensor_value_info("going", models.ONNX_TYPES["BOOL"], []),
            helper.make_tensor_value_info("state", models.ONNX_TYPES["FP32"], [256, 256]),
        ],
        [
            helper.make_tensor_value_info("go_on", models.ONNX_TYPES["BOOL"], []),
            helper.make_tensor_value_info("next", models.ONNX_TYPES["FP32"], [256, 256]),
        ],
    )
    nodes = [
        helper.make_node("Loop", ["rounds", "", "start"], ["end"], body=body),
        helper.make_node("ReduceMax", ["end"], ["top"], keepdims=0),
    ]
    nodes.append(helper.make_node("Add", ["x", "top"], ["y"]))
    constants = {"w": weight, "start": np.zeros((256, 256), np.float32), "rounds": np.array(rounds)}
    return models.save(models.graph(nodes, [("x", "FP32", ["n"])], [("y", "FP32", ["n"])], constants), path / "model.onnx")


def test_a_graphs_file_is_read_with_what_describes_it(tmp_path: Path) -> None:
    """And the process may read no other folder within the file's: its embedding is the first token's vector, as 1_Pooling says."""
    models.embedding_folder(tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    with OnnxProcess(tmp_path / "model.onnx") as named, named.client() as http:
        confinement = named.wait_state("ready")["confinement"]
        assert (confinement["reason"] is None) == (confinement["landlock"] > 0)
        body = {"input": ["a cat", "a dog"]}
        first, second = (item["embedding"] for item in http.post("/v1/embeddings", json=body).raise_for_status().json()["data"])
    assert first == pytest.approx(second), "both begin with [CLS]"


def busy(http: httpx.Client) -> int:
    """Requests that run or wait."""
    report = http.get("/health").json()
    return int(report["in_use"]) + int(report["queue"])


def answered(raw: socket.socket) -> bool:
    return bool(select.select([raw], [], [], 0)[0])


def infer(process: OnnxProcess, **headers: str) -> Any:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.5]}]}
    with process.client() as http:
        return http.post("/v2/models/m/infer", json=body, headers=headers)


@pytest.mark.parametrize(
    ("content", "settings", "code", "words"),
    [
        (b"GGUF not a protobuf", {}, "model_invalid", "not a whole ONNX protobuf"),
        (models.affine().SerializeToString()[:-40], {}, "model_invalid", "not a whole ONNX protobuf"),
        (models.affine().SerializeToString(), {"sha256": "0" * 64}, "checksum_mismatch", "0" * 64),
        (models.affine().SerializeToString(), {"options": {"pooling": "median"}}, "invalid_options", "median"),
        (models.affine().SerializeToString(), {"device": "cuda:0"}, "device_unavailable", "cuda:0"),
        (models.graph([], [("x", "FP32", ["n"])], [("x", "FP32", ["n"])], opset=9).SerializeToString(), {"options": {"task": "embeddings"}},
         "model_missing", "tokenizer.json"),
        (None, {}, "model_missing", "no model.onnx"),
    ],
)  # fmt: skip
def test_models_that_are_refused(tmp_path: Path, content: bytes | None, settings: dict[str, Any], code: str, words: str) -> None:
    if content is not None:
        (tmp_path / "model.onnx").write_bytes(content)
    with OnnxProcess(tmp_path, **settings) as process:
        report = process.wait_state("failed")
        assert report["reason_code"] == code
        assert words in report["reason"]
        with process.client() as http:
            assert http.post("/v2/models/m/infer", content=b"{}").status_code == 503


def test_a_fallback_is_visible(tmp_path: Path) -> None:
    models.save(models.affine(), tmp_path / "model.onnx")
    with OnnxProcess(tmp_path, device="cuda:0", wanted="cuda:0", fallback="cpu") as process:
        report = process.wait_state("ready")
    assert (report["device"], report["wanted"]) == ("cpu", "cuda:0")
    assert "CUDA" in report["fallback_reason"]


def test_a_second_start_uses_the_cached_graph(tmp_path: Path) -> None:
    path = models.save(models.convolution(), tmp_path / "m" / "model.onnx")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    found = []
    for _ in range(2):
        with OnnxProcess(tmp_path / "m", state_dir=tmp_path / "state") as process:
            found.append(process.wait_state("ready"))
    assert [report["cached_graph"] for report in found] == [False, True]
    assert [report["sha256"] for report in found] == [digest, digest]


def test_a_deadline_and_a_client_that_leaves(tmp_path: Path) -> None:
    """A long run holds neither the loop nor those whose time is up; what waited behind is served."""
    slow(tmp_path, 1000)
    with OnnxProcess(tmp_path) as process:
        late = infer(process, **{"x-gatehouse-deadline-ms": "20"})
        assert late.status_code == 504
        with process.client() as http:
            assert http.get("/health").json()["state"] == "ready", "the loop answers, whether the run goes on or not"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
            raw.connect(process.socket)
            body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}).encode()
            raw.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nhost: s\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            with process.client() as http:
                until(lambda: busy(http) > 0 or answered(raw))
        assert infer(process).json()["outputs"][0]["data"] == [1.5]
        with process.client() as http:
            until(lambda: busy(http) == 0)


def test_draining_finishes_what_runs(tmp_path: Path) -> None:
    slow(tmp_path, 1000)
    with OnnxProcess(tmp_path) as process:
        body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [2.5]}]}).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw, process.client() as http:
            raw.connect(process.socket)
            raw.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nhost: s\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            until(lambda: http.get("/health").json()["in_use"] == 1 or answered(raw))
            assert http.post("/control/drain").status_code == 202
            try:
                assert infer(process).status_code == 503
            except httpx.TransportError:
                assert answered(raw), "it ended before it had answered"
            answer = b""
            while b"2.5" not in answer:
                part = raw.recv(65536)
                assert part, answer
                answer += part
            assert answer.startswith(b"HTTP/1.1 200")
        assert process.process.wait(timeout=DEADLINE) == 0


def test_a_full_queue_is_a_503(tmp_path: Path) -> None:
    """A machine that stands still may let the first run end before the others are there: then it is tried with a longer one."""
    rounds = 3000
    while not queue_was_full(tmp_path, rounds):
        assert rounds < 1_000_000
        rounds *= 5


def queue_was_full(tmp_path: Path, rounds: int) -> bool:
    slow(tmp_path, rounds)
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}).encode()
    request = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: s\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    with OnnxProcess(tmp_path, queue=1, slots=1, options={"batching": "off"}) as process:
        sockets = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
        with ExitStack() as opened:
            for one in sockets:
                opened.enter_context(one)
            with process.client() as http:
                for expected, one in enumerate(sockets, 1):
                    one.connect(process.socket)
                    one.sendall(request)
                    until(lambda wanted=expected: busy(http) == wanted or answered(sockets[0]))
                refused = infer(process)
            if answered(sockets[0]):
                return False
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
            for one in sockets[1:]:  # they leave: only the first is waited for
                one.close()
            assert sockets[0].recv(100).startswith(b"HTTP/1.1 200")
            return True


def asking(path: Path, factor: int) -> Path:
    """y = x + how many elements a tensor has that is made of `factor` times as many as `count` says."""
    nodes = [
        helper.make_node("Mul", ["count", "factor"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["made"]),
        helper.make_node("Size", ["made"], ["size"]),
        helper.make_node("Add", ["count", "size"], ["y"]),
    ]
    model = models.graph(nodes, [("count", "INT64", [1])], [("y", "INT64", [1])], {"factor": np.array([factor])})
    return models.save(model, path)


def test_more_memory_than_the_process_may_have(tmp_path: Path) -> None:
    """A request that asks for it is refused and the next one served; a graph that always does is not loaded."""
    limited = {"memory_limit_bytes": 1 << 30}
    with OnnxProcess(asking(tmp_path / "one.onnx", 1), options=limited) as engine, engine.client() as client:
        answers = [
            client.post("/v2/models/m/infer", json={"inputs": [{"name": "count", "datatype": "INT64", "shape": [1], "data": [count]}]})
            for count in (1 << 31, 1 << 60, 3)
        ]
        assert [answer.status_code for answer in answers] == [507, 507, 200]
        assert answers[-1].json()["outputs"][0]["data"] == [6]
    with OnnxProcess(asking(tmp_path / "all.onnx", 1 << 40), options={"arena": False, **limited}) as engine, engine.client() as client:
        found = client.get("/health").json()
        assert (found["state"], found["reason_code"]) == ("failed", "memory_limit") and "options.memory_limit_bytes" in found["reason"]
