"""LoRA adapters in a real sidecar: chosen by the request's model, one a step, keys and values never shared between them."""

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from loadtests.llamacpp.random_gguf import F32, Shape, write, write_lora
from tests.integration.llamacpp.process import SHAPE, Sidecar

Maker = Callable[..., Sidecar]
NAMES = ("", ":german", ":legal")
PROMPT = "hello world, this is the beginning of a text that is long enough to be kept"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    write(folder / "m.gguf", SHAPE, scale=4.0, kind=F32)  # no quantisation, which would make much of the last bits in which batches differ
    write_lora(folder / "german.gguf", SHAPE, seed=2)
    write_lora(folder / "legal.gguf", SHAPE, seed=3)
    write_lora(folder / "wide.gguf", Shape(width=128))
    write_lora(folder / "other.gguf", SHAPE, architecture="qwen2")
    return folder


@pytest.fixture(scope="module")
def sidecar(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    adapters = [{"name": "german", "file": "german.gguf"}, {"name": "legal", "file": "legal.gguf"}]
    options = {"adapters": adapters, "pinned": ["you are a careful assistant of the people"], "cached_lines": 8}
    sidecar = Sidecar(tmp_path_factory.mktemp("s"), folder / "m.gguf", options=options)
    assert sidecar.wait("ready", "failed")["state"] == "ready"
    yield sidecar
    sidecar.close()


def text(sidecar: Sidecar, name: str, **settings: Any) -> str:
    answer = sidecar.complete(
        **{"prompt": PROMPT, "model": f"m{name}", "temperature": 0.0, "max_tokens": 24, "ignore_eos": True, **settings}
    )
    return str(answer["choices"][0]["text"])


def test_each_adapter_changes_the_text(sidecar: Sidecar) -> None:
    texts = [text(sidecar, name) for name in NAMES]
    assert len(set(texts)) == 3
    assert [text(sidecar, name) for name in NAMES] == texts
    names = [entry["id"] for entry in sidecar.http.get("/v1/models").json()["data"]]
    assert names == ["tiny", "tiny:german", "tiny:legal"]


def test_streams_of_several_adapters_keep_their_texts(sidecar: Sidecar) -> None:
    """They run at once and take turns; each writes what it writes alone."""
    wanted = [(name, f"{PROMPT} {number}") for number in range(3) for name in NAMES]
    alone = [text(sidecar, name, prompt=prompt, max_tokens=40) for name, prompt in wanted]
    changes = sidecar.metric("adapter_changes_total")
    with ThreadPoolExecutor(9) as pool:
        together = list(pool.map(lambda each: text(sidecar, each[0], prompt=each[1], max_tokens=40), wanted))
    assert together == alone
    assert sidecar.metric("adapter_changes_total") > changes


def test_no_prefix_is_shared_across_adapters(sidecar: Sidecar) -> None:
    def cached(name: str) -> int:
        answer = sidecar.complete(prompt="of this only the first asker has read anything at all", model=f"m{name}", max_tokens=1)
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached(name) for name in NAMES] == [0, 0, 0]
    assert all(cached(name) > 8 for name in NAMES)


def test_a_pinned_prompt_serves_the_model_without_adapter_alone(sidecar: Sidecar) -> None:
    def cached(name: str) -> int:
        messages = [{"role": "system", "content": "you are a careful assistant of the people"}, {"role": "user", "content": "hello"}]
        body = {"model": f"m{name}", "messages": messages, "max_tokens": 1}
        answer = sidecar.http.post("/v1/chat/completions", json=body).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(":german") == 0 and cached("") > 20


def test_an_unknown_adapter_is_refused(sidecar: Sidecar) -> None:
    error = sidecar.error("/v1/completions", 404, prompt="a", model="m:germn")
    assert error["code"] == "model_not_found" and error["message"] == "model: this engine has no adapter 'germn'; it has: german, legal"
    error = sidecar.error("/v1/chat/completions", 404, messages=[{"role": "user", "content": "a"}], model="m:x")
    assert error["param"] == "model"


def test_an_engine_without_adapters_takes_any_name(start: Maker) -> None:
    sidecar = start("tiny.gguf")
    sidecar.wait("ready")
    assert text(sidecar, ":8b")


@pytest.mark.parametrize(
    ("adapter", "code", "reason"),
    [
        ({"file": "gone.gguf"}, "model_missing", "no such file; adapters lie beside the model's file"),
        ({"file": "m.gguf"}, "model_invalid", "not a LoRA adapter (general.type adapter, adapter.type lora)"),
        ({"file": "other.gguf"}, "model_invalid", "made for qwen2, the model is llama"),
        ({"file": "wide.gguf"}, "model_invalid", "wide.gguf: "),
        ({"file": "german.gguf", "sha256": "0" * 64}, "checksum_mismatch", "its SHA-256 is "),
    ],
)
def test_a_wrong_file_is_named(folder: Path, tmp_path: Path, adapter: dict[str, str], code: str, reason: str) -> None:
    sidecar = Sidecar(tmp_path, folder / "m.gguf", options={"adapters": [{"name": "a", **adapter}]})
    try:
        report = sidecar.wait("failed", "ready")
        assert report["state"] == "failed" and report["reason_code"] == code, report
        assert report["reason"].startswith("options.adapters: a: ") and reason in report["reason"]
    finally:
        sidecar.close()


def test_the_right_checksum_is_accepted(folder: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256((folder / "german.gguf").read_bytes()).hexdigest()
    adapters = [{"name": "a", "file": "german.gguf", "sha256": digest, "scale": 0.5}]
    sidecar = Sidecar(tmp_path, folder / "m.gguf", options={"adapters": adapters, "speculation": {"tokens": 4}})
    try:
        assert sidecar.wait("failed", "ready")["state"] == "ready"
        assert text(sidecar, ":a") != text(sidecar, "")
    finally:
        sidecar.close()
