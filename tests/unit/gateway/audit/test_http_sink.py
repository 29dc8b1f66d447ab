"""Records by HTTP, to a receiver in a thread: each format's body, what is tried again, what never is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gateway.audit.formats import ndjson, records
from gateway.audit.sinks.contract import Batch, Unacceptable, batch_of
from gateway.audit.sinks.http import HttpSink, named
from gateway.core.errors import ConfigError
from gateway.core.secret import Secret
from gateway.core.specs.sinks import HttpSinkSpec
from tests.fakes.http_receiver import HttpReceiver

LINES = [
    b'{"seq":1,"kind":"intent","time":1000.25,"request_id":"r1","tenant":"acme","principal":"ci","peer":"10.0.0.1","operation":"chat","hash":"ab"}\n',
    b'{"seq":2,"kind":"outcome","time":1001.5,"request_id":"r1","outcome":"denied","status":403,"code":"no","duration_ms":1.5,"hash":"cd"}\n',
    b'{"seq":3,"kind":"event","time":1002.0,"event":"admin.keys.create","actor":"root","hash":"ef"}\n',
]


@pytest.fixture(scope="module")
def server() -> Iterator[HttpReceiver]:
    made = HttpReceiver()
    yield made
    made.close()


@pytest.fixture
def receiver(server: HttpReceiver) -> HttpReceiver:
    server.requests.clear()
    server.answers.clear()
    return server


def batch() -> Batch:
    return batch_of("gw-1", b"".join(LINES))


def sink(receiver: HttpReceiver, **more: Any) -> HttpSink:
    return HttpSink(HttpSinkSpec(url=receiver.url, **more))


def bulk(*statuses: int) -> bytes:
    items = [{"create": {"status": status, **({"error": {"type": "x"}} if status >= 300 else {})}} for status in statuses]
    return msgspec.json.encode({"errors": any(status >= 300 for status in statuses), "items": items})


async def test_lines_of_json_with_headers_and_a_token(receiver: HttpReceiver) -> None:
    made = sink(receiver, token=Secret("s3cret"), headers={"x-source": Secret("gw")})
    made.probe()
    made.write(batch())
    headers, body = receiver.requests[0]
    assert headers["authorization"] == "Bearer s3cret" and headers["x-source"] == "gw"
    assert [json.loads(line) for line in body.splitlines()] == [{**json.loads(line), "writer": "gw-1"} for line in LINES]
    await made.aclose()
    with pytest.raises(OSError):
        made.write(batch())


@pytest.mark.parametrize(
    "line",
    [
        *LINES,
        b'{"seq":4,"kind":"segment","time":1.0,"writer":"gw-1","hash":"ab"}',
        b'{"seq":5,"kind":"segment","writer":null,"hash":"ab"}',
        b'{"x":{"writer":"other"},"hash":"ab"}',
        b"{}",
        b'{"a":[}, "b":"c"}',
        b'["x", "y"}',
        b'{"a":"\xff","hash":"x"}',
        b'{"a":"x"} ',
        b'"}',
        b"",
    ],
)
def test_lines_that_are_as_the_log_writes_them_are_passed_on_with_their_writer(line: bytes) -> None:
    assert json.loads(named('gw-"1', [line])) == json.loads(ndjson(records('gw-"1', [line]), "", ""))
    assert named("gw", [line.rstrip(), b"no json"]).count(b"\n") == 2


async def test_splunk(receiver: HttpReceiver) -> None:
    made = sink(receiver, format="splunk_hec", token=Secret("t"), index="audit")
    made.write(batch())
    await made.aclose()
    headers, body = receiver.requests[0]
    assert headers["authorization"] == "Splunk t"
    first = json.loads(body.splitlines()[0])
    assert (first["time"], first["index"], first["sourcetype"]) == (1000.25, "audit", "gatehouse:audit")
    assert first["event"]["writer"] == "gw-1" and first["event"]["seq"] == 1


async def test_elastic_takes_each_record_once(receiver: HttpReceiver) -> None:
    made = sink(receiver, format="elastic_bulk")
    receiver.answers = [(200, bulk(201, 409, 201)), (200, bulk(201, 429, 201)), (200, bulk(201, 400, 201)), (200, b"{}"), (200, b"no")]
    made.write(batch())
    with pytest.raises(OSError, match="did not take 1 of 3"):
        made.write(batch())
    with pytest.raises(Unacceptable):
        made.write(batch())
    for _ in range(2):
        with pytest.raises(OSError):
            made.write(batch())
    await made.aclose()
    lines = [json.loads(line) for line in receiver.requests[0][1].splitlines()]
    assert [line["create"]["_id"] for line in lines[::2]] == ["gw-1-1-ab", "gw-1-2-cd", "gw-1-3-ef"]
    intent, outcome, event = lines[1::2]
    assert intent["@timestamp"] == "1970-01-01T00:16:40.250000Z" and intent["source"] == {"address": "10.0.0.1"}
    assert outcome["event"]["outcome"] == "failure" and outcome["event"]["duration"] == 1_500_000
    assert outcome["http"]["response"]["status_code"] == 403 and outcome["event"]["type"] == ["denied"]
    assert event["event"]["action"] == "admin.keys.create" and event["user"] == {"name": "root"}


async def test_an_opentelemetry_collector(receiver: HttpReceiver) -> None:
    made = sink(receiver, format="otlp")
    made.write(batch())
    await made.aclose()
    logs = json.loads(receiver.requests[0][1])["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert [log["severityText"] for log in logs] == ["INFO", "WARN", "INFO"]
    assert logs[0]["timeUnixNano"] == "1000250000000"
    assert {"key": "gatehouse.seq", "value": {"intValue": "2"}} in logs[1]["attributes"]


async def test_ocsf_has_what_its_class_requires(receiver: HttpReceiver) -> None:
    made = sink(receiver, format="ocsf")
    made.write(batch())
    await made.aclose()
    events = json.loads(receiver.requests[0][1])
    required = {"activity_id", "actor", "api", "category_uid", "class_uid", "metadata", "severity_id", "src_endpoint", "time", "type_uid"}
    for event in events:
        assert required <= event.keys()
        assert event["type_uid"] == event["class_uid"] * 100 + event["activity_id"]
    assert events[1]["status_id"] == 2 and events[0]["time"] == 1000250


@pytest.mark.parametrize(
    ("status", "never"), [(400, True), (413, True), (401, False), (403, False), (429, False), (503, False), (302, False)]
)
async def test_what_is_tried_again(receiver: HttpReceiver, status: int, never: bool) -> None:
    receiver.answers = [(status, b"because")]
    made = sink(receiver)
    with pytest.raises(Unacceptable if never else OSError, match="because"):
        made.write(batch())
    await made.aclose()


async def test_a_line_that_is_no_object_is_sent_as_text(receiver: HttpReceiver) -> None:
    made = sink(receiver)
    made.write(batch_of("gw", b'{"seq":1,\xff\x00broken\n'))
    await made.aclose()
    assert json.loads(receiver.requests[0][1])["kind"] == "unreadable"


@pytest.mark.parametrize("url", ["ftp://x", "https://", "https://ann:pw@x/", "//x", "https://x/#y"])
def test_an_address_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="write https://HOST/PATH"):
        HttpSink(HttpSinkSpec(url=url))


@pytest.mark.parametrize("status", [400, 401, 500])
async def test_a_receiver_that_repeats_a_credential_does_not_bring_it_into_the_log(receiver: HttpReceiver, status: int) -> None:
    made = sink(receiver, token=Secret("s3cret-token"), headers={"x-api-key": Secret("s3cret-token-of-the-header"), "x-empty": Secret("")})
    receiver.answers = [(status, b"Invalid key: s3cret-token-of-the-header, s3cret-token")]
    with pytest.raises((OSError, Unacceptable), match=r"Invalid key: \*+, \*+'$") as caught:
        made.write(batch())
    assert "s3cret" not in str(caught.value)
    await made.aclose()
