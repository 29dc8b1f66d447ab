"""Traces to a receiver of OpenTelemetry's protocol over HTTP (https://opentelemetry.io/docs/specs/otlp/), encoded by OpenTelemetry's own
library. It is loaded only where traces are configured."""

from __future__ import annotations

import importlib
import logging
import ssl
import threading
import time
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from gateway.core.addresses import quotable
from gateway.core.errors import ConfigError
from gateway.core.specs.telemetry import TracesSpec
from gateway.telemetry.observer import Seen
from gateway.telemetry.spans import Span, spans_of

log = logging.getLogger("gatehouse.telemetry")
PATH: Final = "/v1/traces"
AGAIN: Final = frozenset({429, 502, 503, 504})
"""Answers after which the same body may be sent once more, as the protocol says."""
BATCH: Final = 512
"""Requests in one body."""
PAUSES: Final = (0.5, 1.0, 2.0)
"""Seconds before each further try, at least: a receiver that is full may ask for more (`Retry-After`)."""
LONGEST: Final = 60.0
"""The most seconds of a receiver's `Retry-After` that are heeded."""
ALL: Final = 1 << 62
"""Spans that did not arrive, where none did."""
QUIET: Final = 60.0
"""Seconds between two lines that say that traces do not arrive: a receiver that refuses every other body would fill the log."""
QUOTED: Final = 200
"""The most characters of a receiver's message in the log."""
ANSWER_BYTES: Final = 64 * 1024
"""The most bytes of an answer that are read; after more the connection is given up."""


class OtlpTraces:
    """Sends in the thread of the observer. verify: for TLS, or True. attributes: of the process, such as its replica and version."""

    def __init__(self, settings: TracesSpec, verify: ssl.SSLContext | bool, attributes: dict[str, str]) -> None:
        self.url = url_of(settings.endpoint)
        self._sdk: Any = importlib.import_module("opentelemetry.sdk.trace")
        self._api: Any = importlib.import_module("opentelemetry.trace")
        self._encode: Any = importlib.import_module("opentelemetry.exporter.otlp.proto.common.trace_encoder").encode_spans
        scopes: Any = importlib.import_module("opentelemetry.sdk.util.instrumentation")
        resources: Any = importlib.import_module("opentelemetry.sdk.resources")
        proto: Any = importlib.import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
        self._answered: Any = proto.ExportTraceServiceResponse.FromString
        self._unreadable: Any = importlib.import_module("google.protobuf.message").DecodeError
        httpx: Any = importlib.import_module("httpx")
        self._errors = (httpx.HTTPError, RuntimeError)  # RuntimeError: it is closed
        self._resource = resources.Resource({"service.name": settings.service, **attributes})
        self._scope = scopes.InstrumentationScope("gatehouse", attributes.get("service.version", ""))
        headers = {name: value.reveal() for name, value in settings.headers.items()}
        if settings.token is not None:
            headers["authorization"] = f"Bearer {settings.token.reveal()}"
        headers["content-type"] = "application/x-protobuf"
        self._client = httpx.Client(headers=headers, verify=verify, timeout=settings.timeout, trust_env=False, follow_redirects=False)
        name = settings.tls.server_name if settings.tls is not None else None
        self._extensions = {"sni_hostname": name} if name else {}
        self._timeout, self._away, self._quiet_until = settings.timeout, False, 0.0
        self._ending, self._not_before = threading.Event(), 0.0

    def send(self, traced: list[Seen]) -> int:
        lost = 0
        for place in range(0, len(traced), BATCH):
            part = traced[place : place + BATCH]
            body = self._encode([self._readable(span) for seen in part for span in spans_of(seen)]).SerializeToString()
            fault, refused = self._post(body)
            lost += min(refused, len(part))
            self._say(fault)
        return lost

    def close(self) -> None:
        self._client.close()

    def hurry(self) -> None:
        self._ending.set()

    def _post(self, body: bytes) -> tuple[str, int]:
        """Why it did not arrive, or nothing; and how many spans, at most `ALL`. Takes at most the timeout."""
        deadline = time.monotonic() + self._timeout
        fault, pause = "it has asked to wait", self._not_before - time.monotonic()
        for least in (*PAUSES, None):
            if pause > 0 and (self._ending.is_set() or time.monotonic() + pause >= deadline or self._ending.wait(pause)):
                break
            status, asked = 0, 0.0
            try:
                status, asked, kind, said = self._answer(body, deadline)
                fault = f"it answered {status}"
            except self._errors as error:
                fault = str(error) or type(error).__name__
            if 200 <= status < 300:
                return self._refused(kind, said)
            if asked:
                self._not_before = time.monotonic() + asked
            if least is None or (status and status not in AGAIN):
                break
            pause = max(least, asked)
        return fault, ALL

    def _refused(self, kind: str, said: bytes) -> tuple[str, int]:
        """As `_post`, of an answer that says that the body arrived: it may take a part of the spans only."""
        if kind.startswith("text/html"):
            return "it answered with a page, so it is no receiver of traces", ALL
        if not kind.startswith("application/x-protobuf"):
            return "", 0
        try:
            told = self._answered(said).partial_success
        except self._unreadable:
            return "its answer cannot be read", 0
        if told.rejected_spans <= 0:
            return "", 0
        return f"it refused {told.rejected_spans} spans: {told.error_message[:QUOTED]!r}", told.rejected_spans

    def _answer(self, body: bytes, deadline: float) -> tuple[int, float, str, bytes]:
        """The status, for how many seconds the receiver wants nothing, and the type and the beginning of its answer."""
        left = max(0.1, deadline - time.monotonic())
        with self._client.stream("POST", self.url, content=body, timeout=left, extensions=self._extensions) as answer:
            said = bytearray()
            with suppress(*self._errors):  # it has answered; what follows is read only to keep the connection
                for part in answer.iter_raw():
                    said += part
                    if len(said) > ANSWER_BYTES or time.monotonic() >= deadline:
                        break
            asked = answer.headers.get("retry-after", "") if answer.status_code in AGAIN else ""
            wait = min(float(asked), LONGEST) if asked.isascii() and asked.isdigit() else 0.0
            return answer.status_code, wait, answer.headers.get("content-type", "").lower(), bytes(said[:ANSWER_BYTES])

    def _say(self, fault: str) -> None:
        """One line when it stops working, at most one in `QUIET`, and one when it works again."""
        if fault and not self._away and time.monotonic() >= self._quiet_until:
            self._away, self._quiet_until = True, time.monotonic() + QUIET
            log.warning("traces do not arrive at %s: %s; requests go on without", self.url, fault)
        elif not fault and self._away:
            self._away = False
            log.warning("traces arrive at %s again", self.url)

    def _readable(self, span: Span) -> Any:
        api, flags = self._api, self._api.TraceFlags(1)
        context = api.SpanContext(int(span.trace, 16), int(span.span, 16), False, flags)
        parent = api.SpanContext(int(span.trace, 16), int(span.parent, 16), span.kind == "server", flags) if span.parent else None
        status = api.Status(api.StatusCode.ERROR, span.error) if span.error else api.Status(api.StatusCode.UNSET)
        return self._sdk.ReadableSpan(
            name=span.name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            kind=api.SpanKind[span.kind.upper()],
            status=status,
            start_time=span.begin,
            end_time=span.end,
            instrumentation_scope=self._scope,
        )


def url_of(endpoint: str) -> str:
    """Where to post. Raises ConfigError for what is no address."""
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname or url.username or url.password or url.query or url.fragment:
        raise ConfigError(
            f"{quotable(endpoint)!r} cannot be used: write http(s)://HOST:PORT; a credential belongs into `token` or `headers`"
        )
    return urlunsplit(url._replace(path=PATH if url.path in ("", "/") else url.path))
