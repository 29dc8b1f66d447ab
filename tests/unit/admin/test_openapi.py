"""The document is made of the tables: references resolve, every path has its parameters, no secret has a place in an answer."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from admin import openapi
from admin.openapi import describe, document
from admin.resources import table

DOCUMENT = describe(table.operations())


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(member) for member in value.values()))
    return set().union(*(references(member) for member in value)) if isinstance(value, list) else set()


def test_every_reference_leads_somewhere() -> None:
    found = references(DOCUMENT)
    assert found and all(ref.removeprefix("#/components/schemas/") in DOCUMENT["components"]["schemas"] for ref in found)


def test_paths_name_their_parameters() -> None:
    for path, methods in DOCUMENT["paths"].items():
        wanted = set(re.findall(r"\{(\w+)\}", path))
        for operation in methods.values():
            assert {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"} == wanted


def test_bodies_are_closed_and_answers_are_open() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas["KeyCreation"]["additionalProperties"] is False
    assert "additionalProperties" not in schemas["KeyView"]


def test_only_a_post_whose_fields_are_all_optional_needs_no_body() -> None:
    optional: set[tuple[str, str]] = set()
    for path, methods in DOCUMENT["paths"].items():
        for method, described in methods.items():
            body = described.get("requestBody")
            if body is not None and not body["required"]:
                optional.add((method, path.removeprefix("/admin/v1")))
                schema = DOCUMENT["components"]["schemas"][body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]]
                assert not schema.get("required"), path
    assert {method for method, _ in optional} == {"post"}
    assert {("post", "/keys/{id}/rotate"), ("post", "/users/{name}/suspend"), ("post", "/limits/{name}/reset")} <= optional
    assert not {("post", "/keys"), ("post", "/approvals/{id}/approve")} & optional


def test_only_the_answer_that_makes_a_key_shows_it() -> None:
    holders = [name for name, schema in DOCUMENT["components"]["schemas"].items() if "secret" in schema.get("properties", ())]
    assert holders == ["NewKeyView"]


def test_writes_may_be_tried_without_writing() -> None:
    for operation in table.operations():
        if operation.writes and operation.path != "config/reload":
            assert "dry_run" in operation.query.__struct_fields__, operation.path


async def test_the_document_is_made_once_and_only_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(operations: Any) -> dict[str, Any]:
        made.append(len(list(operations)))
        return {"number": len(made)}

    monkeypatch.setattr(openapi, "describe", counted)
    operation = document(table.operations()[:3])
    assert made == []
    answers = await asyncio.gather(*(operation.handler(None) for _ in range(5)))  # type: ignore[arg-type]
    assert made == [4] and {answer.value["number"] for answer in answers} == {1}
