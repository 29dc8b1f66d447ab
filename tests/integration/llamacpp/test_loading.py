"""What a llama.cpp sidecar makes of its files and settings: what it cannot use it names, and ends."""

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import llama_cpp
import pytest

from loadtests.llamacpp.random_gguf import Shape, metadata, write, write_parts
from tests.integration.llamacpp.process import DEADLINE, SHAPE, Sidecar


def damaged(models: Path, name: str) -> Path:
    source = (models / "tiny.gguf").read_bytes()
    path = models / f"{name}.gguf"
    if name == "magic":
        path.write_bytes(b"LMGG" + source[4:])
    elif name == "truncated":
        path.write_bytes(source[: len(source) // 2])
    elif name == "empty":
        path.write_bytes(b"")
    elif name == "tensors":
        path.write_bytes(source[:8] + struct.pack("<Q", 2**60) + source[16:])
    elif name == "architecture":
        values = metadata(SHAPE, general__architecture="nosuch")
        write(path, SHAPE, values={key.replace("llama.", "nosuch."): value for key, value in values.items()})
    elif name == "layers":
        write(path, SHAPE, values=metadata(SHAPE, llama__block_count=3))
    return path


@pytest.mark.parametrize(
    ("name", "word"),
    [("magic", "wrong magic"), ("truncated", "truncated"), ("empty", "truncated"), ("tensors", "tensors are more than"),
     ("architecture", "nosuch"), ("layers", "blk.2"), ("rerank", "is a reranker"), ("missing", "no such model file")],
)  # fmt: skip
def test_unusable_files_are_named_and_end_with_code_1(start: Callable[..., Sidecar], models: Path, name: str, word: str) -> None:
    sidecar = start(damaged(models, name).name)
    report = sidecar.wait("failed")
    assert word in report["reason"] and name in report["reason"]
    sidecar.process.terminate()
    assert sidecar.process.wait(DEADLINE) == 1
    assert sidecar.process.stderr is not None
    assert f"engine tiny: {report['reason']}" in sidecar.process.stderr.read().decode()


def test_a_model_in_parts_is_served_and_a_missing_part_named(start: Callable[..., Sidecar], tmp_path: Path) -> None:
    files = write_parts(tmp_path, "m", SHAPE, 3)
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    sidecar = start(str(files[0]), sha256=digest)
    assert sidecar.wait("ready", "failed")["state"] == "ready"
    assert sidecar.complete()["usage"]["completion_tokens"] == 8
    sidecar.close()
    files[1].unlink()
    report = start(str(files[0])).wait("failed")
    assert report["reason_code"] == "model_invalid" and "part 2 of 3 is missing: m-00002-of-00003.gguf" in report["reason"]


def test_a_wrong_checksum_is_refused(start: Callable[..., Sidecar]) -> None:
    report = start("tiny.gguf", sha256="0" * 64).wait("failed")
    assert report["reason_code"] == "checksum_mismatch"


def test_memory_is_checked_before_loading(start: Callable[..., Sidecar], models: Path) -> None:
    write(models / "wide.gguf", SHAPE, values=metadata(SHAPE, llama__context_length=2**24, llama__attention__key_length=4096))
    sidecar = start("wide.gguf", context=2**22, slots=64)
    assert sidecar.wait("failed")["reason_code"] == "insufficient_memory"
    assert sidecar.error("/v1/completions", 507, prompt="x")["code"] == "insufficient_memory"


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_the_kv_memory_may_hold_fewer_bits(start: Callable[..., Sidecar], models: Path, kind: str) -> None:
    write(models / "wider.gguf", Shape(width=128, heads=2), scale=1.0)  # a head's width must be a multiple of 32
    small = start("wider.gguf", options={"cache_type_k": kind, "cache_type_v": kind})
    report = small.wait("ready", "failed")
    assert report["state"] == "ready", report
    whole = 2 * 2 * 2 * (64 + 64)  # layers, heads of keys and values, bytes of a value at 16 bits
    assert report["placement"]["kv_bytes_per_token"] == int(whole * {"q8_0": 34 / 64, "q4_0": 18 / 64}[kind])
    answer = small.openai.completions.create(model="m", prompt="hello " * 20, max_tokens=8, temperature=0)
    assert answer.usage is not None and answer.usage.completion_tokens == 8


def test_more_slots_than_llama_cpp_has_sequences_are_refused(start: Callable[..., Sidecar]) -> None:
    report = start("tiny.gguf", slots=257, context=64).wait("ready", "failed")
    assert report["state"] == "failed" and "slots: 257 are wanted, llama.cpp runs at most 256" in report["reason"]


def test_unknown_options_are_refused(start: Callable[..., Sidecar]) -> None:
    sidecar = start("tiny.gguf", options={"btach": 3})
    assert sidecar.process.wait(DEADLINE) == 1
    assert sidecar.process.stderr is not None and b"btach" in sidecar.process.stderr.read()


def test_a_device_that_the_build_cannot_use_is_an_error_never_a_silent_cpu(start: Callable[..., Sidecar]) -> None:
    if llama_cpp.llama_supports_gpu_offload():
        report = start("tiny.gguf", device="cuda:0").wait("ready", "failed")
        assert report["state"] == "ready" and report["placement"]["device_layers"] == SHAPE.layers + 1
    else:
        report = start("tiny.gguf", device="cuda:0").wait("failed")
        assert report["reason_code"] == "device_unavailable" and "cuda:0" in report["reason"]


@pytest.mark.parametrize(
    ("model", "code", "word"),
    [("plain.gguf", "no_chat_template", "no chat template"), ("raising.gguf", "chat_template_failed", "must alternate")],
)
def test_templates_that_are_missing_or_refuse(start: Callable[..., Sidecar], model: str, code: str, word: str) -> None:
    sidecar = start(model)
    sidecar.wait("ready")
    error = sidecar.error("/v1/chat/completions", messages=[{"role": "user", "content": "hello"}])
    assert error["code"] == code and word in error["message"]
    assert sidecar.complete(max_tokens=2)["choices"]


def test_a_configured_template_that_is_none_is_refused(start: Callable[..., Sidecar]) -> None:
    report = start("tiny.gguf", options={"template": "{% for %}"}).wait("ready", "failed")
    assert report["state"] == "failed" and report["reason"].startswith("options.template is broken: ")
