"""An engine that is silent because it works is not taken for one that hangs: its stream carries comments meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import httpx
import pytest

from tests.e2e.harness import Gatehouse
from tests.e2e.test_lifecycle import DEMO
from tests.e2e.test_placement import config
from tests.waiting import until

Launch = Callable[..., Gatehouse]


@pytest.mark.parametrize(("interval", "status"), [(0.02, 200), (0, 504)])
def test_a_long_prompt_outlives_the_time_to_the_first_byte(tmp_path: Path, launch: Launch, interval: float, status: int) -> None:
    """The prompt is read in steps of 32 tokens, which takes far longer than an engine may be silent. A machine that stands still for as
    long as that gets another prompt, of which the engine has not read the beginning yet."""
    made = config(tmp_path, DEMO, slots=1, context=2048, threads=1, options={"working_interval": interval, "batch": 32})
    made["engines"][0]["timeouts"] = {"first_byte": 0.25, "between_bytes": 0.25}
    numbers = count()

    def outlived() -> bool:
        answer = asked(client, f"{next(numbers)} " + "word " * 1000)
        assert answer.status_code in (200, 503, 504), answer.text
        return answer.status_code == 200 and '"error"' not in answer.text and answer.text.endswith("data: [DONE]\n\n")

    with launch(made) as gatehouse, gatehouse.client() as client:
        if status == 200:
            until(outlived, what="a stream that outlives the time")
        else:
            answer = asked(client, "word " * 1000)
            assert answer.status_code == status, answer.text


def asked(client: httpx.Client, prompt: str) -> httpx.Response:
    return client.post("/v1/completions", json={"model": "demo-chat", "prompt": prompt, "max_tokens": 2, "stream": True})
