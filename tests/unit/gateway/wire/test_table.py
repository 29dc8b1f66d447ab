"""The table of wire formats: which paths are inference, whose errors a path has, and that every operation keeps to the port."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from msgspec import Raw

from gateway.core.errors import Overloaded, RequestError
from gateway.core.slices import at_once
from gateway.core.types import InferenceRequest
from gateway.wire.openai.fields import DROPPED, names
from gateway.wire.table import APIS, OPERATIONS, Parser, find, identity_lines, is_inference, parse, parse_steps, refusal


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/v1/chat/completions", True),
        (b"/v1/completions", True),
        (b"/v1/embeddings", True),
        (b"/v1/rerank", True),
        (b"/rerank", True),
        (b"/v2/rerank", True),
        (b"/score", True),
        (b"/classify", True),
        (b"/v1/chat/completions/input_tokens", True),
        (b"/v1/classify", True),
        (b"/v1/messages", True),
        (b"/v1/messages/count_tokens", True),
        (b"/v1/responses/input_tokens", True),
        (b"/v1/messages/batches", False),
        (b"/v1/responses", True),
        (b"/v1/responses/resp_1", False),
        (b"/v2/models/m/infer", True),
        (b"/v2/models/m/versions/1/infer", True),
        (b"/v1/models", False),
        (b"/v1/chat/completions/", False),
        (b"/v1/chat//completions", False),
        (b"/v1/chat%2fcompletions", False),
        (b"/V1/chat/completions", False),
        (b"/v1/chat/completions;x", False),
        (b"/x/../v1/chat/completions", False),
        (b"/v2/models/m", False),
        (b"/v2/models/m/ready", False),
        (b"/control/drain", False),
        (b"", False),
    ],
)
def test_which_paths_are_inference(path: bytes, expected: bool) -> None:
    assert is_inference(path) is expected


def test_every_operation_has_its_own_place() -> None:
    assert OPERATIONS == (
        "chat",
        "completions",
        "embeddings",
        "rerank",
        "score",
        "classify",
        "moderations",
        "images",
        "speech",
        "transcriptions",
        "translations",
        "tokenize",
        "infer",
        "tickets",
    )
    paths = [path for api in APIS for path in api.paths]
    assert len(set(paths)) == len(paths)
    assert all(find(path) is api for api in APIS for path in api.paths)
    assert list(dict.fromkeys(repr(api) for api in APIS)) == [f"<{name}>" for name in OPERATIONS[:-1]]
    assert [api.operation for api in APIS if api.dialect == "messages"] == ["chat", "chat"], "a message is a chat to policies"


def test_a_path_that_is_no_operation_is_not_found() -> None:
    with pytest.raises(RequestError) as caught:
        parse(b"/v1/models", b"{}", {})
    assert caught.value.status == 404


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v2/models/m/infer", b"/v2/nothing", b"/nothing"])
@pytest.mark.parametrize("agent", [b"python/gevent-http-client/2.0", b"curl"])
def test_errors_have_the_form_of_the_format_that_owns_the_path(path: bytes, agent: bytes) -> None:
    error = json.loads(refusal(RequestError("Wrong.", param="x"), path, {b"user-agent": agent}, b"r")[1])["error"]
    if path.startswith(b"/v2/") and agent != b"curl":
        assert error == "Wrong."
    else:
        assert error["message"] == "Wrong."


@pytest.mark.parametrize("path", [b"/v1/messages", b"/v1/messages/count_tokens", b"/v1/messages/nothing"])
def test_errors_of_messages_have_anthropics_form(path: bytes) -> None:
    status, body = refusal(Overloaded("Busy."), path, {}, b"r-1")
    assert status == 529
    error = {"type": "overloaded_error", "message": "Busy.", "code": "overloaded"}
    assert json.loads(body) == {"type": "error", "error": error, "request_id": "r-1"}
    assert identity_lines(path, b"r-1") == b"request-id: r-1\r\n"
    assert identity_lines(b"/v1/chat/completions", b"r-1") == b""


CHAT, MESSAGES, RESPONSES = b"/v1/chat/completions", b"/v1/messages", b"/v1/responses"
BODY: dict[bytes, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    MESSAGES: {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
    RESPONSES: {"model": "m", "input": "hi"},
}
BY_ITSELF: list[tuple[bytes, str, Any, str]] = [
    (CHAT, "web_search_options", {}, "web_search"),
    (CHAT, "store", True, "store"),
    (CHAT, "tools", {"type": "web_search"}, "web_search"),
    (CHAT, "tools", {"type": "code_interpreter", "container": {"type": "auto"}}, "code_interpreter"),
    (CHAT, "tools", {"type": "builtin_function", "function": {"name": "$web_search"}}, "builtin_function"),
    (MESSAGES, "web_search_options", {}, "web_search"),
    (MESSAGES, "tools", {"type": "web_search_20250305", "name": "web_search"}, "web_search"),
    (MESSAGES, "tools", {"type": "web_search_20250305", "name": "web_search"}, "web_search_20250305"),
    (MESSAGES, "tools", {"type": "web_fetch_20250910", "name": "web_fetch"}, "web_fetch"),
    (MESSAGES, "tools", {"type": "code_execution_20250825", "name": "code_execution"}, "code_execution"),
    (MESSAGES, "tools", {"type": "mcp_toolset", "mcp_server_name": "s"}, "mcp_toolset:s"),
    (RESPONSES, "tools", {"type": "web_search"}, "web_search"),
    (RESPONSES, "tools", {"type": "web_search_preview"}, "web_search_preview"),
    (RESPONSES, "tools", {"type": "code_interpreter", "container": {"type": "auto"}}, "code_interpreter"),
    (RESPONSES, "tools", {"type": "mcp", "server_label": "files"}, "mcp"),
    (RESPONSES, "tools", {"type": "mcp", "server_label": "files", "allowed_tools": ["read"]}, "mcp:files"),
]
OWN: dict[bytes, dict[str, Any]] = {
    CHAT: {"type": "function", "function": {"name": "f", "parameters": {}}},
    MESSAGES: {"name": "f", "input_schema": {"type": "object"}},
    RESPONSES: {"type": "function", "name": "f", "parameters": {}},
}


@pytest.mark.parametrize(("path", "field", "value", "name"), BY_ITSELF)
def test_what_an_engine_would_do_by_itself_is_the_models_setting(path: bytes, field: str, value: Any, name: str) -> None:
    def parsed(given: Any) -> InferenceRequest:
        return parse(path, json.dumps({**BODY[path], field: given}).encode(), {})

    given = [OWN[path], value] if field == "tools" else value
    request = parsed(given)
    assert request.unknown == ("tools[1].type" if field == "tools" else field,)
    for policy, allowed in (("refuse", ()), ("forward", ()), ("forward", ("web", "mcp:other", "function")), ("refuse", (f"{name}_",))):
        with pytest.raises(RequestError, match=r"by itself \(.*leave it out\.$"):
            request.api.settle_unknown(request, policy, allowed)
    for policy in ("refuse", "forward", "drop"):
        request.api.settle_unknown(request, policy, ("other", name))
        assert json.loads(bytes(request.fields[field])) == given
    request.api.settle_unknown(request, "drop")
    assert json.loads(bytes(request.fields.get(field, Raw(b"null")))) == ([OWN[path]] if field == "tools" else None)
    if field == "tools":
        request = parsed([value])
        request.api.settle_unknown(request, "drop")
        assert field not in request.fields


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {"store": False}),
        (CHAT, {"store": None, "tools": [OWN[CHAT], {"type": "custom", "custom": {"name": "g"}}, {"function": {"name": "h"}}]}),
        (MESSAGES, {"tools": [OWN[MESSAGES], {"type": "custom", **OWN[MESSAGES]}, {"type": "bash_20250124", "name": "bash"}]}),
        (MESSAGES, {"tools": [{"type": "memory_20250818", "name": "memory"}, {"type": "text_editor_20250728", "name": "edit"}]}),
        (RESPONSES, {"tools": [OWN[RESPONSES], {"type": "local_shell"}, {"type": "apply_patch"}]}),
    ],
)
def test_what_callers_do_themselves_is_not(path: bytes, more: dict[str, Any]) -> None:
    assert parse(path, json.dumps({**BODY[path], **more}).encode(), {}).unknown == ()


def test_a_parser_has_the_bounds_of_its_configuration() -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}], "stop": ["b"]}).encode()
    path, bounded = b"/v1/chat/completions", Parser(3, 64)
    assert bounded.parse(path, body, {}).fields == parse(path, body, {}).fields
    with pytest.raises(RequestError, match="deeper than 1 levels"):
        Parser(1, 64).parse(path, body, {})
    with pytest.raises(RequestError, match="more than 4 "):
        for _ in Parser(64, 4).parse_steps(path, body, {}):
            pass


READ = names(
    "tools functions tool_choice chat_template_kwargs modalities response_format metadata text reasoning output_config output_format",
    "stop user logit_bias seed prediction documents thinking instructions previous_response_id system messages input",
)


@pytest.mark.parametrize("path", BODY)
@pytest.mark.parametrize("value", [b"1e999", b"[-1e999]", b"[]", b'"x"', b"1", b"null"])
def test_no_value_of_a_field_is_more_than_a_refusal(path: bytes, value: bytes) -> None:
    """A number that no float can hold is found only where a value is read."""
    for name in READ:
        given = {key: other for key, other in BODY[path].items() if key != name}
        body = json.dumps(given).encode()[:-1] + b',"%b":%b}' % (name.encode(), value)
        with suppress(RequestError):
            request = parse(path, body, {})
            request.api.settle_unknown(request, "drop")
            api = request.api
            for read in (api.tools, api.tool_uses, api.label, api.user, api.unanswerable, api.answer_schema, api.turns, api.texts):
                with suppress(RequestError):
                    read(request)
            for request.foreign in (False, True):
                with suppress(RequestError):
                    api.target(request, "other")


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("policy", ["refuse", "drop", "forward"])
@pytest.mark.parametrize("name", ["tools[0].type", "tools[7].type", "messages[0].tools", "messages[0].audio.id"])
@pytest.mark.parametrize("tools", [None, [], {"a": 1}])
def test_a_name_that_reads_as_a_place_is_none(path: bytes, policy: str, name: str, tools: Any) -> None:
    """Beside it there may be the tool of an engine at that very place."""
    for given in (tools, [{"type": "web_search", "name": "w"}]):
        request = parse(path, json.dumps({**BODY[path], name: 1, **({} if given is None else {"tools": given})}).encode(), {})
        with pytest.raises(RequestError) as refused:
            request.api.settle_unknown(request, policy)
        assert refused.value.code == "unsupported_parameter"


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_tools_that_are_no_list_are_left_where_unknown_fields_are_dropped(path: bytes) -> None:
    for tools in ("x", {"a": 1}, None):
        request = parse(path, json.dumps({**BODY[path], "novel": 1, "tools": tools}).encode(), {})
        request.api.settle_unknown(request, "drop")
        assert "novel" not in request.fields


_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/v1/embeddings": {"input": "x"},
    "/v1/classify": {"input": "x"},
    "/v1/moderations": {"input": "x"},
    "/v1/rerank": {"query": "x", "documents": ["x"]},
    "/v1/score": {"text_1": "x", "text_2": "y"},
    "/v1/images/generations": {"prompt": "x"},
    "/v1/audio/speech": {"input": "x", "voice": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
    "/v1/messages": {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]},
    "/v1/responses": {"input": "x"},
}


def _infinite() -> list[Any]:
    """Every field at the top level of every format, and one that none knows."""
    found = []
    for path, body in _BODIES.items():
        api: Any = find(path.encode())
        for name in sorted((api._known | {"a_field_of_tomorrow"}) - DROPPED - {"model"}):
            found.append(pytest.param(path, {**body, name: None}, name, id=f"{path} {name}"))
    return found


@pytest.mark.parametrize(("path", "body", "name"), _infinite())
def test_a_number_that_is_infinite_is_refused_in_every_field(path: str, body: dict[str, Any], name: str) -> None:
    for value in ("1e999", "-1E+999", "[1,-1e999]", "[{},1e999]", '{"a":1e999}', '{"a":[{"b":1e999}]}', "1" + "0" * 400 + ".0"):
        sent = json.dumps({"model": "m", **body}).replace(f'"{name}": null', f'"{name}": {value}')
        with pytest.raises(RequestError) as caught:
            parse(path.encode(), sent.encode(), {})
        assert caught.value.status == 400 and (caught.value.param or "").partition("[")[0].partition(".")[0] == name, value
        with pytest.raises(RequestError):
            at_once(parse_steps(path.encode(), sent.encode(), {}))


@pytest.mark.parametrize("value", ["1e999", "nan", "inf", "-Infinity", "\u0661", "1_0", "0x1", "1 ", ["1", "2"]])
def test_a_number_of_a_form_is_finite_and_in_ascii(value: Any) -> None:
    api: Any = find(b"/v1/audio/transcriptions")
    for good in ("0.5", "1", "-1", ".5", "1.", "1e-3", ""):
        assert api.form(api.paths[0], json.dumps({"model": "m", "temperature": good}).encode(), {}).fields["temperature"]
    with pytest.raises(RequestError) as caught:
        api.form(api.paths[0], json.dumps({"model": "m", "temperature": value}).encode(), {})
    assert (caught.value.status, caught.value.param) == (400, "temperature")
