"""The table of wire formats: which paths are inference, whose errors a path has, and that every operation keeps to the port."""

from __future__ import annotations

import json

import pytest

from gateway.core.errors import RequestError
from gateway.wire.table import APIS, OPERATIONS, error_body, find, is_inference, parse


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/v1/chat/completions", True),
        (b"/v1/completions", True),
        (b"/v1/embeddings", True),
        (b"/v1/rerank", True),
        (b"/v1/classify", True),
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
    assert OPERATIONS == ("chat", "completions", "embeddings", "rerank", "classify", "moderations", "infer")
    paths = [path for api in APIS for path in api.paths]
    assert len(set(paths)) == len(paths)
    assert all(find(path) is api for api in APIS for path in api.paths)
    assert [repr(api) for api in APIS] == [f"<{name}>" for name in OPERATIONS]


def test_a_path_that_is_no_operation_is_not_found() -> None:
    with pytest.raises(RequestError) as caught:
        parse(b"/v1/models", b"{}", {})
    assert caught.value.status == 404


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v2/models/m/infer", b"/v2/nothing", b"/nothing"])
@pytest.mark.parametrize("agent", [b"python/gevent-http-client/2.0", b"curl"])
def test_errors_have_the_form_of_the_format_that_owns_the_path(path: bytes, agent: bytes) -> None:
    error = json.loads(error_body(RequestError("Wrong.", param="x"), path, {b"user-agent": agent}))["error"]
    if path.startswith(b"/v2/") and agent != b"curl":
        assert error == "Wrong."
    else:
        assert error["message"] == "Wrong."
