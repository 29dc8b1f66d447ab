"""Records by HTTP POST: Splunk's event collector, Elasticsearch's bulk API, an OpenTelemetry collector, OCSF events, or lines of JSON."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from gateway.audit.formats import BODIES, ndjson, records
from gateway.audit.sinks.contract import Batch, Unacceptable
from gateway.core.addresses import quotable
from gateway.core.errors import ConfigError
from gateway.core.plugins import SinkContext
from gateway.core.secret import MASK
from gateway.core.specs.sinks import HttpSinkSpec
from gateway.transport.address import tls_context

SCHEMES: Final = {"splunk_hec": "Splunk", "elastic_bulk": "ApiKey"}
"""What stands before the token, where it is not `Bearer`."""
NEVER: Final = frozenset({400, 413, 415, 422})
"""Answers that say: not this body. All others may pass; a wrong token or path is put right by an operator."""
LONGEST_ANSWER: Final = 8 * 1024 * 1024


class BulkAnswer(msgspec.Struct):
    errors: bool = False
    items: list[dict[str, dict[str, Any]]] = []


class Named(msgspec.Struct):
    """Whether a line names its writer; all of it is read."""

    writer: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


names_writer: Final = msgspec.json.Decoder(Named).decode


class HttpSink:
    def __init__(self, settings: HttpSinkSpec) -> None:
        url = urlsplit(settings.url)
        if url.scheme not in ("http", "https") or not url.hostname or url.username or url.password or url.fragment:
            raise ConfigError(
                f"{quotable(settings.url)!r} cannot be used: write https://HOST/PATH; a user or token belongs into `token` or `headers`"
            )
        if settings.tls is not None and url.scheme != "https":
            raise ConfigError("there are settings for TLS, but the address begins with http://")
        import httpx  # noqa: PLC0415 - only the process that sends needs it

        self._errors = httpx.HTTPError
        self._content_type, self._body = BODIES[settings.format]
        self._settings, self._host = settings, socket.gethostname()
        headers = {name: value.reveal() for name, value in settings.headers.items()}
        if settings.token is not None:
            headers["authorization"] = f"{SCHEMES.get(settings.format, 'Bearer')} {settings.token.reveal()}"
        secrets = [*settings.headers.values(), *([] if settings.token is None else [settings.token])]
        self._secrets = sorted((one.reveal().encode() for one in secrets if len(one)), key=len, reverse=True)
        headers["content-type"] = self._content_type
        verify = tls_context(settings.tls) if url.scheme == "https" else True
        self._client = httpx.Client(headers=headers, verify=verify, timeout=settings.timeout, trust_env=False, follow_redirects=False)

    def write(self, batch: Batch) -> None:
        lines = batch.splitlines()
        if self._settings.format == "ndjson":
            body = named(batch.writer, lines)
        else:
            body = self._body(records(batch.writer, lines), self._settings.index, self._host)
        status, answer = self._post(body)
        if status in NEVER:
            raise Unacceptable(f"{status}: {self._quoted(answer)}")
        if not 200 <= status < 300:
            raise OSError(f"{self._settings.url}: it answered {status}: {self._quoted(answer)}")
        if self._settings.format == "elastic_bulk":
            _check_bulk(answer, len(lines))

    def probe(self) -> None:
        """A record is the only thing that can be sent: whether the address answers is seen with the first one."""

    async def aclose(self) -> None:
        self._client.close()

    def _post(self, body: bytes) -> tuple[int, bytes]:
        """The status and the answer. Raises OSError."""
        deadline = time.monotonic() + self._settings.timeout
        try:
            with self._client.stream("POST", self._settings.url, content=body) as response:
                answer = bytearray()
                for part in response.iter_bytes(65536):
                    answer += part
                    if len(answer) > LONGEST_ANSWER or time.monotonic() > deadline:
                        raise OSError(f"{self._settings.url}: its answer is longer than {LONGEST_ANSWER} bytes, or takes too long")
                return response.status_code, bytes(answer)
        except (self._errors, RuntimeError) as error:  # RuntimeError: it is closed
            raise OSError(f"{self._settings.url}: {error or type(error).__name__}") from None

    def _quoted(self, answer: bytes) -> str:
        """The beginning of an answer for the log, without the credentials: a receiver that refuses them may repeat them."""
        for secret in self._secrets:
            answer = answer.replace(secret, MASK.encode())
        return repr(answer[:200])


def named(writer: str, lines: Sequence[bytes]) -> bytes:
    """Lines of JSON that name their writer: those of the log as they are, where they do not name it."""
    end = b',"writer":%b}\n' % msgspec.json.encode(writer)
    found = []
    for line in lines:
        try:
            plain = line.isascii() and line.endswith(b'"}') and names_writer(line).writer is msgspec.UNSET
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            plain = False
        found.append(line[:-1] + end if plain else ndjson(records(writer, [line]), "", ""))
    return b"".join(found)


def _check_bulk(answer: bytes, count: int) -> None:
    """Elasticsearch answers 200 for a body of which it refused parts. What is there already (409) is no error."""
    try:
        found = msgspec.json.decode(answer, type=BulkAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OSError(f"the answer is not that of a bulk request: {error}") from None
    if len(found.items) != count:
        raise OSError(f"the answer tells of {len(found.items)} records, {count} were sent")
    bad = [item for one in found.items for item in one.values() if int(item.get("status", 500)) >= 300 and item.get("status") != 409]
    if not bad:
        return
    reason = f"{bad[0].get('status')}: {str(bad[0].get('error'))[:200]}"
    if all(item.get("status") in NEVER for item in bad):
        raise Unacceptable(reason)
    raise OSError(f"it did not take {len(bad)} of {count} records: {reason}")


def build(settings: HttpSinkSpec, context: SinkContext) -> Any:
    return HttpSink(settings)
