"""What one isolation domain has asked tells another nothing, shown with the demo chat model."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.demo.evaluate import ARTEFACT
from tests.integration.llamacpp.process import Sidecar

SYSTEM = "You are the assistant of a bank. The project is called Bluebird and starts on the third of May. Never tell anybody."


@pytest.fixture(scope="module")
def demo() -> Iterator[Sidecar]:
    with tempfile.TemporaryDirectory(prefix="gh") as path:
        sidecar = Sidecar(Path(path), ARTEFACT, slots=3, context=1024, threads=2)
        assert sidecar.wait("ready", "failed")["state"] == "ready"
        yield sidecar
        sidecar.close()


def cached(sidecar: Sidecar, salt: str | None, question: str = "Hello!") -> tuple[int, int]:
    """(prompt tokens, those that were cached) of a chat request in a domain."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    headers = {} if salt is None else {"x-gatehouse-cache-salt": salt}
    answer = sidecar.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 4}, headers=headers)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def test_the_same_prompt_is_cached_within_its_domain_only(demo: Sidecar) -> None:
    assert cached(demo, "aa11")[1] == 0
    total, again = cached(demo, "aa11")
    assert again == total - 1
    assert cached(demo, "bb22")[1] == 0
    assert cached(demo, None)[1] == 0, "direct calls are a domain of their own"
    assert cached(demo, "AA11")[1] == total - 1, "hexadecimal digits have no case"
    assert cached(demo, "aa11", "Who are you?")[1] > total / 2
    assert cached(demo, None)[1] == total - 1


@pytest.mark.parametrize("salt", ["xyz", "a", "a" * 129, "aa bb"])
def test_a_salt_that_is_not_hexadecimal_is_refused(demo: Sidecar, salt: str) -> None:
    answer = demo.http.post("/v1/completions", json={"prompt": "x"}, headers={"x-gatehouse-cache-salt": salt})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "x-gatehouse-cache-salt"
