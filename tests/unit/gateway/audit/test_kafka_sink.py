"""Records to Kafka, to librdkafka's mock cluster: what arrives, what is tried again, what never is, and what cannot be configured."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.app.configuration.plugins import OURS
from gateway.audit.courier import Courier
from gateway.audit.sink_positions import SinkPositionsFile
from gateway.audit.sinks import other_sinks
from gateway.audit.sinks.contract import Batch, Unacceptable, batch_of
from gateway.audit.sinks.kafka import KafkaSink
from gateway.core.errors import ConfigError
from gateway.core.secret import Secret
from gateway.core.specs import AuditSpec, SinkSpec
from gateway.core.specs.base import ClientTlsSpec
from gateway.core.specs.sinks import KafkaSinkSpec, SaslSpec
from tests.fakes.kafka import MockKafka
from tests.fakes.kafka_login import KafkaLogin
from tests.pki import SERVER, Authority
from tests.steady import once
from tests.waiting import reached

LINES = [
    b'{"seq":1,"kind":"intent","time":1000.25,"request_id":"r1","tenant":"acme","operation":"chat","hash":"ab"}\n',
    b'{"seq":2,"kind":"outcome","time":1001.5,"request_id":"r1","outcome":"denied","status":403,"hash":"cd"}\n',
    b'{"seq":3,"kind":"event","time":1002.0,"event":"admin.keys.create","actor":"root","hash":"ef"}\n',
]
TOO_LARGE, NOT_AUTHORIZED, NOT_ENOUGH_REPLICAS = 10, 29, 19
TOPICS = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockKafka]:
    with MockKafka(3) as made:
        yield made


@pytest.fixture
def topic() -> str:
    return f"audit-{next(TOPICS)}"


def batch(lines: list[bytes] = LINES) -> Batch:
    return batch_of("gw-1", b"".join(lines))


def sink(brokers: list[str], topic: str, **more: Any) -> KafkaSink:
    return KafkaSink(KafkaSinkSpec(brokers=tuple(brokers), topic=topic, **{"timeout": 60.0, **more}))


async def test_lines_come_as_they_are_in_one_partition_with_what_removes_duplicates(cluster: MockKafka, topic: str) -> None:
    made = sink(cluster.brokers, topic)
    made.probe()
    lines = [b'{"seq":%d,"kind":"intent","time":1.5,"hash":"%064x"}\n' % (number, number) for number in range(2000)]
    for start in range(0, 2000, 500):
        made.write(batch(lines[start : start + 500]))
    found = cluster.messages(topic)
    assert [message.value() + b"\n" for message in found] == lines
    assert {message.key() for message in found} == {b"gw-1"} and len({message.partition() for message in found}) == 1
    assert found[7].headers() == [("writer", b"gw-1"), ("seq", b"7"), ("id", b"gw-1-7-" + b"0" * 16)]
    await made.aclose()


@pytest.mark.parametrize("format", ["ecs", "ocsf"])
async def test_other_formats(cluster: MockKafka, topic: str, format: Any) -> None:
    made = sink(cluster.brokers, topic, format=format, compression="lz4")
    made.write(batch())
    first = json.loads(cluster.messages(topic)[0].value())
    assert first["@timestamp" if format == "ecs" else "metadata"]
    await made.aclose()


async def test_what_a_broker_may_take_later_is_tried_by_librdkafka_itself(cluster: MockKafka, topic: str) -> None:
    made = sink(cluster.brokers, topic)
    made.write(batch(LINES[:1]))
    cluster.refuse(NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS)
    made.write(batch(LINES[1:]))
    assert [message.value() + b"\n" for message in cluster.messages(topic)] == LINES
    await made.aclose()


async def test_a_refusal_says_why_and_the_next_batch_finds_a_new_producer(cluster: MockKafka, topic: str) -> None:
    made = sink(cluster.brokers, topic)
    made.write(batch(LINES[:1]))
    cluster.refuse(NOT_AUTHORIZED)
    with pytest.raises(OSError, match="Topic authorization failed"):
        made.write(batch(LINES[1:]))
    made.write(batch(LINES[1:]))
    assert [message.value() + b"\n" for message in cluster.messages(topic)] == LINES
    await made.aclose()


async def test_a_record_that_is_too_large_for_the_topic_is_never_taken(cluster: MockKafka, topic: str) -> None:
    made = sink(cluster.brokers, topic)
    made.write(batch(LINES[:1]))
    cluster.refuse(TOO_LARGE)
    with pytest.raises(Unacceptable, match="too large"):
        made.write(batch(LINES[1:2]))
    with pytest.raises(Unacceptable):
        made.write(batch_of("gw-1", b'{"seq":9,"x":"' + b"x" * 1_100_000 + b'"}\n'))
    made.write(batch(LINES[2:]))
    assert [message.value() + b"\n" for message in cluster.messages(topic)] == [LINES[0], LINES[2]]
    await made.aclose()


def _sent(made: KafkaSink, lines: list[bytes]) -> None:
    """As a courier does: again and again."""
    for _ in range(20):
        try:
            made.write(batch(lines))
            return
        except OSError:
            continue
    raise AssertionError("nothing is taken")


async def test_brokers_that_are_away_fail_by_the_deadline_and_get_everything_when_they_are_back(topic: str) -> None:
    with MockKafka() as cluster:
        made = sink(cluster.brokers, topic, timeout=4.0)
        _sent(made, LINES[:1])
        cluster.down()
        with pytest.raises(OSError, match="not confirmed a batch within 4 s"):
            made.write(batch(LINES[1:]))
        cluster.up()
        _sent(made, LINES[1:])
        assert list(dict.fromkeys(message.value() + b"\n" for message in cluster.messages(topic))) == LINES
        await made.aclose()


async def test_a_courier_carries_a_log_past_refusals_in_order(cluster: MockKafka, topic: str, tmp_path: Path) -> None:
    """What comes twice comes behind itself: without the repetitions, the order is that of the log."""
    log = tmp_path / "audit"
    log.mkdir()
    header = b'{"seq":1,"kind":"segment","segment":1,"writer":"gw","hash":"%064x"}\n' % 1
    lines = [header, *(b'{"seq":%d,"kind":"event","time":1.0,"hash":"%064x"}\n' % (seq, seq) for seq in range(2, 8000))]
    (log / "audit-gw-00000001.jsonl").write_bytes(b"".join(lines))
    cluster.refuse(NOT_AUTHORIZED, 0, NOT_ENOUGH_REPLICAS, TOO_LARGE)
    courier = Courier("kafka", sink(cluster.brokers, topic), log, SinkPositionsFile(tmp_path, "kafka"), history=True)
    courier.prepare()
    courier.start()
    await reached(lambda: courier.sent >= 7999 and not courier.waiting)
    await courier.aclose()
    await courier.sink.aclose()
    numbers = [json.loads(message.value())["seq"] for message in cluster.messages(topic)]
    found = list(dict.fromkeys(numbers))
    given_up = set(range(1, 8000)).difference(found)  # the one that the producer sends alone, if that is what meets TOO_LARGE
    assert found == sorted(found) and len(given_up) == courier.refused <= 1


async def said(call: Callable[[], None]) -> str:
    """What a sink's call fails with."""
    with pytest.raises(OSError) as caught:
        await asyncio.to_thread(call)
    return str(caught.value)


async def test_nobody_there_is_said_with_the_reason(topic: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        made = sink([f"127.0.0.1:{taken.getsockname()[1]}"], topic, timeout=1.0)
        calls: tuple[Callable[[], None], ...] = (made.probe, partial(made.write, batch()))
        for call in calls:
            await once(lambda text: "Connection refused" in text, partial(said, call))
        await made.aclose()


async def test_tls_verifies_the_broker_and_shows_the_certificate_before_the_login_begins(tmp_path: Path) -> None:
    """A broker's TLS, with nothing of Kafka behind it: what arrives is the first request of the protocol."""
    authority, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    client = authority.issue("gateway")
    server = authority.issue("broker", addresses=["127.0.0.1"], usage=[SERVER])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.cert, server.key)
    context.load_verify_locations(authority.cert)
    context.verify_mode = ssl.CERT_REQUIRED
    arrived: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(await reader.read(8))
        writer.close()

    broker = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    address = f"127.0.0.1:{broker.sockets[0].getsockname()[1]}"
    sasl = SaslSpec(mechanism="PLAIN", username="gw", password=Secret("s3cret"))

    def made(ca: str) -> KafkaSink:
        return sink([address], "t", timeout=1.0, tls=ClientTlsSpec(ca=ca, cert=client.cert, key=client.key), sasl=sasl)

    believed, doubted = made(authority.cert), made(stranger.cert)

    async def greeted() -> set[bytes]:
        await said(believed.probe)
        return {first[4:6] for first in arrived if first}  # nothing came of a connection that ended with the probe

    await once(lambda text: "certificate verify failed" in text, partial(said, doubted.probe))
    assert not any(arrived)
    assert await once(bool, greeted) <= {b"\x00\x12", b"\x00\x11"}  # ApiVersions, or SaslHandshake
    for one in (believed, doubted):
        await one.aclose()
    broker.close()
    await broker.wait_closed()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
async def test_a_listener_that_asks_for_a_login_gets_it_first_and_then_the_lines(tmp_path: Path, topic: str, mechanism: Any) -> None:
    context, tls = None, None
    if mechanism == "PLAIN":
        authority = Authority(tmp_path / "ca")
        server = authority.issue("broker", addresses=["127.0.0.1"], usage=[SERVER])
        context, tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ClientTlsSpec(ca=authority.cert)
        context.load_cert_chain(server.cert, server.key)
    with MockKafka(1) as behind:
        async with KafkaLogin(behind.brokers[0], mechanism, "gw", "s3cret", context) as broker:

            def made(password: str, timeout: float) -> KafkaSink:
                sasl = SaslSpec(mechanism=mechanism, username="gw", password=Secret(password))
                return sink([broker.address], topic, timeout=timeout, sasl=sasl, tls=tls)

            right, wrong = made("s3cret", 60.0), made("other", 1.0)
            await once(lambda text: "who are you?" in text, partial(said, wrong.probe))
            assert broker.users == [] and broker.refused >= 1
            await asyncio.to_thread(right.probe)
            await asyncio.to_thread(right.write, batch())
            for one in (right, wrong):
                await one.aclose()
            assert set(broker.users) == {"gw"} and broker.early == 0
        assert [message.value() + b"\n" for message in behind.messages(topic)] == LINES


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"sasl": SaslSpec(mechanism="PLAIN", username="gw", password=Secret("x"))}, "sends the password as it is"),
        ({"tls": ClientTlsSpec(server_name="kafka")}, "server_name"),
        ({"tls": ClientTlsSpec(ca="/nowhere.pem")}, "nowhere.pem"),
    ],
)
def test_what_cannot_be_used_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        KafkaSink(KafkaSinkSpec(brokers=("kafka:9092",), topic="t", **change))


@pytest.mark.parametrize(
    "settings",
    [
        {"brokers": [], "topic": "t"},
        {"brokers": ["kafka"], "topic": "t"},
        {"brokers": ["ssl://kafka:9093"], "topic": "t"},
        {"brokers": ["a:1,b:2"], "topic": "t"},
        {"brokers": ["kafka:9092"], "topic": "a b"},
        {"brokers": ["kafka:9092"], "topic": "t", "sasl": {"username": "u", "password": "p", "mechanism": "GSSAPI"}},
    ],
)
def test_settings_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(settings, KafkaSinkSpec, dec_hook=lambda kind, value: Secret(value))


def test_without_the_package_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    spec = AuditSpec(sinks=(SinkSpec(type="file"), SinkSpec(type="kafka", settings={"brokers": ["kafka:9092"], "topic": "t"})))
    with pytest.raises(ConfigError, match=r"install gatehouse\[kafka\]") as caught:
        list(other_sinks(spec, str(tmp_path), "gw", OURS.sinks))
    assert caught.value.path == "audit.sinks[1]"
