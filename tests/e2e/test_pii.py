"""The guardrail pii in a running gateway: requests, whole answers and streams, however they are cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, configuration, errors_of, external
from tests.e2e.test_streams import events

CARD_MARK = "404"
"""The fake engine's words are this with a number; the first four make a card's number over four events."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("pii")
    entities = {"email": "mask", "card": "mask", "iban": "block", "phone": "hash", "badge": "mask"}
    custom = {"badge": {"pattern": r"EMP-\d{4}"}}
    config = configuration(
        directory / "state",
        engines=[external("fake", engine.port)],
        models=[{"name": "m1", "pool": ["fake"]}, {"name": "strict", "pool": ["fake"]}],
        guardrails=[
            {
                "name": "personal",
                "type": "pii",
                "models": ["m1"],
                "settings": {"entities": entities, "custom": custom, "hash_key": "0123456789abcdef", "allow": ["*@example.org"]},
            },
            {"name": "no-cards", "type": "pii", "models": ["strict"], "settings": {"entities": {"card": "block"}}},
        ],
    )
    with Gatehouse(directory, config) as running:
        yield running


def contents(found: list[Any]) -> str:
    return "".join(c["delta"].get("content") or "" for e in found if isinstance(e, dict) for c in e.get("choices", []))


def test_a_request_is_rewritten(guarded: Gatehouse, engine: EngineThread) -> None:
    text = "mail bob@example.com or joe@example.org, card ４１１１\u200b1111-1111 1111, EMP-1234, call +1 415 555 2671"
    assert guarded.chat(text, model="m1").status_code == 200
    sent = engine.received[-1].json()["messages"][0]["content"]
    assert sent.startswith("mail [EMAIL] or joe@example.org, card [CARD], [BADGE], call [PHONE:")
    assert "415" not in sent


def test_a_request_is_blocked_and_the_error_does_not_repeat_it(guarded: Gatehouse, engine: EngineThread) -> None:
    before = len(engine.received)
    response = guarded.chat("pay to DE89 3704 0044 0532 0130 00", model="m1")
    assert response.status_code == 400 and len(engine.received) == before
    error = errors_of(response)
    assert (error["type"], error["code"]) == ("guardrail_violation", "personal")
    assert "iban" in error["message"] and "3704" not in response.text
    assert guarded.outcome(response.headers["x-request-id"])["guardrail"] == "personal"


def test_a_whole_answer_is_rewritten(guarded: Gatehouse, engine: EngineThread) -> None:
    engine.play("normal:chunks=6")
    content = guarded.chat(model="m1", user=CARD_MARK).json()["choices"][0]["message"]["content"]
    assert content == f" [CARD] {CARD_MARK}4 {CARD_MARK}5"


@pytest.mark.parametrize("kind", ["normal", "dribble"])
def test_a_stream_is_rewritten_over_its_events(guarded: Gatehouse, engine: EngineThread, kind: str) -> None:
    engine.play(f"{kind}:chunks=6")
    found = events(guarded.chat(model="m1", stream=True, user=CARD_MARK).text)
    assert found[-1] == "[DONE]"
    assert contents(found) == f" [CARD] {CARD_MARK}4 {CARD_MARK}5"


@pytest.mark.parametrize("kind", ["normal", "dribble"])
def test_a_stream_is_blocked_before_any_of_the_number_has_left(guarded: Gatehouse, engine: EngineThread, kind: str) -> None:
    engine.play(f"{kind}:chunks=6")
    response = guarded.chat(model="strict", stream=True, user=CARD_MARK)
    assert CARD_MARK not in response.text
    assert "no-cards" in response.text and "card" in response.text
