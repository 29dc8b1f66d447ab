"""Data labels over the running gateway: what an external engine never gets, however the request came by its label."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.adminapi import admin
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import OTHER_KEY, Gatehouse, configuration, errors_of, external
from tests.waiting import until

LABELS = {"name": "g", "type": "pii", "settings": {"entities": {"email": "label"}}}
ROOT_KEY = "root-key-0123456789abcdef0123456789abcdef"
SECRET = "my diagnosis is private"


@pytest.fixture(scope="module")
def cloud() -> Iterator[EngineThread]:
    running = EngineThread(slots=64)
    yield running
    running.close()


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread, cloud: EngineThread) -> Iterator[Gatehouse]:
    """`m1` on an engine of ours and one that may see nothing with a label; `remote` on that one alone, `backed` with our own behind it."""
    root = tmp_path_factory.mktemp("labels")
    config = configuration(
        root / "state",
        listen={"trusted_peers": ["127.0.0.1"]},
        files={"enabled": True, "reserve_bytes": 0},
        batches={"enabled": True},
        labels={"restricted": {"tenants": ["globex"]}, "health": {"models": ["clinic"]}},
        engines=[external("ours", engine.port, slots=64, clearance=["*"]), external("cloud", cloud.port, slots=64)],
        models=[
            {"name": "m1", "pool": ["ours", "cloud"], "routing": {"policy": "round_robin"}},
            {"name": "clinic", "pool": ["ours", "cloud"], "routing": {"policy": "round_robin"}},
            {"name": "remote", "pool": ["cloud"]},
            {"name": "backed", "pool": ["cloud"], "fallbacks": ["m1"]},
        ],
        guardrails=[
            {
                "name": "words", "type": "denylist", "on": ["request"], "label": "restricted",
                "settings": {"phrases": ["diagnosis"], "action": "label"},
            }
        ],
    )  # fmt: skip
    root_key = {"id": "root", "key": ROOT_KEY, "tenant": "ops", "models": ["*"], "roles": ["admin"]}
    config["identity"]["api_keys"]["static"].append(root_key)
    with Gatehouse(root, config) as running:
        yield running


def posts(running: Gatehouse, **fields: object) -> set[str]:
    """The endpoints of several requests."""
    headers = fields.pop("headers", {})
    key = str(fields.pop("key", "")) or None
    body = {"model": "m1", "messages": [{"role": "user", "content": str(fields.pop("text", "hello"))}], **fields}
    found = set()
    for _ in range(4):
        with running.client(key) if key else running.client() as http:
            answer = http.post("/v1/chat/completions", json=body, headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 200, answer.text
        found.add(answer.headers["x-gatehouse-endpoint"])
    return found


def test_a_label_keeps_a_request_from_engines_that_are_not_cleared(labelled: Gatehouse, cloud: EngineThread) -> None:
    assert posts(labelled) == {"ours", "cloud"}
    before = len(cloud.received)
    assert posts(labelled, key=OTHER_KEY) == {"ours"}, "the tenant's"
    assert posts(labelled, model="clinic") == {"ours"}, "the model's"
    assert posts(labelled, headers={"x-gatehouse-data-label": "health"}) == {"ours"}, "a trusted peer's"
    assert posts(labelled, metadata={"data_label": "health"}) == {"ours"}, "the client's"
    assert posts(labelled, text=SECRET) == {"ours"}, "a guardrail's"
    assert posts(labelled, model="backed", text=SECRET) == {"ours"}, "behind a model that may not see it"
    assert len(cloud.received) == before


def test_the_lines_of_a_batch_have_the_labels_of_the_request_that_made_it(labelled: Gatehouse, cloud: EngineThread) -> None:
    one = {"method": "POST", "url": "/v1/chat/completions", "body": {"model": "m1", "messages": [{"role": "user", "content": "hello"}]}}
    lines = "\n".join(json.dumps({"custom_id": str(number), **one}) for number in range(4))
    batch = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    with labelled.client() as http:

        def uploaded(**headers: str) -> httpx.Response:
            return http.post("/v1/files", files={"file": ("in.jsonl", lines.encode())}, data={"purpose": "batch"}, headers=headers)

        plain, health = uploaded().json()["id"], uploaded(**{"x-gatehouse-data-label": "health"}).json()["id"]

        def seen(headers: dict[str, str] | None = None, file: str = plain, **fields: object) -> int:
            """How many lines of a batch the engine got that is not cleared."""
            before = len(cloud.received)
            made = http.post("/v1/batches", json={"input_file_id": file, **batch, **fields}, headers=headers).json()["id"]
            until(lambda: http.get(f"/v1/batches/{made}").json()["request_counts"]["completed"] == 4, what="the batch's lines")
            return len(cloud.received) - before

        assert seen() == 2
        assert seen({"x-gatehouse-data-label": "health"}) == 0, "a trusted peer's"
        assert seen(metadata={"data_label": "restricted"}) == 0, "the client's"
        assert seen(file=health) == 0, "the file's"
        wrong = {"x-gatehouse-data-label": "healht"}
        for unknown in (http.post("/v1/batches", json={"input_file_id": plain, **batch}, headers=wrong), uploaded(**wrong)):
            assert unknown.status_code == 400 and errors_of(unknown)["param"] == "x-gatehouse-data-label"


@pytest.mark.parametrize("stream", [False, True])
def test_where_nobody_may_see_it_the_request_is_refused(labelled: Gatehouse, cloud: EngineThread, stream: bool) -> None:
    before = len(cloud.received)
    answer = labelled.chat(SECRET, model="remote", stream=stream)
    assert (answer.status_code, errors_of(answer)["code"]) == (403, "label_not_cleared")
    assert errors_of(answer)["message"] == "No engine of remote may see data with the label restricted."
    outcome = labelled.outcome(answer.headers["x-request-id"])
    assert outcome["detail"]["labels"] == ["restricted"] and outcome["outcome"] == "denied"
    assert len(cloud.received) == before


def test_an_operator_sees_labels_and_who_is_cleared_for_them(labelled: Gatehouse) -> None:
    def explained(model: str, tenant: str = "acme", label: str = "") -> tuple[list[str], list[str]]:
        question = {"principal": {"tenant": tenant, "models": ["*"]}, "request": {"model": model, "label": label}}
        answer = http.post("/policies:explain", json=question).json()
        return answer["labels"], answer["engines"]

    with admin(labelled, key=ROOT_KEY) as http:
        assert explained("m1") == ([], ["ours", "cloud"])
        assert explained("clinic", "globex") == (["health", "restricted"], ["ours"])
        assert explained("remote", label="health") == (["health"], [])
        assert explained("remote", label="lunch") == ([], ["cloud"])
        listed = http.get("/engines").json()
        assert {one["name"]: one["clearance"] for one in listed["items"]} == {"ours": ["*"], "cloud": []}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"engines": [external("a", 9, clearance=["restrictd"])]}, r"engines\[0\]\.clearance\[0\]"),
        ({"guardrails": [{**LABELS, "on": ["request"]}]}, r"guardrails\[0\]\.label: is missing"),
        ({"guardrails": [{**LABELS, "label": "restricted"}]}, r"guardrails\[0\]\.on: must be"),
        ({"guardrails": [{**LABELS, "on": ["request"], "label": "x"}]}, r"there is no label 'x'"),
    ],
)  # fmt: skip
def test_labels_that_are_not_there_are_refused_with_their_place(tmp_path: Path, change: dict[str, object], why: str) -> None:
    config = configuration(tmp_path / "state", engines=[external("a", 9)], models=[{"name": "m1", "pool": ["a"]}])
    config |= {"labels": {"restricted": {}}, **change}
    with pytest.raises(AssertionError, match=why):
        Gatehouse(tmp_path, config).start()
