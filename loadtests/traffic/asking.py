"""What all users share: one request, and what its answer counts as.

A refusal by a limit (429) and a refusal for want of capacity (503 `overloaded`) are answers that a gateway is right to give: they count
under names of their own (`limited`, `shed`), so that they are neither failures nor part of the latencies. Each must say when to come back.
So does a stream whose engine failed in the middle (`broken`), as long as it ended with an error event and `[DONE]`. Thresholds bound each.
"""

import json
import time
from collections.abc import Callable
from typing import Any

from geventhttpclient.response import HTTPParseError
from locust import FastHttpUser
from locust.contrib.fasthttp import ResponseContextManager

from loadtests.traffic.kinds import BROKEN, LIMITED, SHED
from loadtests.traffic.settings import SETTINGS


class Broken(str):
    """What ended a stream that the gateway may not begin anew: its engine failed after the first byte, and the client was told so."""


class GatewayUser(FastHttpUser):
    """A user of the gateway with a key of one of the tenants."""

    abstract = True
    host = SETTINGS.url
    network_timeout = 120.0
    connection_timeout = 10.0

    def on_start(self) -> None:
        self.key = SETTINGS.key()

    def ask(self, name: str, path: str, body: dict[str, Any], key: str = "", read: "Callable[[Any], str | None] | None" = None) -> None:
        """Posts a request. `read` takes the answer (parsed, or as it streams where the body says `stream`) and returns what is wrong."""
        streams = bool(body.get("stream"))
        headers = {"authorization": f"Bearer {key or self.key}"}
        with self.client.post(path, json=body, headers=headers, name=name, stream=streams, catch_response=True) as answer:
            answer.request_meta["request_type"] = "POST"
            if answer.status_code != 200:
                self.refused(answer, name)
            else:
                self.answered(answer, streams, read)

    def answered(self, answer: ResponseContextManager, streams: bool, read: "Callable[[Any], str | None] | None") -> None:
        """Reads a whole answer or a stream; a stream counts until its end."""
        begin = time.perf_counter()
        try:
            wrong = read(answer if streams else answer.json()) if read else None
        except (HTTPParseError, OSError) as error:
            wrong = f"the connection ended: {error}"
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            wrong = f"not the answer that was asked for: {error!r}"
        if streams:
            answer.request_meta["response_time"] += (time.perf_counter() - begin) * 1000
        if isinstance(wrong, Broken):
            answer.request_meta["request_type"] = BROKEN
            answer.success()
        elif wrong:
            answer.failure(wrong)
        else:
            answer.success()

    def refused(self, answer: ResponseContextManager, name: str) -> None:
        """Tells refusals that are right from failures, by status, code and `retry-after`."""
        try:
            error = json.loads(answer.text or "{}").get("error", {})
        except ValueError:
            error = {}
        code = error.get("code") or "no code"
        SETTINGS.note(name, answer.status_code, code, str(error.get("message", ""))[:300])
        back = (answer.headers or {}).get("retry-after")
        if answer.status_code == 429 and back:
            kind = LIMITED
        elif answer.status_code == 503 and code == "overloaded" and back:
            kind = SHED
        else:
            answer.failure(f"{answer.status_code} {code}")
            return
        answer.request_meta["request_type"] = kind
        answer.success()

    def count(self, kind: str, name: str, milliseconds: float) -> None:
        """A figure of its own, such as the time to the first token."""
        self.environment.events.request.fire(
            request_type=kind, name=name, response_time=milliseconds, response_length=0, exception=None, context={}, response=None
        )
