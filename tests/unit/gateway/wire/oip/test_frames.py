"""Names in tensor requests: none twice, none in another case, and which are unknown."""

from __future__ import annotations

import pytest

from gateway.core.errors import RequestError
from gateway.core.types import InferenceRequest
from gateway.wire import table

INFER = b"/v2/models/m/infer"


def parse(body: bytes) -> InferenceRequest:
    return table.parse(INFER, body, {})


def refused(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(body)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"inputs":[],"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}', "inputs"),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[9],"shape":[1],"data":[1]}]}', "shape"),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1],"parameters":{"a":1,"a":2}}]}', "a"),
    ],
)
def test_a_key_that_stands_twice_is_refused(body: bytes, param: str) -> None:
    """The limits count by one `shape`, an engine may compute by the other."""
    error = refused(body)
    assert (error.code, error.param) == ("invalid_value", param) and "twice" in error.message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"Inputs":[],"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}', "Inputs"),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1],"Shape":[9]}]}', "inputs[0].Shape"),
    ],
)
def test_a_name_in_another_case_is_refused(body: bytes, param: str) -> None:
    error = refused(body)
    assert error.param == param and "lower case" in error.message


@pytest.mark.parametrize("data", [b'["falcon"]', b'[1,{"falcon":2}]', b'"falcon"', b'[["\\u0066alcon"]]'])
@pytest.mark.parametrize("datatype", [b"FP32", b"INT64", b"BOOL"])
def test_a_text_in_data_of_another_type_is_refused(datatype: bytes, data: bytes) -> None:
    error = refused(b'{"inputs":[{"name":"x","datatype":"%b","shape":[1],"data":%b}]}' % (datatype, data))
    assert (error.code, error.param) == ("invalid_tensor", "input 'x'")


def test_bytes_that_are_no_utf8_are_refused() -> None:
    assert refused(b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["\xff"]}]}').code == "invalid_json"


def test_unknown_names_are_refused_or_forwarded() -> None:
    body = b'{"x":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1],"y":2}]}'
    found = parse(body)
    assert found.unknown == ("x", "inputs[0].y")
    for policy in ("refuse", "drop"):
        with pytest.raises(RequestError, match="not known"):
            found.api.settle_unknown(found, policy)
    found.api.settle_unknown(found, "forward")
    assert found.raw == body


def test_the_protocols_own_names_pass() -> None:
    body = (
        b'{"id":"1","parameters":{"a:b":"c"},"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["a: b"],"parameters":null}],'
        b'"outputs":[{"name":"y","parameters":{"binary_data":true}}]}'
    )
    assert not parse(body).unknown
