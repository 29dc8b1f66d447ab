"""Answers that follow a schema, and what is said of those that do not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.errors import ConfigError, RequestError
from gateway.core.plugins import Context, built
from gateway.core.types import ALLOW
from gateway.wire.openai.api import ChatApi
from policies.guardrails.json_schema.guardrail import TOO_MUCH, JsonSchemaGuardrail, JsonSchemaSettings, Shape, build
from tests.steady import at_most, spent

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def guardrail(read: Any = None, **fields: Any) -> JsonSchemaGuardrail:
    return built(build, JsonSchemaSettings, fields, Context(name="form", **({"read": read} if read else {})))


def request(response_format: Any = None) -> Any:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    if response_format is not None:
        body["response_format"] = response_format
    return ChatApi().parse(b"/v1/chat/completions", json.dumps(body).encode(), {}, 64, 65536)


def asking(schema: Any) -> Any:
    return request({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})


def test_answers_are_judged_by_the_configured_schema() -> None:
    made = guardrail(schema=PERSON)
    assert made.concerned(request()) and made.check(["anything"]) is ALLOW and made.stream() is None
    assert made.faults(request(), ['{"name": "Bob", "age": 3}']) == []
    assert made.faults(request(), ['{"name": "Bob", "age": "secret"}']) == ["/properties/age/type"]
    assert made.faults(request(), ["{}", "{}"]) == ['/required: "name" is a required property', '/required: "age" is a required property']
    assert made.faults(request(), ["```json\n{}\n```"]) == ["not valid JSON"]
    assert made.faults(request(), ["[" * 40 + "]" * 40]) == ["nested deeper than 32 levels"]
    assert guardrail(schema={}, max_length=3).faults(request(), ["[1, 2]"]) == ["more than 3 characters"]


@pytest.mark.parametrize("text", ['{"a":"bad","a":"ok"}', '{"a":"ok","b":{"a":1,"\\u0061":2}}', '{"a":":\\u003a","a":"ok"}'])
def test_an_answer_with_a_key_twice_breaks_every_schema(text: str) -> None:
    """The schema would read one of them, the caller perhaps the other."""
    for made in (guardrail(schema={"properties": {"a": {"enum": ["ok"]}}}), guardrail(from_request=True)):
        assert made.faults(request({"type": "json_object"}), [text]) == ["a key appears twice in one object"]
    assert guardrail(schema={}).faults(request(), ['{"a": ":\\u003a\\u003A\\\\u003a", "b": {"a": ["::"]}}']) == []


def test_faults_have_no_word_of_the_answer() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer", "maximum": 3}, "propertyNames": {"maxLength": 3}}
    found = guardrail(schema=schema).faults(request(), ['{"secret@example.com": "hidden", "secret2": 17, "s3": 99}'])
    assert found and "secret" not in "".join(found) and "hidden" not in "".join(found)


def test_a_request_brings_its_own_schema() -> None:
    made = guardrail(from_request=True)
    assert not made.concerned(request()) and not made.concerned(request({"type": "text"}))
    assert made.concerned(asking(PERSON)) and made.faults(asking(PERSON), ['{"name": 1, "age": 2}']) == ["/properties/name/type"]
    assert made.concerned(request({"type": "json_object"}))
    assert made.faults(request({"type": "json_object"}), ["[]"]) == ["not a JSON object"]
    assert made.faults(request({"type": "json_object"}), ["{}"]) == []
    both = guardrail(from_request=True, schema={"required": ["id"]})
    assert both.faults(asking({"required": ["name"]}), ["{}"]) == [
        '/required: "id" is a required property',
        '/required: "name" is a required property',
    ]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"$ref": "http://127.0.0.1:1/x"}, "only references into the schema itself"),
        ({"type": "nonsense"}, "it is not a schema"),
        ({"pattern": "(?=a)b"}, "it is not a schema"),
        ({"pattern": "(a)\\1"}, "it is not a schema"),
        ({"$schema": "http://127.0.0.1:1/meta"}, "it is not a schema"),
        ({"enum": ["x" * 70_000]}, "longer than"),
        ([1], "object"),
    ],
)
def test_schemas_of_requests_that_are_refused(schema: Any, why: str) -> None:
    with pytest.raises(RequestError, match=f"response_format: .*{why}"):
        guardrail(from_request=True).concerned(asking(schema))


def test_known_schemas_are_bounded() -> None:
    made = guardrail(from_request=True)
    for number in range(600):
        made.concerned(asking({"const": number}))
    assert len(made._known) <= 256


def test_patterns_take_linear_time() -> None:
    assert Shape({"pattern": "^(a+)+$"}).faults(json.dumps("a" * 100_000 + "!"), 1 << 20) == ["/pattern"]


LETTERS = [rf"^\p{{L}}{{10}}{number}" for number in range(100)]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"properties": {str(number): {"pattern": pattern} for number, pattern in enumerate(LETTERS)}}, "patterns"),
        ({"patternProperties": dict.fromkeys(LETTERS, True)}, "patterns"),
        ({"properties": {str(number): {"pattern": f"^a{number}$"} for number in range(65)}}, "more than 64 different patterns"),
        (
            {"properties": {str(number): {"$ref": "#/$defs/n"} for number in range(1500)}, "$defs": {"n": {"allOf": [{}] * 150}}},
            "too many alternatives to be checked",
        ),
    ],
)
def test_schemas_of_requests_that_would_take_long_to_prepare(schema: Any, why: str) -> None:
    def refuse() -> None:
        with pytest.raises(RequestError, match=why):
            guardrail(from_request=True).concerned(asking(schema))

    at_most(1.0, lambda: spent(refuse))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": "^(a|b)*a(a|b){2000}c$"}, "ab" * 20_000),
        ({"items": {"enum": [number + 0.5 for number in range(5_000)]}}, [0.25] * 30_000),
        ({"items": {"enum": [[number] for number in range(5_000)]}}, [[1]] * 30_000),
        ({"items": {"multipleOf": 1e-300}}, [1.5] * 30_000),
        ({"items": {"items": {"uniqueItems": True}}}, [[[0.5, 1.5, 2.5]] * 3] * 3_000),
        ({"allOf": [{"items": {"type": "integer"}}] * 190}, [1] * 60_000),
    ],
)
def test_answers_that_would_take_long_to_check_are_refused(schema: Any, value: Any) -> None:
    def refuse() -> None:
        assert guardrail(from_request=True).faults(asking(schema), [json.dumps(value)]) == [TOO_MUCH]

    at_most(1.0, lambda: spent(refuse))


def test_only_the_first_of_very_many_faults_is_told() -> None:
    schema = {"items": {"required": [f"name {number}" for number in range(3_000)]}}

    def tell() -> None:
        found = guardrail(schema=schema).faults(request(), [json.dumps([{}] * 30_000)])
        assert found == ['/items/required: "name 0" is a required property']

    at_most(1.0, lambda: spent(tell))


def test_usual_schemas_leave_room_for_long_answers() -> None:
    day = {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"}
    row = {
        "type": "object",
        "properties": {**PERSON["properties"], "born": day, "kind": {"enum": ["a", "b", "c"]}},
        "required": ["name", "age"],
    }
    schema = {"type": "object", "properties": {"rows": {"type": "array", "items": row}, "text": {"type": "string", "pattern": "^[^<>]*$"}}}
    value = {"rows": [{"name": "Ann", "age": 5, "born": "2001-02-03", "kind": "a"}] * 500, "text": "word " * 10_000}
    assert guardrail(from_request=True).faults(asking(schema), [json.dumps(value)]) == []


def test_known_patterns_are_bounded() -> None:
    made = guardrail(from_request=True)
    for number in range(40):
        made.concerned(asking({"properties": {str(each): {"pattern": f"^{number}-{each}$"} for each in range(60)}}))
    assert 0 < len(made._known) <= 1024 // 60 and made._patterns == 60 * len(made._known)


def test_the_deepest_answer_and_the_most_branching_schema_fit() -> None:
    schema: dict[str, Any] = {"$defs": {"n": {"properties": {"c": {"$ref": "#/$defs/n"}}}}}
    reference: dict[str, Any] = {"$ref": "#/$defs/n"}
    for _ in range(40):
        reference = {"allOf": [reference]}
    schema["$defs"]["n"]["properties"]["c"] = reference
    value: Any = {}
    for _ in range(31):
        value = {"c": value}
    assert Shape({**schema, "$ref": "#/$defs/n"}).faults(json.dumps(value), 1 << 20) == []


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "schema: give schema or schema_file, or set from_request: true"),
        ({"schema": {}, "schema_file": "x"}, "not both"),
        ({"schema": {"$ref": "#"}}, "schema: .*refers to itself"),
        ({"schema": {"enum": ["x" * 70_000]}}, "longer than"),
        ({"schema_file": "broken"}, "schema_file: it is not JSON"),
        ({"schema": {}, "action": "mask"}, "mask"),
    ],
)
def test_settings_that_it_refuses(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        guardrail(lambda name: "{", **fields)


def test_a_schema_in_a_file() -> None:
    assert guardrail(lambda name: json.dumps(PERSON), schema_file="person.json").faults(request(), ["{}"]) != []
