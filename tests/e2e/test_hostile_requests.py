"""Hostile bodies, headers and framings over raw sockets: each gets the answer that the table says, and the gateway goes on as before."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse
from tests.e2e.test_malformed_http import AUTH, BODY, GOOD, LENGTH, START, listening

TRIES = 4
"""A client that stands still while it sends finds the connection gone: behind an error the gateway takes in the rest for two seconds."""
CLOSING = GOOD.replace(b"Host: x\r\n", b"Host: x\r\nConnection: close\r\n")


def msg(content: bytes = b'"x"', rest: bytes = b"") -> bytes:
    return b'{"model":"m1","messages":[{"role":"user","content":%b}]%b}' % (content, rest)


def req(body: bytes, extra: bytes = b"") -> bytes:
    return START + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(*chunks: bytes, tail: bytes = b"") -> bytes:
    return START + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks) + tail


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


CASES: dict[str, tuple[int, bytes]] = {
    "empty": (400, req(b"")),
    "null": (400, req(b"null")),
    "a list": (400, req(b"[]")),
    "a number": (400, req(b"1")),
    "a string": (400, req(b'"x"')),
    "BOM": (400, req(b"\xef\xbb\xbf" + BODY)),
    "UTF-16": (400, req(BODY.decode().encode("utf-16"))),
    "UTF-32": (400, req(BODY.decode().encode("utf-32"))),
    "trailing garbage": (400, req(BODY + b"x")),
    "two documents": (400, req(BODY + BODY)),
    "trailing comma": (400, req(BODY[:-1] + b",}")),
    "comment": (400, req(BODY + b"//x")),
    "single quotes": (400, req(BODY.replace(b'"', b"'"))),
    "NUL behind": (400, req(BODY + b"\0")),
    "NUL in a string": (400, req(msg(b'"a\0b"'))),
    "raw newline in a string": (400, req(msg(b'"a\nb"'))),
    "lone high surrogate": (400, req(msg(b'"\\ud800"'))),
    "lone low surrogate": (400, req(msg(b'"\\udc00"'))),
    "reversed surrogates": (400, req(msg(b'"\\udc00\\ud800"'))),
    "raw surrogate bytes": (400, req(msg(b'"\xed\xa0\x80"'))),
    "overlong slash": (400, req(msg(b'"\xc0\xaf"'))),
    "invalid UTF-8 deep": (400, req(msg(rest=b',"metadata":{"a":["\xff"]}'))),
    "NaN": (400, req(msg(rest=b',"temperature":NaN'))),
    "Infinity": (400, req(msg(rest=b',"temperature":Infinity'))),
    "-Infinity": (400, req(msg(rest=b',"seed":-Infinity'))),
    "1e999": (400, req(msg(rest=b',"temperature":1e999'))),
    "1e999 unread": (400, req(msg(rest=b',"metadata":{"a":1e999}'))),
    "-1e999 deep": (400, req(msg(rest=b',"chat_template_kwargs":{"a":[-1e999]}'))),
    "1e999 as template arguments": (400, req(msg(rest=b',"chat_template_kwargs":1e999'))),
    "1e999 as modalities": (400, req(msg(rest=b',"modalities":1e999'))),
    "-0": (200, req(msg(rest=b',"temperature":-0'))),
    "-0.0 tokens": (400, req(msg(rest=b',"max_tokens":-0.0'))),
    "1e2 tokens": (400, req(msg(rest=b',"max_tokens":1e2'))),
    "1.5 tokens": (400, req(msg(rest=b',"max_tokens":1.5'))),
    "huge int": (400, req(msg(rest=b',"max_tokens":' + b"9" * 4000))),
    "huge int unread": (200, req(msg(rest=b',"metadata":{"a":' + b"9" * 4000 + b"}"))),
    "huge seed": (200, req(msg(rest=b',"seed":99999999999999999999999'))),
    "leading zero": (400, req(msg(rest=b',"max_tokens":01'))),
    "plus": (400, req(msg(rest=b',"max_tokens":+1'))),
    "hex": (400, req(msg(rest=b',"max_tokens":0x10'))),
    "dot": (400, req(msg(rest=b',"temperature":.5'))),
    "a bool as a number": (400, req(msg(rest=b',"max_tokens":true'))),
    "a string as a number": (400, req(msg(rest=b',"max_tokens":"5"'))),
    "negative tokens": (400, req(msg(rest=b',"max_tokens":-5'))),
    "duplicate key": (400, req(b'{"model":"m1","model":"m2","messages":[{"role":"user","content":"x"}]}')),
    "duplicate deep": (400, req(msg(rest=b',"metadata":{"a":1,"a":2}'))),
    "duplicate escaped": (400, req(b'{"model":"m1","mod\\u0065l":"m2","messages":[{"role":"user","content":"x"}]}')),
    "Model": (400, req(b'{"Model":"m1","messages":[]}')),
    "MODEL beside model": (400, req(msg(rest=b',"MODEL":"m2"'))),
    "Kelvin sign": (400, req(msg(rest=b',"top_\xe2\x84\xaa":1'))),
    "long s": (400, req(msg(rest=b',"\xc5\xbftream":true'))),
    "dotless i": (400, req(b'{"model":"m1","messages":[{"role":"user","content":"x"}],"m\xc4\xb1n_p":1}')),
    "Turkish capital I": (400, req(msg(rest=b',"M\xc4\xb0N_P":1'))),
    "empty key": (400, req(msg(rest=b',"":1'))),
    "__proto__": (400, req(msg(rest=b',"__proto__":{"a":1}'))),
    "key with NUL": (400, req(msg(rest=b',"mod\\u0000el":1'))),
    "deep arrays": (400, req(msg(rest=b',"metadata":' + b"[" * 200 + b"]" * 200))),
    "deep objects": (400, req(msg(rest=b',"metadata":' + b'{"a":' * 200 + b"1" + b"}" * 200))),
    "many nodes": (400, req(msg(rest=b',"metadata":[' + b"[]," * 70000 + b"1]"))),
    "unclosed arrays": (400, req(msg(rest=b',"metadata":' + b"[" * 100000))),
    "no messages": (400, req(b'{"model":"m1"}')),
    "empty messages": (400, req(b'{"model":"m1","messages":[]}')),
    "messages an object": (400, req(b'{"model":"m1","messages":{}}')),
    "a message of null": (400, req(b'{"model":"m1","messages":[null]}')),
    "content a number": (400, req(msg(b"5"))),
    "content an object": (400, req(msg(b'{"a":1}'))),
    "5000 messages": (400, req(b'{"model":"m1","messages":[%b]}' % b",".join([b'{"role":"u","content":"x"}'] * 5000))),
    "a model of 10 kB": (400, req(b'{"model":"' + b"m" * 10000 + b'","messages":[{"role":"user","content":"x"}]}')),
    "a model with line ends": (404, req(b'{"model":"m1\\r\\nX-A: 1","messages":[{"role":"user","content":"x"}]}')),
    "a model with a slash": (404, req(b'{"model":"../m1","messages":[{"role":"user","content":"x"}]}')),
    "stream a string": (400, req(msg(rest=b',"stream":"true"'))),
    "n = 100000": (400, req(msg(rest=b',"n":100000'))),
    "stop of 1000": (400, req(msg(rest=b',"stop":[' + b'"a",' * 1000 + b'"b"]'))),
    "logit_bias list": (400, req(msg(rest=b',"logit_bias":[1]'))),
    "CL and TE": (400, START + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "TE twice": (400, START + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "TE xchunked": (400, START + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "TE with tab": (400, START + b"Transfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n"),
    "TE with vertical tab": (400, START + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n"),
    "TE identity": (400, START + b"Transfer-Encoding: identity\r\n\r\n"),
    "TE chunked, chunked": (400, START + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    "TE quoted": (400, START + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n'),
    "TE in HTTP/1.0": (400, START.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "two equal lengths": (400, START + LENGTH + LENGTH + b"\r\n" + BODY),
    "length list": (400, START + b"Content-Length: 5, 5\r\n\r\nhello"),
    "length hex": (400, START + b"Content-Length: 0x39\r\n\r\n" + BODY),
    "length with space": (400, START + b"Content-Length: 5 7\r\n\r\n" + BODY),
    "length empty": (400, START + b"Content-Length: \r\n\r\n" + BODY),
    "length 2^64+57": (400, START + b"Content-Length: 18446744073709551673\r\n\r\n" + BODY),
    "length with underscore": (400, START + b"Content-Length: 5_7\r\n\r\n" + BODY),
    "length in Arabic digits": (400, START + "Content-Length: \u0665\u0667\r\n\r\n".encode() + BODY),
    "no length": (400, START + b"\r\n"),
    "chunk extension": (200, chunked(chunk(BODY, b";a=b"), tail=b"0\r\n\r\n")),
    "chunk size 2^64": (400, chunked(b"10000000000000039\r\n" + BODY + b"\r\n0\r\n\r\n")),
    "negative chunk": (400, chunked(b"-39\r\n" + BODY + b"\r\n0\r\n\r\n")),
    "chunk size with spaces": (400, chunked(b" 39\r\n" + BODY + b"\r\n0\r\n\r\n")),
    "chunk 0x": (400, chunked(b"0x39\r\n" + BODY + b"\r\n0\r\n\r\n")),
    "chunks of a byte": (200, chunked(*[chunk(bytes([b])) for b in BODY], tail=b"0\r\n\r\n")),
    "trailers": (400, chunked(chunk(BODY), tail=b"0\r\nX-A: b\r\n\r\n")),
    "trailer authorization": (400, chunked(chunk(BODY), tail=b"0\r\nAuthorization: Bearer x\r\nContent-Length: 3\r\n\r\n")),
    "bare CR chunk": (400, chunked(b"39\r" + BODY + b"\r\n0\r\n\r\n")),
    "LF chunk end": (400, chunked(b"39\r\n" + BODY + b"\n0\r\n\r\n")),
    "obs-fold": (400, START + b"X-A: b\r\n c\r\n" + LENGTH + b"\r\n" + BODY),
    "first header folded": (400, b"POST /v1/chat/completions HTTP/1.1\r\n Host: x\r\n" + AUTH + LENGTH + b"\r\n" + BODY),
    "NUL in a header": (400, START + b"X-A: a\0b\r\n" + LENGTH + b"\r\n" + BODY),
    "CR in a header": (400, START + b"X-A: a\rb\r\n" + LENGTH + b"\r\n" + BODY),
    "space before colon": (400, START + b"X-A : b\r\n" + LENGTH + b"\r\n" + BODY),
    "no colon": (400, START + b"X-A\r\n" + LENGTH + b"\r\n" + BODY),
    "empty name": (400, START + b": b\r\n" + LENGTH + b"\r\n" + BODY),
    "name in UTF-8": (400, START + "Übung: a\r\n".encode() + LENGTH + b"\r\n" + BODY),
    "1000 headers": (431, START + b"".join(b"X-%d: a\r\n" % i for i in range(1000)) + LENGTH + b"\r\n" + BODY),
    "a header of 1 MB": (431, START + b"X-A: " + b"a" * 1000000 + b"\r\n" + LENGTH + b"\r\n" + BODY),
    "two hosts": (400, START + b"Host: y\r\n" + LENGTH + b"\r\n" + BODY),
    "host list": (400, START.replace(b"Host: x", b"Host: x, y") + LENGTH + b"\r\n" + BODY),
    "host with path": (400, START.replace(b"Host: x", b"Host: x/y") + LENGTH + b"\r\n" + BODY),
    "host with user": (400, START.replace(b"Host: x", b"Host: a@x") + LENGTH + b"\r\n" + BODY),
    "host empty": (200, START.replace(b"Host: x", b"Host: ") + LENGTH + b"\r\n" + BODY),
    "two authorizations": (400, START + AUTH + LENGTH + b"\r\n" + BODY),
    "authorization with a comma": (401, START.replace(AUTH, AUTH[:-2] + b", Bearer y\r\n") + LENGTH + b"\r\n" + BODY),
    "basic": (401, START.replace(b"Bearer", b"Basic") + LENGTH + b"\r\n" + BODY),
    "Expect twice": (400, START + b"Expect: 100-continue\r\nExpect: x\r\n" + LENGTH + b"\r\n" + BODY),
    "absolute form": (200, GOOD.replace(b"POST /v1", b"POST http://x/v1")),
    "absolute form of another host": (200, GOOD.replace(b"POST /v1", b"POST http://y/v1")),
    "authority form": (400, b"POST x:80 HTTP/1.1\r\nHost: x\r\n\r\n"),
    "asterisk": (404, b"POST * HTTP/1.1\r\nHost: x\r\n\r\n"),
    "OPTIONS *": (404, b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
    "fragment": (404, GOOD.replace(b"completions", b"completions#a")),
    "backslash": (404, GOOD.replace(b"/v1/chat", b"/v1\\chat")),
    "space in target": (400, GOOD.replace(b"/chat", b"/ch at")),
    "encoded slash": (404, GOOD.replace(b"/v1/chat", b"/v1%2fchat")),
    "dot segments": (400, GOOD.replace(b"/v1/chat", b"/v1/x/../chat")),
    "double slash": (404, GOOD.replace(b"/v1", b"//v1")),
    "NUL in target": (400, GOOD.replace(b"/v1", b"/v1\0")),
    "UTF-8 target": (400, GOOD.replace(b"/v1", "/v1é".encode())),
    "query": (200, GOOD.replace(b"completions HTTP", b"completions?a=b HTTP")),
    "HTTP/1.0 without a host": (200, b"GET /livez HTTP/1.0\r\n\r\n"),
    "HTTP/1.1 without a host": (400, b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n"),
    "HTTP/1.0 keep-alive": (200, GOOD.replace(b"HTTP/1.1", b"HTTP/1.0")),
    "HTTP/2 preface": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/0.9": (400, b"GET /\r\n\r\n"),
    "lower-case method": (400, GOOD.replace(b"POST", b"post")),
    "unknown method": (400, GOOD.replace(b"POST", b"BREW")),
    "TRACE": (405, b"TRACE /v1/models HTTP/1.1\r\nHost: x\r\n" + AUTH + b"\r\n"),
    "upgrade h2c": (
        200,
        START + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n" + LENGTH + b"\r\n" + BODY,
    ),
    "websocket": (
        200,
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n" + AUTH + b"\r\n",
    ),
    "gzip": (415, req(BODY, b"Content-Encoding: gzip\r\n")),
    "form": (415, req(BODY, b"Content-Type: application/x-www-form-urlencoded\r\n")),
    "charset": (200, req(BODY, b"Content-Type: application/json; charset=utf-16\r\n")),
    "request id with line end": (400, req(BODY, b"X-Request-Id: a\rb\r\n")),
    "request id of 10 kB": (200, req(BODY, b"X-Request-Id: " + b"a" * 10000 + b"\r\n")),
    "traceparent": (200, req(BODY, b"Traceparent: 00-zz-zz-00\r\n")),
    "leading blank lines": (200, b"\r\n\r\n" + CLOSING),
}
"""Status and request. Those that are well-formed reach the engine."""


@pytest.fixture(scope="module")
def gatehouse(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    yield from listening(tmp_path_factory.mktemp("hostile"), engine)


def first_answer(gatehouse: Gatehouse, data: bytes) -> bytes:
    """The first answer on a connection of its own."""
    for _ in range(TRIES):
        with contextlib.suppress(ConnectionError):
            return answered(gatehouse, data)
    return answered(gatehouse, data)


def answered(gatehouse: Gatehouse, data: bytes) -> bytes:
    host, port = gatehouse.url.removeprefix("http://").split(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(data)
        while part := sock.recv(65536):
            answer += part
            head, _, body = answer.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            if length is not None and len(body) >= int(length[1]):
                return answer[: len(head) + 4 + int(length[1])]  # what a further answer begins with is not this one's
    return answer


@pytest.mark.parametrize("name", CASES)
def test_each_gets_its_answer(gatehouse: Gatehouse, engine: EngineThread, name: str) -> None:
    expected, data = CASES[name]
    before = len(engine.received)
    answer = first_answer(gatehouse, data)
    assert int(answer.split(b" ", 2)[1]) == expected, answer[:300]
    if expected != 200:
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"] and error["code"]
        assert len(engine.received) == before


def test_a_stream_over_http_1_0_ends_with_the_connection(gatehouse: Gatehouse) -> None:
    asked = req(msg(rest=b',"stream":true')).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    head, _, body = first_answer(gatehouse, asked).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"\r\nconnection: close" in head and b"transfer-encoding" not in head
    assert body.startswith(b"data: {") and body.endswith(b"}\n\ndata: [DONE]\n\n")


def test_the_gateway_goes_on_as_before(gatehouse: Gatehouse) -> None:
    assert gatehouse.process is not None

    def resident() -> int:
        pages = int(Path(f"/proc/{gatehouse.process.pid}/statm").read_text().split()[1])  # type: ignore[union-attr]
        return pages * 4096 // 2**20

    before = resident()
    for _ in range(2):
        for _, data in CASES.values():
            first_answer(gatehouse, data)
    assert resident() <= before + 16
    assert gatehouse.chat().status_code == 200
    assert not [line for line in gatehouse.lines if "Traceback" in line]
