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

EXAMPLES = 4
PRICES = ("/prices", "/prices/{name}")
SETTINGS = tuple(f"/{kind}{one}" for kind in ("engines", "models", "limits", "roles", "bindings") for one in ("", "/{name}"))
BEYOND_SCHEMAS = (
    "cursor",
    "key",
    "from_segment",
    "cidrs[",
    "models[",
    "request",
    "match.tenant",
    "group_by",
    "settings",
    "type",
    "limits[",
    "since",
    "until",
    "expires",
    "name",
    "groups[",
    "roles",
    "user",
    "subjects",
    "networks[",
)
"""Parameters with rules that JSON Schema cannot say: what a page gave, one of two, segments of writers, an operation, networks, a tenant's
models, at least one of three, no repetition, a guardrail's type and own settings, limits, groups and roles that are there, days of the
calendar, an expiry to come, the spelling of a full name, at least one subject. Only a refusal that names one of them may meet data that
the schema allows."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("schema")
    config = adminapi.config(directory / "state", engine.port)
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
    schema.config.update(base_url=running.admin_url, headers={"authorization": f"Bearer {adminapi.KEYS['admin']}"})
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
        return response.status_code == 412 or (response.status_code == 413 and label == "POST /admin/v1/model-uploads")
    if not response.content:  # HEAD
        return False
    found = response.json()
    if label == "PUT /admin/v1/config":  # a text, of which the schema says nothing
        return bool(found["code"] in ("invalid_config", "invalid_value"))
    if label.endswith(SETTINGS) and (found["code"] == "invalid_config" or found.get("param") in ("api_key", "runtime")):
        return True  # what their settings promise to one another, to the machine and to the other resources
    if label.endswith(PRICES) and found.get("param") in ("model", "from", "until", "currency"):
        return True  # which prices contradict one another, days of the calendar, at least one rate
    if label == "POST /admin/v1/revocations" and found["code"] == "invalid_value" and "param" in found:
        return True  # which of them the type has, and what they may be in a token
    if label == "POST /admin/v1/apply" and "/" in found.get("param", ""):
        return True  # KIND/NAME: the same of one of its resources
    return str(found.get("param", "")).startswith(BEYOND_SCHEMAS)
