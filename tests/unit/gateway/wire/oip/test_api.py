"""From a path and a body to an InferenceRequest, and back to what an engine gets."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import EngineError, GuardrailViolation, RequestError
from gateway.core.slices import at_once
from gateway.core.types import ResponseHead
from gateway.wire.oip import codec, values
from gateway.wire.oip.messages import infer_response
from gateway.wire.oip.tensors import TensorAnswer, json_part, parse_answer
from gateway.wire.oip.values import AT_ONCE
from gateway.wire.scan import MAX_NODES, SEGMENT
from gateway.wire.table import parse

INFER = b"/v2/models/m/infer"


def tensor(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0], **fields}


def infer(*tensors: dict[str, Any], path: bytes = INFER) -> Any:
    return parse(path, json.dumps({"inputs": list(tensors)}).encode(), {})


@pytest.mark.parametrize(
    "path", [b"/v2/models/infer", b"/v2/models//infer", b"/v2/models/a/b/infer", b"/v2/models/m/versions//infer", b"/v2/models/%ff/infer"]
)
def test_odd_infer_paths_are_not_found(path: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse(path, b"{}", {})
    assert caught.value.status in (400, 404)


def test_an_infer_request() -> None:
    found = infer(tensor(), tensor(name="y", shape=[1, 3], datatype="INT64", data=[1, 2, 3]))
    assert (found.operation, found.model, found.stream, found.max_tokens) == ("infer", "m", False, 0)
    assert found.prompt_tokens == 5
    assert found.content == b"content-type: application/json\r\n"
    x = {"name": "x", "datatype": "FP32", "shape": [2], "elements": 2}
    y = {"name": "y", "datatype": "INT64", "shape": [1, 3], "elements": 3}
    assert found.api.detail(found, lambda data: "") == {"version": "", "inputs": [x, y]}
    hashed = found.api.detail(found, lambda data: f"h{len(data)}")["inputs"]
    assert [entry["hash"] for entry in hashed] == [f"h{len('[1.0, 2.0]')}", f"h{len('[1, 2, 3]')}"]


def sent(data: str, datatype: str = "FP64") -> Any:
    return parse(INFER, b'{"inputs":[{"name":"x","shape":[2],"datatype":"%b","data":%b}]}' % (datatype.encode(), data.encode()), {})


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "INT64", "BOOL"])
@pytest.mark.parametrize("data", ["[1,1e999]", "[[1],[-1E+400]]", "[ 1e309 ,2]", "[[],[1e999]]"])
def test_an_infinite_number_is_refused(data: str, datatype: str) -> None:
    with pytest.raises(codec.TensorError, match=rf"^input 'x': expected values in the range of {datatype} \(") as caught:
        sent(data.replace("1e999", "1" * SEGMENT + "e999"), datatype)
    assert caught.value.status == 400
    with pytest.raises(codec.TensorError):
        sent("[" + "1e1," * SEGMENT + data[1:], datatype)


@pytest.mark.parametrize(
    "data", ["[1,1e308]", "[1e-999,1e-5]", "[[],[1e5]]", "[true,false]", "[1e0005,2]", "[" + "1e9 , " * SEGMENT + "1]"]
)
def test_a_finite_number_passes(data: str) -> None:
    assert data.encode() in sent(data).raw


NUMBERS = sorted(set(codec.SIZES) - {"BYTES"})
HUGE = "1" * 400
LONGEST = {"INT64": 2**63 - 1, "UINT64": 2**64 - 1, "FP32": int(3.4028234663852886e38), "FP64": int(1.7976931348623157e308)}


@pytest.mark.parametrize("datatype", NUMBERS)
@pytest.mark.parametrize(
    "data",
    [
        f"[1,{HUGE}]",
        f"[[0],[-{HUGE}]]",
        f"[ {HUGE}.5 ,2]",
        f"[[[]],[[{HUGE}]]]",
        "[1," + "9" * 5000 + "]",
        "[" + "1, " * SEGMENT + f"{HUGE}]",
    ],
)
def test_an_integer_of_400_digits_is_refused_with_the_range(data: str, datatype: str) -> None:
    with pytest.raises(
        codec.TensorError, match=rf"^input 'x': expected values in the range of {datatype} \(.+ (to|or) .+\), received "
    ) as caught:
        sent(data, datatype)
    assert (caught.value.status, caught.value.param) == (400, "input 'x'") and len(caught.value.message) < 300


@pytest.mark.parametrize("datatype", sorted(LONGEST))
def test_the_longest_numbers_that_a_datatype_holds_pass(datatype: str) -> None:
    most = LONGEST[datatype]
    least = 0 if datatype[0] == "U" else -most
    data = f"[[{most}], [{least}]]"
    assert sent(data, datatype).raw.endswith(data.encode() + b"}]}")
    beyond = most + 1 if datatype.endswith("INT64") else most * 10
    with pytest.raises(codec.TensorError, match=r"range of .* received \d+"):
        sent(f"[0, {beyond}]", datatype)


ORDINARY: dict[str, list[Any]] = {
    "FP64": [0.1, 1 / 3, 0.00012345678901234567, 1e-300, 1234567890123456.7, 5, -2.5e-05],
    "INT64": [0, -(10**18) + 1, 10**18 - 1],
    "UINT8": [0, 255],
    "BOOL": [True, False],
}


@pytest.mark.parametrize("datatype", sorted(ORDINARY))
def test_the_numbers_of_ordinary_tensors_are_not_read(datatype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "check_range", lambda *_: pytest.fail("read"))
    for data in (ORDINARY[datatype], [ORDINARY[datatype]], ORDINARY[datatype] * SEGMENT):
        sent(json.dumps(data), datatype)


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(NUMBERS))
def test_what_a_reader_would_take_passes(number: float, datatype: str) -> None:
    """Where the engine's own check takes a number, so does this one."""
    written = json.dumps([number if datatype.startswith(("FP", "BF")) else int(number)])
    body = b'{"inputs":[{"name":"x","shape":[1],"datatype":"%b","data":%b}]}' % (datatype.encode(), written.encode())
    try:
        values.json_values(codec.parse_request(body).inputs[0])
    except codec.TensorError:
        return
    assert parse(INFER, body, {}).raw == body


def test_the_audit_detail_holds_no_data() -> None:
    found = infer(tensor(datatype="BYTES", data=["secret", "text"]))
    assert "secret" not in json.dumps(found.api.detail(found, lambda data: "h"))


def test_binary_tensors_are_forwarded_as_they_came() -> None:
    head = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}]}).encode()
    body = head + struct.pack("<2f", 1, 2)
    found = parse(INFER, body, {codec.HEADER_LENGTH.encode(): b"%d" % len(head)})
    assert found.raw == body
    assert found.content == b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n" % len(head)
    assert found.api.target(found, None) == (INFER, body)


def test_texts_of_tensors_are_read() -> None:
    found = infer(tensor(), tensor(name="y", datatype="BYTES", data=["red", "falcon"]))
    assert found.api.texts(found).texts == ["red", "falcon"]
    data = b"".join(struct.pack("<I", len(e)) + e for e in (b"red", b"fal\xffcon"))
    head = json.dumps(
        {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(data)}}]}
    ).encode()
    found = parse(INFER, head + data, {codec.HEADER_LENGTH.encode(): b"%d" % len(head)})
    assert found.api.texts(found).texts == ["red", "fal\ufffdcon"]


def test_many_texts_in_binary_form_are_read_in_steps_and_very_many_are_not() -> None:
    def asked(count: int) -> Any:
        place = {"name": "x", "datatype": "BYTES", "shape": [count], "parameters": {"binary_data_size": 5 * count}}
        head = json.dumps({"inputs": [place]}).encode()
        return parse(INFER, head + b"\x01\0\0\0a" * count, {codec.HEADER_LENGTH.encode(): b"%d" % len(head)})

    found = asked(MAX_NODES)
    assert found.api.unreadable(found) == ""
    steps, count, texts = found.api.texts_steps(found), 0, None
    while texts is None:
        try:
            next(steps)
            count += 1
        except StopIteration as done:
            texts = done.value.texts
    assert texts == ["a"] * MAX_NODES and count >= MAX_NODES // AT_ONCE
    found = asked(MAX_NODES + 1)
    assert "more than 65536 texts" in found.api.unreadable(found)
    assert infer(tensor()).api.unreadable(infer(tensor())) == ""


@pytest.mark.parametrize(
    "body",
    [
        {"novel": {"a": ["so vermilion"]}},
        {"so vermilion": 1},
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1], "novel": "so vermilion"}]},
        {"outputs": [{"name": "y", "so vermilion": 1}]},
    ],
)
def test_what_the_protocol_has_no_field_for_is_read_of_a_request_too(body: dict[str, Any]) -> None:
    plain = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
    request = parse(INFER, json.dumps({**plain, **body}).encode(), {})
    assert "so vermilion" in request.api.texts(request).texts


def test_tensors_are_not_rewritten() -> None:
    found = infer(tensor())
    with pytest.raises(GuardrailViolation):
        found.api.texts(found).replace(["x"])


def test_the_depth_of_the_json_part_counts_not_the_data() -> None:
    head = json.dumps({"inputs": [{"name": "x", "datatype": "UINT8", "shape": [500], "parameters": {"binary_data_size": 500}}]}).encode()
    parse(INFER, head + b"[" * 500, {codec.HEADER_LENGTH.encode(): b"%d" % len(head)}, 8)
    with pytest.raises(RequestError, match="nested deeper"):
        parse(INFER, b'{"inputs":' + b"[" * 9 + b"]" * 9 + b"}", {}, 8)


@pytest.mark.parametrize("length", [b"-1", b"99999", b"x", b"1.0", b""])
def test_a_wrong_length_of_the_json_part(length: bytes) -> None:
    with pytest.raises(RequestError):
        parse(INFER, b'{"inputs":[]}', {codec.HEADER_LENGTH.encode(): length})


@pytest.mark.parametrize(
    ("model", "version", "action", "expected"),
    [
        ("m", "", "", b"/v2/models/m"),
        ("m", "", "infer", b"/v2/models/m/infer"),
        ("m", "3", "ready", b"/v2/models/m/versions/3/ready"),
        ("a/b", "", "infer", b"/v2/models/a%2Fb/infer"),
        ("a b?#%", "", "", b"/v2/models/a%20b%3F%23%25"),
        ("a\r\nx: 1", "", "infer", b"/v2/models/a%0D%0Ax%3A%201/infer"),
    ],
)
def test_infer_paths_are_encoded(model: str, version: str, action: str, expected: bytes) -> None:
    assert codec.model_path(model, version, action) == expected


def test_a_path_survives_both_ways() -> None:
    found = infer(tensor(), path=codec.model_path("team/model x", "2", "infer"))
    assert found.model == "team/model x"
    assert found.api.target(found, None)[0] == b"/v2/models/team%2Fmodel%20x/versions/2/infer"
    assert found.api.target(found, "other")[0] == b"/v2/models/other/versions/2/infer"


def test_another_name_at_the_endpoint() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"top_k":1.0}'
    found = parse(b"/v1/chat/completions", body, {})
    assert found.api.target(found, None) == found.api.target(found, "m") == (b"/v1/chat/completions", body)
    path, sent = found.api.target(found, "inner")
    assert (path, json.loads(sent)["model"]) == (b"/v1/chat/completions", "inner")
    assert b'"top_k":1.0' in sent
    assert found.api.target(found, None)[1] == body, "a try at one endpoint changes nothing for the next"


def test_an_alias_is_renamed() -> None:
    found = parse(b"/v1/embeddings", b'{"model":"alias","input":"x"}', {})
    found.api.rename(found, 'real "name"')
    assert json.loads(found.api.target(found, None)[1])["model"] == 'real "name"'
    tensors = infer(tensor())
    tensors.api.rename(tensors, "real")
    assert tensors.api.target(tensors, None)[0] == b"/v2/models/real/infer"


def test_an_infer_answer() -> None:
    body = b'{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":[0.5]}]}'
    answer, length = parse_answer(ResponseHead(200, []), body)
    assert length is None
    assert [t.name for t in answer.outputs] == ["y"]
    head = b'{"model_name":"m","outputs":[{"name":"y","datatype":"INT8","shape":[2],"parameters":{"binary_data_size":2}}]}'
    _, length = parse_answer(ResponseHead(200, [(b"inference-header-content-length", b"%d" % len(head))]), head + b"\x01\x02")
    assert length == len(head)
    assert bytes(json_part(head + b"\x01\x02", length)) == head
    assert json_part(body, None) == body


@pytest.mark.parametrize(("body", "length"), [(b"no json", None), (b"{}", b"nonsense"), (b"{}", b"99")])
def test_an_answer_that_is_not_the_protocols_is_the_engines_failure(body: bytes, length: bytes | None) -> None:
    headers = [] if length is None else [(b"inference-header-content-length", length)]
    with pytest.raises(EngineError):
        parse_answer(ResponseHead(200, headers), body)


@pytest.mark.parametrize(
    "more",
    [
        {"parameters": {"note": "vermilion"}},
        {"parameters": {"vermilion": 1}},
        {"id": "so vermilion"},
        {"model_name": "so vermilion"},
        {"text": "vermilion"},
        {"vermilion": None},
        {"deep": [{"vermilion": 1}]},
        {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [0.5], "parameters": {"label": "vermilion"}}]},
        {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [0.5], "label": "vermilion"}]},
        {"outputs": [{"name": "so vermilion", "datatype": "FP32", "shape": [1], "data": [0.5]}]},
        {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": ["vermilion"]}]},
        {"outputs": [{"name": "y", "datatype": "INT64", "shape": [1], "data": {"vermilion": 1}}]},
        {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": "vermilion"}]},
    ],
)
def test_texts_beside_the_tensors_of_an_answer_are_read(more: dict[str, Any]) -> None:
    whole = {"model_name": "m", "outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [0.5]}], **more}
    body = json.dumps(whole).encode()
    answer = TensorAnswer(ResponseHead(200, []), body, True)
    assert any("vermilion" in text for text in answer.texts) and answer.body == body
    assert TensorAnswer(ResponseHead(200, []), body, False).texts == []


def test_an_ordinary_answer_has_no_texts_beside_its_tensors() -> None:
    tensor = {"name": "y", "datatype": "BYTES", "shape": [1], "data": ["a"], "parameters": {"binary_data": False}}
    whole = {"id": "42", "model_name": "m", "model_version": "1", "parameters": {}, "outputs": [tensor]}
    assert TensorAnswer(ResponseHead(200, []), json.dumps(whole).encode(), True).texts == ["a"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"outputs":[{"name":"y","datatype":"BYTES","shape":[1],"data":["falcon"],"data":["sky"]}]}',
        b'{"outputs":[{"name":"y","datatype":"BYTES","shape":[1],"d\\u0061ta":["falcon"],"data":["a\\u003ab: c"]}]}',
        b'{"outputs":[{"name":"y","datatype":"BYTES","shape":[1],"data":["falcon"]}],"outputs":[]}',
        b'{"outputs":[{"name":"y","datatype":"BYTES","shape":[1],"data":["sky"],"parameters":{"a":"falcon","a":"sky"}}]}',
        b'{"outputs":[{"name":"y","datatype":"INT64","shape":[1],"data":[{"a":"falcon","a":1}]}]}',
        b'{"model_name":"falcon","model_name":"m","outputs":[]}',
        b'{"more":{"a":"falcon","a":1},"outputs":[]}',
    ],
)
def test_an_answer_with_a_key_twice_cannot_be_inspected(body: bytes) -> None:
    with pytest.raises(EngineError, match="twice"):
        TensorAnswer(ResponseHead(200, []), body, True)
    assert TensorAnswer(ResponseHead(200, []), body, False).body == body, "where nobody reads it, it is the client's to read"


@pytest.mark.parametrize(
    "outputs",
    [
        [{"name": "y", "datatype": "BYTES", "shape": [1], "data": "so vermilion"}],
        [{"name": "y", "datatype": "so vermilion", "shape": [1], "data": ["a"]}],
        [{"name": "so vermilion", "datatype": "BYTES", "shape": [2], "data": ["a"]}],
        [{"name": "so vermilion", "datatype": "BYTES", "shape": [1], "data": ["a"]}] * 2,
        [{"name": "y", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": "so vermilion"}}],
        [{"name": "y", "datatype": "BYTES", "shape": [1], "parameters": {"shared_memory_ so vermilion": 1}, "data": ["a"]}],
    ],
)
def test_an_error_does_not_quote_an_answer_that_no_guardrail_has_read(outputs: list[dict[str, Any]]) -> None:
    body = json.dumps({"model_name": "m", "outputs": outputs}).encode()
    with pytest.raises(EngineError, match=r"output.*expected") as unread:
        TensorAnswer(ResponseHead(200, []), body, True)
    with pytest.raises(EngineError, match=r"output.*expected") as untranslated:
        at_once(infer_response(None, body, ""))
    assert "vermilion" not in unread.value.message + untranslated.value.message


def test_nor_does_that_of_its_header() -> None:
    with pytest.raises(EngineError, match="inference-header-content-length: expected") as error:
        parse_answer(ResponseHead(200, [(b"inference-header-content-length", b"so vermilion")]), b"{}")
    assert "vermilion" not in error.value.message
