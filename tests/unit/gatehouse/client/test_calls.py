"""How calls are written: parameters, names in paths, versions, pauses, and what cannot be sent at all."""

from __future__ import annotations

import datetime
from urllib.parse import unquote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatehouse.client.calls import MAX_PAUSE, Call, checked, failed, is_loopback, pause_before, segment, text, uses_environment


@given(st.text())
def test_a_name_is_one_segment_of_a_path(name: str) -> None:
    written = segment(name.encode("utf-8", "replace").decode())
    assert unquote(written) == name.encode("utf-8", "replace").decode() and not set(written) & set("/?#&")


def test_what_a_call_sends() -> None:
    moment = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    call = Call(
        "PUT", "/x", {"a": None, "b": True, "c": 2, "d": moment, "e": ["x", "y"]}, {"If-Match": 3, "Idempotency-Key": None}, {"f": "é"}
    )
    options = call.options()
    assert options["params"] == [("b", "true"), ("c", "2"), ("d", "2026-01-02T00:00:00+00:00"), ("e", "x,y")]
    assert options["headers"] == {"If-Match": '"3"', "content-type": "application/json"} and options["content"] == '{"f":"é"}'.encode()
    assert Call("PUT", "/x", headers={"If-Match": '"7"'}, content=b"a: 1", media="text/yaml").options() == {
        "params": [],
        "headers": {"If-Match": '"7"', "content-type": "text/yaml"},
        "content": b"a: 1",
    }
    assert text(False) == "false" and text(1.5) == "1.5"


def test_only_what_does_no_harm_twice_is_sent_again() -> None:
    assert Call("GET", "/x").repeatable and Call("HEAD", "/x").repeatable
    assert Call("POST", "/x", headers={"Idempotency-Key": "k"}).repeatable
    assert not Call("POST", "/x", headers={"Idempotency-Key": None}).repeatable and not Call("DELETE", "/x").repeatable


def test_pauses_grow_and_are_bounded() -> None:
    assert [pause_before(attempt, None) for attempt in range(3)] == [0.25, 0.5, 1.0] and pause_before(50, None) == MAX_PAUSE
    assert pause_before(0, 7.0) == 7.0 and pause_before(0, MAX_PAUSE + 1) is None


@pytest.mark.parametrize(
    ("status", "content", "message", "code"),
    [
        (409, b'{"detail": "it exists", "code": "conflict", "instance": "r1", "param": "name"}', "it exists", "conflict"),
        (502, b"<html>", "502 Bad Gateway", ""),
        (500, b"[1]", "500 Internal Server Error", ""),
        (400, b'{"detail": 1}', "400 Bad Request", ""),
    ],
)
def test_errors_say_what_the_gateway_said(status: int, content: bytes, message: str, code: str) -> None:
    error = failed(httpx.Response(status, content=content, headers={"retry-after": "3"}))
    assert (str(error), error.code, error.status, error.retry_after) == (message, code, status, 3.0)
    assert error.param == ("name" if code else None)
    assert failed(httpx.Response(503, headers={"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"})).retry_after is None


@pytest.mark.parametrize(
    ("url", "key"), [("gw:8081", "k"), ("ftp://gw", "k"), ("http://", "k"), ("http://gw", ""), ("http://gw", "a b"), ("http://gw", "ä")]
)
def test_what_cannot_be_sent_is_refused_at_once(url: str, key: str) -> None:
    with pytest.raises(ValueError, match=r"^(url|key) must be"):
        checked(url, key)


@pytest.mark.parametrize(
    ("url", "used"), [("https://gw:8081", True), ("HTTPS://gw", True), ("http://gw:8081", False), ("https://localhost", False)]
)
def test_a_proxy_never_reads_the_key(url: str, used: bool) -> None:
    assert uses_environment(url) is used


def test_this_machine_needs_no_proxy() -> None:
    assert (
        is_loopback("http://127.0.0.1:8081")
        and is_loopback("http://[::1]")
        and is_loopback("http://localhost")
        and not is_loopback("http://gw")
    )
