"""A classification model of the gateway as a guardrail, and as what answers /v1/moderations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.harness import KEY, NARROW_KEY, Gatehouse, configuration, errors_of, external
from tests.e2e.test_admin_policies import ROOT_KEY, admin
from tests.fakes.ports import empty_port
from tests.unit.engines.onnx.models import classifier_folder

LIMITED_KEY = "limited-key-0123456789abcdef0123456789ab"
JUDGE_KEY = "judge-key-0123456789abcdef0123456789abcde"
CHAT_KEY = "chat-key-0123456789abcdef0123456789abcdef"
DOGS = "dog dog dog"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatehouse]:
    """A classifier of cats and dogs that judges the requests to itself, so that no second engine is needed."""
    root = tmp_path_factory.mktemp("moderations")
    classifier_folder(root / "classifier")
    with empty_port() as port, Gatehouse(root, settings(root, port)) as running:
        yield running


def settings(root: Path, nobody: int) -> dict[str, Any]:
    config = configuration(
        root / "state",
        engines=[
            {"name": "classifier", "runtime": "onnx", "model": str(root / "classifier"), "slots": 4},
            external("gone", nobody),
        ],
        models=[
            {"name": "pets", "pool": ["classifier"]},
            {"name": "watched", "pool": ["classifier"]},
            {"name": "unsure", "pool": ["classifier"]},
            {"name": "unjudged", "pool": ["classifier"]},
            {"name": "lost", "pool": ["gone"]},
        ],
        guardrails=[
            {
                "name": "no-dogs", "type": "classifier", "on": ["request"], "models": ["watched", "pets"],
                "settings": {"model": "pets", "labels": {"dogs": 0.9}, "timeout": "20s"},
            },
            {
                "name": "lost-guard", "type": "classifier", "on": ["request"], "models": ["unsure"],
                "settings": {"model": "lost", "labels": {"dogs": 0.9}, "timeout": "2s"},
            },
            {"name": "words", "type": "denylist", "models": ["pets"], "settings": {"phrases": ["the forbidden phrase"]}},
        ],
        moderation={"guardrail": "no-dogs"},
        roles={
            "chatter": {"permissions": ["infer:chat:model/*"]},
            "judge": {"permissions": ["infer:moderations:model/pets"]},
        },
        prices=[{"model": "*", "prompt": 10, "completion": 10, "per": "1M", "currency": "usd"}],
        limits=[{"name": "few", "per": "key", "match": {"key": "limited"}, "requests": {"rate": 2, "per": "1h", "burst": 2}}],
    )  # fmt: skip
    keys = config["identity"]["api_keys"]["static"]
    keys.append({"id": "limited", "key": LIMITED_KEY, "tenant": "acme", "models": ["*"]})
    keys.append({"id": "chat", "key": CHAT_KEY, "tenant": "acme", "models": ["*"], "roles": ["chatter"]})
    keys.append({"id": "judge", "key": JUDGE_KEY, "tenant": "acme", "models": ["*"], "roles": ["judge"]})
    keys.append({"id": "root", "key": ROOT_KEY, "tenant": "acme", "models": ["*"], "roles": ["admin"]})
    return config


def client(guarded: Gatehouse, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=0)


def test_the_official_client_gets_a_judgement_of_every_text(guarded: Gatehouse) -> None:
    with client(guarded) as http:
        found = http.moderations.create(input=["cat cat", DOGS, ""])
        one = http.moderations.create(input=DOGS, model="pets")
        parts = http.moderations.create(input=[{"type": "text", "text": "dog dog"}, {"type": "text", "text": "dog"}])
    assert found.id.startswith("modr-") and found.model == "pets"
    assert [result.flagged for result in found.results] == [False, True, False]
    assert found.results[1].categories.model_dump(by_alias=True)["dogs"] is True
    scores = found.results[1].category_scores.model_dump(by_alias=True)
    assert 0.99 < scores["dogs"] <= 1
    assert len(one.results) == 1 and one.results[0].flagged and len(parts.results) == 1 and parts.results[0].flagged


def test_it_is_recorded_charged_and_counted_like_every_request(guarded: Gatehouse) -> None:
    with guarded.client() as http:
        answer = http.post("/v1/moderations", json={"input": DOGS})
    assert answer.headers["x-gatehouse-model"] == "pets"
    request_id = answer.headers["x-request-id"]
    outcome = guarded.outcome(request_id)
    intent = next(r for r in guarded.audit() if r["kind"] == "intent" and r["request_id"] == request_id)
    assert (intent["operation"], intent["model"], outcome["outcome"]) == ("moderations", "pets", "ok")
    assert outcome["prompt_tokens"] == 5 and outcome["cost"] == 50_000
    assert outcome["detail"]["moderation"] == {"guardrail": "no-dogs", "texts": 1, "flagged": 1}
    assert "dog" not in json.dumps(outcome).replace("no-dogs", "")


def test_permissions_operations_and_limits_apply(guarded: Gatehouse) -> None:
    body = {"input": "cat"}
    with guarded.client(CHAT_KEY) as http:
        assert http.post("/v1/moderations", json=body).status_code == 403
    with guarded.client(JUDGE_KEY) as http:
        assert http.post("/v1/moderations", json=body).status_code == 200
        assert http.post("/v1/classify", json={**body, "model": "pets"}).status_code == 403
    with admin(guarded) as http:
        made = http.post("/keys", json={"tenant": "acme", "models": ["*"], "operations": ["moderations"]}).json()
    with guarded.client(made["secret"]) as http:
        assert http.post("/v1/moderations", json=body).status_code == 200
        assert http.post("/v1/classify", json={**body, "model": "pets"}).status_code == 403
    with guarded.client(NARROW_KEY) as http:
        assert http.post("/v1/moderations", json=body).status_code == 404
    with guarded.client("nobody") as http:
        assert http.post("/v1/moderations", json=body).status_code == 401
    with guarded.client(LIMITED_KEY) as http:
        assert [http.post("/v1/moderations", json=body).status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        ({"input": [{"type": "image_url", "image_url": {"url": "https://x.example/y.png"}}]}, 400, "unsupported_content", "input[0]"),
        ({"input": []}, 400, "invalid_value", "input"),
        ({"input": 5}, 400, "invalid_value", "input"),
        ({"input": [1, 2]}, 400, "invalid_value", "input"),
        ({}, 400, "missing_required_parameter", "input"),
        ({"input": "x", "model": "nothing"}, 404, "model_not_found", "nothing"),
        ({"input": "x", "model": "unjudged"}, 400, "unsupported_operation", "unjudged"),
        ({"input": "x", "surprise": 1}, 400, "unsupported_parameter", "surprise"),
        ({"input": "x" * 1_100_000}, 502, "engine_failed", "max_bytes"),
        ({"input": "say the forbidden phrase"}, 400, "words", "not allowed"),
    ],
)
def test_what_is_refused_says_why(guarded: Gatehouse, body: dict[str, Any], status: int, code: str, words: str) -> None:
    with guarded.client() as http:
        answer = http.post("/v1/moderations", json=body)
    assert (answer.status_code, errors_of(answer)["code"]) == (status, code), answer.text
    assert words in errors_of(answer)["message"]


def test_the_guardrail_refuses_through_the_fleet_and_charges_what_it_cost(guarded: Gatehouse) -> None:
    with guarded.client() as http:
        passed = http.post("/v1/classify", json={"model": "watched", "input": "cat"})
        refused = http.post("/v1/classify", json={"model": "watched", "input": DOGS})
    assert passed.status_code == 200
    assert refused.status_code == 400 and errors_of(refused)["code"] == "no-dogs"
    outcome = guarded.outcome(refused.headers["x-request-id"])
    assert (outcome["guardrail"], outcome["prompt_tokens"], outcome["cost"]) == ("no-dogs", 5, 50_000)
    (found,) = outcome["detail"]["guardrails"]
    assert found["spans"][0]["entity"] == "dogs" and found["spans"][0]["score"] > 0.99
    assert guarded.metric("gatehouse_requests_total", model="pets", operation="guardrail", outcome="ok") >= 2


def test_a_text_longer_than_the_model_is_read_to_its_end(guarded: Gatehouse) -> None:
    with guarded.client() as http:
        refused = http.post("/v1/classify", json={"model": "watched", "input": "x " * 300 + DOGS})
    assert refused.status_code == 400 and errors_of(refused)["code"] == "no-dogs"


def test_a_model_that_does_not_answer_refuses(guarded: Gatehouse) -> None:
    with guarded.client() as http:
        answer = http.post("/v1/classify", json={"model": "unsure", "input": "cat"})
        moderation = http.post("/v1/moderations", json={"model": "lost", "input": "cat"})
    assert answer.status_code == 400 and errors_of(answer)["code"] == "lost-guard"
    (found,) = guarded.outcome(answer.headers["x-request-id"])["detail"]["guardrails"]
    assert (found["verdict"], found["action"]) == ("error", "block")
    assert moderation.status_code in (502, 503)


def test_operators_try_it_out(guarded: Gatehouse) -> None:
    with admin(guarded) as http:
        body = http.post("/guardrails:evaluate", json={"text": DOGS, "model": "watched"}).json()
    assert body["verdict"] == "block" and body["guardrails"][0]["spans"][0]["entity"] == "dogs"
