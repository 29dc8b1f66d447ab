"""Records to a topic of Kafka, by librdkafka (package confluent-kafka, the extra `kafka`).

One message a line, with the writer's id as its key: all lines of a writer are in one partition, in their order. The producer is idempotent,
and one that could leave a gap ends: what a broker took once a batch had failed may come twice, and nothing comes before what it follows.
"""

from __future__ import annotations

import importlib
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any, Final

from gateway.audit.formats import KAFKA_VALUES, identity, records
from gateway.audit.sinks.contract import Batch, Unacceptable
from gateway.core.errors import ConfigError
from gateway.core.plugins import SinkContext
from gateway.core.specs.sinks import KafkaSinkSpec
from gateway.transport.address import tls_context

NEVER: Final = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_MSG", "INVALID_MSG_SIZE", "INVALID_RECORD", "RECORD_LIST_TOO_LARGE"})
"""Errors that say: not this message."""
CONSEQUENCES: Final = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT", "_FATAL", "_GAPLESS_GUARANTEE"})
"""Errors of messages that only follow from the error of another one."""
GRACE: Final = 0.5
"""Seconds beyond the deadline in which librdkafka tells what became of the messages."""
LARGEST: Final = 1_000_000
"""Bytes of a message that are offered to a broker, as brokers take by default. A line of the log has 64 KiB at most."""


class KafkaSink:
    def __init__(self, settings: KafkaSinkSpec) -> None:
        try:
            self._kafka = importlib.import_module("confluent_kafka")
        except ImportError:
            raise ConfigError("a sink of type 'kafka' needs the package confluent-kafka: install gatehouse[kafka]") from None
        self._settings, self._options = settings, options_of(settings)
        self._value = KAFKA_VALUES[settings.format]
        self._producer: Any = None
        self._said = ""
        self._busy = threading.Lock()
        self._closed = False

    # --- the contract

    def write(self, batch: Batch) -> None:
        with self._busy:
            try:
                self._deliver(batch)
            except BaseException:
                self._let_go()  # what it still holds must not come behind the next batch
                raise
            finally:
                if self._closed:
                    self._let_go()

    def probe(self) -> None:
        with self._busy:
            try:
                found = self._opened().list_topics(self._settings.topic, timeout=self._settings.timeout)
                error = found.topics[self._settings.topic].error
            except self._kafka.KafkaException as failure:
                self._let_go()
                raise self._failure(failure.args[0].str()) from None
            if error is not None and error.name() != "LEADER_NOT_AVAILABLE":  # a topic that is being made has no leader for a moment
                raise self._failure(f"the topic {self._settings.topic!r}: {error.str()}")

    async def aclose(self) -> None:
        self._closed = True
        if self._busy.acquire(blocking=False):  # else whoever writes lets go of it: a producer in use must not be closed
            try:
                self._let_go()
            finally:
                self._busy.release()

    # --- the producer

    def _opened(self) -> Any:
        if self._closed:
            raise OSError(9, "it is closed")
        if self._producer is None:
            self._said = ""
            try:
                self._producer = self._kafka.Producer({**self._options, "error_cb": self._tell})
            except self._kafka.KafkaException as error:
                raise self._failure(error.args[0].str()) from None
        return self._producer

    def _tell(self, error: Any) -> None:
        """Called by `poll` and `flush`. That all brokers are down says less than what each said."""
        if error.name() != "_ALL_BROKERS_DOWN" or not self._said:
            self._said = error.str()

    def _let_go(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            for end in (producer.purge, partial(producer.close, GRACE)):
                with suppress(self._kafka.KafkaException):  # one that has ended says so whenever it is asked anything
                    end()

    def _deliver(self, batch: Batch) -> None:
        """Raises OSError or Unacceptable unless the topic has every line by the deadline."""
        producer, failures = self._opened(), list[Any]()
        left = 0

        def told(error: Any, message: Any) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                failures.append(error)

        try:
            for line, record in zip(batch.splitlines(), records(batch.writer, batch.splitlines()), strict=True):
                left += 1
                producer.produce(
                    self._settings.topic,
                    self._value(line, record),
                    key=batch.writer,
                    headers=[("writer", batch.writer), ("seq", str(record.get("seq", 0))), ("id", identity(record))],
                    on_delivery=told,
                )
        except self._kafka.KafkaException as error:
            failures.append(error.args[0])
            self._gather(producer)
        except BufferError as error:
            raise self._failure(str(error)) from None
        if not failures:
            try:
                producer.flush(self._settings.timeout + GRACE)
            except self._kafka.KafkaException as error:  # the producer has ended: what became of the messages comes now
                failures.append(error.args[0])
                self._gather(producer)
        self._judge(failures, left)

    def _gather(self, producer: Any) -> None:
        """Has an ended producer tell what became of its messages."""
        with suppress(self._kafka.KafkaException):
            producer.purge()
        until = time.monotonic() + GRACE
        while True:
            with suppress(self._kafka.KafkaException):
                if not producer.flush(GRACE):
                    return
            if time.monotonic() >= until:  # after a look: this process may have stood still before it
                return

    def _judge(self, failures: list[Any], left: int) -> None:
        for error in failures:
            if error.name() in NEVER:
                raise Unacceptable(error.str())
        if failures or left:
            told = [error for error in failures if error.name() != "_MSG_TIMED_OUT"]
            causes = [error.str() for error in sorted(told, key=lambda error: error.name() in CONSEQUENCES)]
            late = f"it has not confirmed a batch within {self._settings.timeout:g} s"
            raise self._failure(causes[0] if causes else late)

    def _failure(self, reason: str) -> OSError:
        said = f" ({self._said})" if self._said and self._said != reason else ""
        return OSError(f"{','.join(self._settings.brokers)}: {reason}{said}")


def options_of(settings: KafkaSinkSpec) -> dict[str, Any]:
    """Settings of librdkafka. Raises ConfigError."""
    milliseconds = int(settings.timeout * 1000)
    found: dict[str, Any] = {
        "bootstrap.servers": ",".join(settings.brokers),
        "client.id": settings.client_id,
        "enable.idempotence": True,
        "enable.gapless.guarantee": True,
        "max.in.flight": 1,  # a broker may take what follows a refused request
        "acks": "all",
        "compression.type": settings.compression,
        "partitioner": "murmur2_random",
        "message.max.bytes": LARGEST,
        "message.timeout.ms": milliseconds,
        "topic.metadata.propagation.max.ms": milliseconds // 2,
        "socket.connection.setup.timeout.ms": max(1000, min(milliseconds, 30_000)),
        "queue.buffering.max.messages": 1_000_000,
        "linger.ms": 5,
        "reconnect.backoff.max.ms": 2000,
        "log_level": 0,  # what it would write to the error output comes to `error_cb`; that a producer has ended is written all the same
    }
    sasl, tls = settings.sasl, settings.tls
    if sasl is not None:
        if sasl.mechanism == "PLAIN" and tls is None:
            raise ConfigError("SASL PLAIN sends the password as it is: add `tls`, or use SCRAM-SHA-512")
        found |= {"sasl.mechanism": sasl.mechanism, "sasl.username": sasl.username, "sasl.password": sasl.password.reveal()}
    found["security.protocol"] = ("sasl_" if sasl is not None else "") + ("plaintext" if tls is None else "ssl")
    if tls is not None:
        if tls.server_name is not None:
            raise ConfigError("`tls.server_name` cannot be set for Kafka: each broker is verified by the name that it is reached by")
        tls_context(tls, "")  # its files are looked at now
        found["ssl.ca.location"] = tls.ca or "probe"
        if tls.cert is not None:
            found |= {"ssl.certificate.location": tls.cert, "ssl.key.location": tls.key or tls.cert}
    return found


def build(settings: KafkaSinkSpec, context: SinkContext) -> Any:
    return KafkaSink(settings)
