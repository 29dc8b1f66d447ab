"""The OpenAPI 3.1 document, built from the same tables as the routes, so that the two cannot disagree."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from admin.moments import documented
from admin.operation import IN_FORCE, JSON, PREFIX, Answer, Call, NoQuery, Operation, Waiting
from admin.problems import MEDIA_TYPE, Problem, phrase

PATH: Final = "openapi.json"
_REF: Final = "#/components/schemas/{name}"
_ETAG: Final = MappingProxyType({"schema": {"type": "string"}, "description": "The version, for If-Match."})
_IN_FORCE: Final = MappingProxyType(
    {"schema": {"type": "boolean"}, "description": "With `wait`: whether it is in force in every process of the gateway."}
)
_BYTES: Final = MappingProxyType({"type": "string", "format": "binary"})
_BEARER: Final = MappingProxyType({"type": "http", "scheme": "bearer", "description": "An API key with a role."})


def document(operations: Sequence[Operation]) -> Operation:
    """The operation that returns the document; the document lists it too. It is made when somebody first asks for it, in a thread: it takes
    0.2 s of CPU, a seventh of a start."""
    made: list[dict[str, Any]] = []
    making = asyncio.Lock()

    async def show(call: Call) -> Answer:
        async with making:
            if not made:
                made.append(await asyncio.to_thread(describe, [*operations, operation]))
        return Answer(made[0])

    operation = Operation("GET", PATH, "roles:read", "Describe this API", show, dict[str, Any])
    return operation


def describe(operations: Iterable[Operation]) -> dict[str, Any]:
    """The document as plain values."""
    listed = list(operations)
    types = [kind for operation in listed for kind in _types(operation)]
    unique = list(dict.fromkeys([Problem, *types]))
    found, components = documented(msgspec.json.schema_components(unique, ref_template=_REF))
    schemas = dict(zip(unique, found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in listed:  # HEAD is described like every other method
        paths.setdefault(f"{PREFIX}/{operation.path}", {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Gatehouse admin API", "version": "1", "description": "Errors are problem details (RFC 9457)."},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": dict(_BEARER)}},
        "security": [{"key": []}],
    }


def _answers(operation: Operation) -> tuple[Any, ...]:
    if operation.answer is None:
        return ()
    return operation.answer if isinstance(operation.answer, tuple) else (operation.answer,)


def _types(operation: Operation) -> list[Any]:
    body = [operation.body] if operation.body is not None and operation.body is not bytes else []
    return [*_answers(operation), *body]


def _operation(operation: Operation, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation_id(operation),
        "summary": operation.summary,
        "description": f"Needs the permission `{operation.permission}`.",
        "tags": [operation.path.partition("/")[0]],
        "responses": _responses(operation, schemas),
    }
    parameters = [*_path_parameters(operation), *_query_parameters(operation), *_headers(operation)]
    if parameters:
        described["parameters"] = parameters
    if operation.body is bytes:
        text = {"schema": {"type": "string", "maxLength": operation.max_body}}
        described["requestBody"] = {"required": True, "content": {media: text for media in operation.accepts if media != JSON}}
        described["requestBody"]["content"][JSON] = {"schema": {"type": "object"}}
    elif operation.body is not None:
        described["requestBody"] = {"required": not operation.body_optional, "content": {JSON: {"schema": schemas[operation.body]}}}
    elif operation.streams:
        described["requestBody"] = {"required": True, "content": {media: {"schema": dict(_BYTES)} for media in operation.accepts}}
    return described


def operation_id(operation: Operation) -> str:
    """`get_keys`, `post_keys_id_rotate`."""
    words = operation.path.replace("{", "").replace("}", "").replace(".", "_").split("/")
    return "_".join([operation.method.lower(), *words])


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for part in operation.segments
        if part.startswith("{")
    ]


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    waiting = [{**one, "required": False} for one in _parameters_of(Waiting)] if operation.writes else []
    return [*_parameters_of(operation.query), *waiting]


def _parameters_of(query: type[msgspec.Struct]) -> list[dict[str, Any]]:
    if query is NoQuery:
        return []
    _, components = documented(msgspec.json.schema_components([query], ref_template=_REF))
    described = components[query.__name__]
    required = described.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _given(schema)}
        for name, schema in described["properties"].items()
    ]


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter is a text and never null: it is absent instead."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    if choices:
        return choices[0] if len(choices) == 1 else {"anyOf": choices}
    if "enum" in schema:
        return {"enum": [value for value in schema["enum"] if value is not None]}
    return {key: value for key, value in schema.items() if not (key == "default" and value is None)}


def _headers(operation: Operation) -> list[dict[str, Any]]:
    found = []
    if operation.conditional:
        tag = {"type": "string", "pattern": r'^(\*|"[^"]*")$'}
        found.append({"name": "If-Match", "in": "header", "required": False, "schema": tag})
    if operation.creates:
        key = {"type": "string", "pattern": r"^[!-~]{1,255}$"}
        found.append({"name": "Idempotency-Key", "in": "header", "required": False, "schema": key})
    found += [{"name": h.name, "in": "header", "required": h.required, "schema": dict(h.schema)} for h in operation.takes]
    return found


def _responses(operation: Operation, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    responses = {str(operation.status): _success(operation, [schemas[kind] for kind in _answers(operation)])}
    if operation.status == 201:  # a dry run creates nothing
        responses["200"] = responses["201"]
    elif operation.status == 204 and operation.answer is not None:  # a dry run says what would change
        responses["200"], responses["204"] = responses["204"], {"description": operation.summary}
    error: dict[str, Any] = {"description": ""}
    if operation.method != "HEAD":
        error["content"] = {MEDIA_TYPE: {"schema": schemas[Problem]}}
    for status in statuses(operation):
        responses[str(status)] = {**error, "description": phrase(status)}
    return responses


def _success(operation: Operation, answers: list[Any]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": operation.summary}
    if operation.media != JSON:
        response["content"] = {media: {"schema": {"type": "string"}} for media in (operation.media, *operation.further_media)}
    elif answers:
        response["content"] = {JSON: {"schema": answers[0] if len(answers) == 1 else {"anyOf": answers}}}
    headers = {"ETag": dict(_ETAG)} if operation.conditional else {}
    if operation.writes:
        headers[IN_FORCE] = dict(_IN_FORCE)
    if headers:
        response["headers"] = headers
    return response


def statuses(operation: Operation) -> list[int]:
    """The errors an operation may return."""
    found = {400, 401, 403, 429, 500, 503}
    if "{" in operation.path or operation.body is not None or operation.finds:
        found.add(404)
    if operation.body is not None or operation.streams:
        found |= {413, 415}
    if operation.writes:
        found |= {409, 404}
    if operation.conditional:
        found.add(412)
    if operation.creates:
        found |= {409, 422}
    if operation.engine:
        found |= {502, 504, 507}
    if operation.disk:
        found |= {409, 507}
    found.update(operation.refuses)
    return sorted(found)
