"""The OpenAPI document and the running API say the same: schemathesis, with a fixed seed, on every operation but the endless one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from admin.operation import OCTETS
from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse

EXAMPLES = 2


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("schema")
    config = adminapi.config(directory / "state", engine.port)
    config |= {"files": {"enabled": True}, "batches": {"enabled": True}, "jobs": {"enabled": True}}
    config["identity"]["gateway_tokens"] = {"issuer": "https://gatehouse.test"}  # without one no key of tokens can be made
    with Gatehouse(directory, config) as gatehouse:
        yield gatehouse


@pytest.fixture(scope="module")
def document(running: Gatehouse) -> dict[str, Any]:
    with adminapi.admin(running) as client:
        found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def test_the_document_describes_every_route(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len(operations) >= 50
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all("Needs the permission" in operation["description"] for operation in operations)


def test_schemathesis_finds_no_failure(running: Gatehouse, document: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    schema = schemathesis.openapi.from_dict(document).exclude(path="/admin/v1/events")
    headers = {"authorization": f"Bearer {adminapi.KEYS['admin']}"}
    schema.config.update(base_url=running.admin_url, headers=headers, request_timeout=90)  # a search waits 10 s for the index
    schema.config.generation.update(with_security_parameters=False)
    schemathesis.serializer.alias(OCTETS, "application/octet-stream")
    cases: Counter[str] = Counter()
    failures: list[str] = []
    for found in schema.get_all_operations():
        operation = found.ok()
        _attack(operation, GenerationMode.POSITIVE, cases, failures)
        if operation.body or any(parameter.location != "path" for parameter in operation.iter_parameters()):
            _attack(operation, GenerationMode.NEGATIVE, cases, failures)  # any text is a name: nothing else can be wrong
    with capsys.disabled():
        print(f"\nschemathesis: {sum(cases.values())} cases on {len(cases)} operations, {len(failures)} failures")
    assert not failures, "\n\n".join(failures[:5])
    assert len(cases) >= 50 and sum(cases.values()) > 400
    assert httpx.get(f"{running.admin_url}/livez", trust_env=False, timeout=60).status_code == 200
    assert not [line for line in running.lines if "Traceback" in line]


def _attack(operation: Any, mode: GenerationMode, cases: Counter[str], failures: list[str]) -> None:
    @hypothesis.seed(20261120)
    @settings(max_examples=EXAMPLES, database=None, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @hypothesis.given(operation.as_strategy(generation_mode=mode))
    def attack(case: Any) -> None:
        cases[operation.label] += 1
        try:
            response = case.call()
            if response.status_code == 400 and response.content == b"Invalid HTTP request received.":
                return  # a target of more than 64 KiB: the server refuses it before the API sees it
            if response.status_code == 413 and mode is GenerationMode.NEGATIVE:
                return  # it is too large as a whole, whatever else is wrong with it
            if response.status_code == 503 and b"audit_indexing" in response.content:
                return  # these very requests are in the log, and the index is a moment behind
            excluded = [ignored_auth, *([positive_data_acceptance] if _beyond_schemas(operation.label, response) else [])]
            case.validate_response(response, excluded_checks=excluded)
        except FailureGroup as group:
            failures.append(f"{operation.label} ({mode.value}): {group}")

    try:
        attack()
    except Unsatisfiable:  # nothing about this operation can be wrong (it has no parameters), or nothing was drawn
        assert mode is GenerationMode.NEGATIVE


def _beyond_schemas(label: str, response: Any) -> bool:
    if response.status_code != 400:  # which version is there, and what the settings allow to be sent, no schema says
        return response.status_code in (412, 422) or (response.status_code == 413 and label == "POST /admin/v1/model-uploads")
    if not response.content:  # HEAD
        return False
    found = response.json()
    # Rules that JSON Schema cannot say (what is there, spellings, settings of plug-ins, what contradicts) are told by the field's name.
    return bool(found.get("param")) or found["code"] in ("invalid_config", "invalid_value")
