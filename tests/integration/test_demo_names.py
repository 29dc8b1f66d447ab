"""The demo classifier of names and places, through the sidecar: what docs/onnx.md says of it."""

from __future__ import annotations

import httpx
import yaml

from engines.demo import names
from engines.demo.phrases import Span
from tests.integration.onnx_process import OnnxProcess

MAX_BYTES = 2 * 1024 * 1024
THRESHOLD = 0.6


def test_names_that_were_held_apart_are_found_as_often_as_is_said() -> None:
    assert sum(file.stat().st_size for file in names.OUT.iterdir()) < MAX_BYTES
    held = names.heldout(yaml.safe_load(names.DATA.read_text(encoding="utf-8")))
    with OnnxProcess(names.OUT) as process, process.client() as http:
        answer = http.post("/v1/classify", json={"model": "demo-names", "input": [text for text, _ in held]})
        assert answer.status_code == httpx.codes.OK, answer.text
        assert answer.json()["labels"] == ["PER", "LOC"]
    found = {
        text: [Span(one["entity"], one["start"], one["end"]) for one in item["entities"] if one["score"] >= THRESHOLD]
        for (text, _), item in zip(held, answer.json()["data"], strict=True)
    }
    measured = names.measured(found.__getitem__, held)
    assert measured["PER"][0] >= 0.5 and measured["LOC"][0] >= 0.65 and measured["characters"][0] >= 0.7, measured
    assert measured["characters"][1] >= 0.9, measured
    assert sum(bool(found[text]) for text, spans in held if not spans) <= 3
