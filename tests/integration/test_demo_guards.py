"""The demo classifier of prompt injections, through the sidecar: what docs/onnx.md says of it."""

from __future__ import annotations

import httpx
import yaml

from engines.demo import guard
from tests.integration.onnx_process import OnnxProcess
from tests.unit.policies.guardrails.injection import corpus

MAX_BYTES = 2 * 1024 * 1024


def test_the_artefact_is_small() -> None:
    assert sum(file.stat().st_size for file in guard.OUT.iterdir()) < MAX_BYTES


def test_texts_that_were_held_apart_are_told_apart() -> None:
    data = yaml.safe_load(guard.DATA.read_text(encoding="utf-8"))
    with OnnxProcess(guard.OUT) as process, process.client() as http:

        def scores(texts: list[str]) -> list[float]:
            answer = http.post("/v1/classify", json={"model": "demo-guard", "input": texts})
            assert answer.status_code == httpx.codes.OK, answer.text
            assert answer.json()["labels"] == ["safe", "injection"]
            return [item["probs"][1] for item in answer.json()["data"]]

        held = data["heldout"]
        by_text = dict(zip(held["injection"] + held["clean"], scores(held["injection"] + held["clean"]), strict=True))
        recall, wrong = guard.measured(by_text.__getitem__, data, 0.5)
        assert recall >= 0.65 and wrong <= 0.2, (recall, wrong)
        plain = scores(list(corpus.PLAIN))
        assert sum(score >= 0.5 for score in plain) >= 0.6 * len(plain)
