"""Settings of the audit sinks beside the log."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.core.secret import Secret
from gateway.core.specs.base import ClientTlsSpec, Positive, Spec, Timeout

GIB = 1024**3


class CarriedSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every sink beside the log has. required: requests are refused while more than `spool_bytes` of a process's log wait for it.
    history: a new sink gets what was logged before, too. records: of those that are encrypted as a whole, the lines as they are in the log
    (`sealed`), or what they hold (`opened`)."""

    required: bool = False
    spool_bytes: Positive = GIB
    history: bool = False
    records: Literal["sealed", "opened"] = "sealed"


class SyslogSinkSpec(CarriedSpec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Syslog (RFC 5424). address: `tls://HOST:PORT`, `tcp://HOST:PORT` or `udp://HOST:PORT`; without a port 6514 for TLS, else 514.
    facility: a number (13: log audit). host: what is said to be the source, else the machine's name. enterprise: the number in the name of
    the structured data (32473 is that of documentation). timeout: until the other side has taken a batch."""

    address: str
    tls: ClientTlsSpec | None = None
    facility: Annotated[int, Meta(ge=0, le=23)] = 13
    host: Annotated[str, Meta(pattern=r"^[!-~]{0,255}$")] = ""
    enterprise: Annotated[int, Meta(ge=1, le=2**31)] = 32473
    timeout: Timeout = 10.0


class HttpSinkSpec(CarriedSpec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Records by POST. format: how the body is made. token: sent as `Authorization`, in the manner of the format. headers: sent as they
    are. index: of Elasticsearch (a data stream) or Splunk. timeout: of a whole request."""

    url: str
    format: Literal["ndjson", "splunk_hec", "elastic_bulk", "otlp", "ocsf"] = "ndjson"
    token: Secret | None = None
    headers: dict[str, Secret] = {}
    index: str = ""
    tls: ClientTlsSpec | None = None
    timeout: Timeout = 10.0


Broker = Annotated[str, Meta(pattern=r"^([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}$")]


class SaslSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the gateway says who it is to Kafka's brokers. PLAIN needs TLS."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    username: Annotated[str, Meta(min_length=1, max_length=255)]
    password: Secret


class KafkaSinkSpec(CarriedSpec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A topic of Kafka. brokers: `HOST:PORT` of some of them; the others are learnt. format: of a message's value: the log's line as it is,
    or the record in the Elastic Common Schema or as an OCSF event. tls: without it nothing is encrypted; `{}` verifies by the system's CAs.
    timeout: until the brokers have confirmed a batch."""

    brokers: Annotated[tuple[Broker, ...], Meta(min_length=1, max_length=100)]
    topic: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
    format: Literal["jsonl", "ecs", "ocsf"] = "jsonl"
    client_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,100}$")] = "gatehouse"
    compression: Literal["none", "gzip", "lz4", "zstd"] = "zstd"
    tls: ClientTlsSpec | None = None
    sasl: SaslSpec | None = None
    timeout: Timeout = 10.0
