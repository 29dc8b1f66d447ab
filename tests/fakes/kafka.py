"""librdkafka's own mock cluster: brokers on loopback that speak Kafka's protocol, with faults to order."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any

import confluent_kafka

PRODUCE = 0
"""Kafka's number of the request that brings messages."""
SECONDS = 150.0


class MockKafka:
    """Use as a context. brokers: their addresses."""

    def __init__(self, brokers: int = 1) -> None:
        (library,) = Path(confluent_kafka.__file__).parent.parent.glob("confluent_kafka.libs/librdkafka-*.so*")
        self._lib = lib = ctypes.CDLL(str(library))
        for name in ("rd_kafka_new", "rd_kafka_mock_cluster_new", "rd_kafka_conf_new"):
            getattr(lib, name).restype = ctypes.c_void_p
        lib.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        reason = ctypes.create_string_buffer(512)
        conf = ctypes.c_void_p(lib.rd_kafka_conf_new())
        lib.rd_kafka_conf_set(conf, b"log_level", b"0", reason, ctypes.c_size_t(512))
        self._owner = ctypes.c_void_p(lib.rd_kafka_new(0, conf, reason, ctypes.c_size_t(512)))
        assert self._owner.value, reason.value
        self._cluster = ctypes.c_void_p(lib.rd_kafka_mock_cluster_new(self._owner, brokers))
        self.brokers = lib.rd_kafka_mock_cluster_bootstraps(self._cluster).decode().split(",")

    def __enter__(self) -> MockKafka:
        return self

    def __exit__(self, *_: object) -> None:
        self._lib.rd_kafka_mock_cluster_destroy(self._cluster)
        self._lib.rd_kafka_destroy(self._owner)

    def refuse(self, *codes: int, request: int = PRODUCE) -> None:
        """The next requests of this kind fail with these codes of the protocol, one after the other."""
        numbers = [ctypes.c_int(code) for code in codes]
        self._lib.rd_kafka_mock_push_request_errors(self._cluster, ctypes.c_short(request), ctypes.c_size_t(len(codes)), *numbers)

    def slow(self, milliseconds: int, broker: int = 1) -> None:
        """Answers take this long."""
        self._lib.rd_kafka_mock_broker_set_rtt(self._cluster, ctypes.c_int(broker), ctypes.c_int(milliseconds))

    def down(self, broker: int = 1) -> None:
        self._lib.rd_kafka_mock_broker_set_down(self._cluster, ctypes.c_int(broker))

    def up(self, broker: int = 1) -> None:
        self._lib.rd_kafka_mock_broker_set_up(self._cluster, ctypes.c_int(broker))

    def messages(self, topic: str) -> list[Any]:
        """All that the topic has now, partition by partition."""
        options = {"bootstrap.servers": ",".join(self.brokers), "group.id": "test", "log_level": 0, "enable.auto.commit": False}
        consumer = confluent_kafka.Consumer(options)
        try:
            found: list[Any] = []
            for partition in consumer.list_topics(topic, timeout=SECONDS).topics[topic].partitions:
                place = confluent_kafka.TopicPartition(topic, partition, 0)
                _, end = consumer.get_watermark_offsets(place, timeout=SECONDS)
                consumer.assign([place])
                wanted, until = len(found) + end, time.monotonic() + SECONDS
                while len(found) < wanted:
                    assert time.monotonic() < until
                    found += [message for message in consumer.consume(wanted - len(found), 0.2) if message.error() is None]
            return found
        finally:
            consumer.close()
