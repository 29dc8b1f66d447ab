"""A model's fallbacks over the running gateway: who gets their answers, and under whose rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, configuration, errors_of, external
from tests.fakes.ports import empty_port
from tests.waiting import until

ONLY_MAIN = "only-main-key-0123456789abcdef0123456789ab"


@pytest.fixture(scope="module")
def gone() -> Iterator[int]:
    with empty_port() as port:
        yield port


@pytest.fixture(scope="module")
def fallback(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread, gone: int) -> Iterator[Gatehouse]:
    """`main`, whose engine is gone, with the fallback `small`; a key that may use `main` only; a phrase that `small` refuses."""
    directory = tmp_path_factory.mktemp("fallback")
    config = configuration(
        directory / "state",
        engines=[external("gone", gone), external("fake", engine.port, slots=8)],
        models=[
            {"name": "main", "pool": ["gone"], "aliases": ["main-latest"], "fallbacks": ["small"]},
            {"name": "small", "pool": [{"engine": "fake", "model": "org/Small"}]},
            {"name": "sick", "pool": ["fake"], "fallbacks": ["small"]},
        ],
        guardrails=[{"name": "words", "type": "denylist", "models": ["small"], "settings": {"phrases": ["nightfall"], "action": "block"}}],
    )
    config["identity"]["api_keys"]["static"].append({"id": "only-main", "key": ONLY_MAIN, "tenant": "acme", "models": ["main*"]})
    with Gatehouse(directory, config) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["main", "main-latest"])
def test_a_fallback_answers_under_its_own_name(fallback: Gatehouse, engine: EngineThread, model: str, stream: bool) -> None:
    answer = fallback.chat(model=model, stream=stream)
    assert answer.status_code == 200
    assert (answer.headers["x-gatehouse-model"], answer.headers["x-gatehouse-endpoint"]) == ("small", "fake")
    assert engine.received[-1].json()["model"] == "org/Small"
    assert fallback.outcome(answer.headers["x-request-id"])["model"] == "small"


@pytest.mark.parametrize("stream", [False, True])
def test_a_fallback_gives_no_access(fallback: Gatehouse, engine: EngineThread, stream: bool) -> None:
    before = len(engine.received)
    answer = fallback.chat(model="main", key=ONLY_MAIN, stream=stream)
    assert (answer.status_code, errors_of(answer)["code"]) == (503, "no_healthy_endpoint")
    assert "small" not in answer.text
    assert len(engine.received) == before


def test_a_fallback_is_no_way_around_a_guardrail(fallback: Gatehouse, engine: EngineThread) -> None:
    before = len(engine.received)
    answer = fallback.chat("about Nightfall", model="main")
    assert (answer.status_code, errors_of(answer)["code"]) == (503, "no_healthy_endpoint")
    assert len(engine.received) == before


@pytest.mark.parametrize("step", ["status:code=500", "status:code=503", "status:code=429", "reset:at=mid"])
def test_an_engine_that_fails_has_a_fallback(fallback: Gatehouse, engine: EngineThread, step: str) -> None:
    until(lambda: fallback.chat(model="small").status_code == 200, what="an engine that has come back from the failure before")
    engine.play(step)
    answer = fallback.chat(model="sick")
    assert (answer.status_code, answer.headers["x-gatehouse-model"]) == (200, "small")
