"""Guardrails on requests, whole answers and streams; limits with their headers; audit durability modes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, OTHER_KEY, Gatehouse, configuration, errors_of, external
from tests.e2e.test_streams import events
from tests.waiting import until


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("guarded")
    config = configuration(
        directory / "state",
        engines=[external("fake", engine.port)],
        models=[{"name": "m1", "pool": ["fake"]}, {"name": "masked", "pool": ["fake"]}, {"name": "free", "pool": ["fake"]}],
        guardrails=[
            {
                "name": "secrets",
                "type": "denylist",
                "models": ["m1"],
                "settings": {"phrases": ["project aurora", "tok1"], "action": "block"},
            },
            {"name": "names", "type": "denylist", "models": ["masked"], "settings": {"phrases": ["tok2", "bluebird"], "action": "mask"}},
        ],
        limits=[
            {"name": "few", "match": {"tenant": "globex"}, "requests": {"rate": 3, "per": "1h"}},
            {"name": "together", "match": {"model": "free"}, "concurrent": 1},
        ],
    )
    with Gatehouse(directory, config) as running:
        yield running


def test_a_request_is_blocked_before_it_reaches_an_engine(guarded: Gatehouse, engine: EngineThread) -> None:
    before = len(engine.received)
    response = guarded.chat("Tell me about Project\u200b AURORA please", model="m1")
    assert response.status_code == 400
    error = errors_of(response)
    assert (error["type"], error["code"]) == ("guardrail_violation", "secrets")
    assert len(engine.received) == before
    assert guarded.outcome(response.headers["x-request-id"])["guardrail"] == "secrets"


def test_a_request_is_rewritten(guarded: Gatehouse, engine: EngineThread) -> None:
    assert guarded.chat("fly bluebird fly", model="masked", user="u").status_code == 200
    sent = engine.received[-1].json()
    assert "bluebird" not in sent["messages"][0]["content"] and "fly" in sent["messages"][0]["content"]
    assert sent["user"] == "u"


def contents(found: list[Any]) -> str:
    return "".join(c["delta"].get("content") or "" for e in found if isinstance(e, dict) for c in e.get("choices", []))


def test_an_answer_is_blocked_or_rewritten(guarded: Gatehouse, engine: EngineThread) -> None:
    plain = guarded.chat(model="free").json()["choices"][0]["message"]["content"]
    words = plain.split()
    assert words
    engine.play("normal:chunks=6")
    whole = guarded.chat(model="masked").json()["choices"][0]["message"]["content"]
    assert "tok2" not in whole and "tok3" in whole


def test_a_stream_never_shows_a_phrase_however_it_is_cut(guarded: Gatehouse, engine: EngineThread) -> None:
    for step in ("normal:chunks=6", "dribble:chunks=6"):
        engine.play(step)
        response = guarded.chat(model="masked", stream=True)
        found = events(response.text)
        assert found[-1] == "[DONE]"
        assert "tok2" not in contents(found) and "tok3" in contents(found)
        engine.play(step)
        blocked = events(guarded.chat(model="m1", stream=True).text)
        assert "tok1" not in contents(blocked)


def test_a_limit_answers_429_with_its_headers(guarded: Gatehouse) -> None:
    for left in (2, 1, 0):
        response = guarded.chat(key=OTHER_KEY, model="masked")
        assert response.status_code == 200
        assert response.headers["x-ratelimit-remaining-requests"] == str(left)
    response = guarded.chat(key=OTHER_KEY, model="masked")
    assert response.status_code == 429
    assert errors_of(response)["code"] == "rate_limit_exceeded"
    assert int(response.headers["retry-after"]) > 0 and int(response.headers["retry-after-ms"]) > 0
    assert guarded.chat(key=KEY, model="masked").status_code == 200


def test_concurrency_is_limited_and_given_back(guarded: Gatehouse, engine: EngineThread) -> None:
    engine.play("hold:at=mid")
    thread = threading.Thread(target=lambda: guarded.chat(model="free", stream=True))
    thread.start()
    until(lambda: guarded.metric("gatehouse_in_flight") == 1)
    refused = guarded.chat(model="free")
    assert refused.status_code == 429 and errors_of(refused)["code"] == "concurrency_exceeded"
    engine.release()
    thread.join(60)
    assert guarded.chat(model="free").status_code == 200


@pytest.mark.parametrize("durability", ["async", "fsync"])
def test_every_durability_records(tmp_path: Path, engine: EngineThread, durability: str) -> None:
    config = configuration(
        tmp_path / "state",
        engines=[external("fake", engine.port)],
        models=[{"name": "m1", "pool": ["fake"]}],
        audit={"durability": durability},
    )
    with Gatehouse(tmp_path, config) as gatehouse:
        ids = [gatehouse.chat().headers["x-request-id"] for _ in range(5)]
        for request_id in ids:
            assert gatehouse.outcome(request_id)["outcome"] == "ok"
