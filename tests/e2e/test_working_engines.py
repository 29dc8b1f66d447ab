"""An engine that is silent because it works is not taken for one that hangs: its stream carries comments meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.harness import Gatehouse
from tests.e2e.test_lifecycle import DEMO
from tests.e2e.test_placement import config

Launch = Callable[..., Gatehouse]


@pytest.mark.parametrize(("interval", "status"), [(0.02, 200), (0, 504)])
def test_a_long_prompt_outlives_the_time_to_the_first_byte(tmp_path: Path, launch: Launch, interval: float, status: int) -> None:
    """The prompt is read in steps of 32 tokens, which takes far longer than an engine may be silent."""
    made = config(tmp_path, DEMO, slots=1, context=2048, threads=1, options={"working_interval": interval, "batch": 32})
    made["engines"][0]["timeouts"] = {"first_byte": 0.25, "between_bytes": 0.25}
    body = {"model": "demo-chat", "prompt": "word " * 1000, "max_tokens": 2, "stream": True}
    with launch(made) as gatehouse, gatehouse.client() as client:
        answer = client.post("/v1/completions", json=body)
    assert answer.status_code == status, answer.text
    if status == 200:
        events = [line for line in answer.text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "data: [DONE]" and '"error"' not in answer.text
