"""`gatehouse caches warm`: asks what a file says, so that the answers are kept when users ask."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Final

import httpx
import msgspec
import typer

from admin.cli.chat import data_listener
from admin.cli.client import explain, with_key
from admin.cli.errors import CommandError
from admin.cli.output import clean
from admin.cli.session import Session, connected

TRIES: Final = 5
"""How often a request is tried that gets 429 (a limit) or 503 (no room)."""
MOST_WAIT: Final = 60.0
"""The most seconds until the next try, even if the gateway asks for more."""
BUSY: Final = frozenset({429, 503})
PROGRESS_SECONDS: Final = 2.0
MOST_NAMED: Final = 20
"""Failures that are shown one by one."""
MOST_LINE: Final = 16 * 1024 * 1024
TIMEOUT = httpx.Timeout(600.0, connect=10.0)
_BLANK: Final = b" \t\r\n"


class WarmLine(msgspec.Struct):
    """One request, as a line of a batch has it; `body` and, where it is no chat, `url` are enough."""

    body: msgspec.Raw
    url: str = "/v1/chat/completions"
    method: str = "POST"
    custom_id: str = ""


_LINE: Final = msgspec.json.Decoder(WarmLine)


class Warming:
    """What becomes of the requests. Each outcome counts under `kept` (an engine was asked), `there` (it was kept before), `not_kept` (such
    answers are not), or `failed`."""

    def __init__(self, client: httpx.Client, session: Session, refresh: bool) -> None:
        self._client, self._session = client, session
        self._headers = {"content-type": "application/json", **({"cache-control": "no-cache"} if refresh else {})}
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.stopped = threading.Event()
        self._said = time.monotonic()

    def fails(self, where: str, why: str) -> None:
        with self._lock:
            self.counts["failed"] += 1
            if self.counts["failed"] <= MOST_NAMED:
                self._session.out.remark(f"{clean(where)}: {clean(why)}")

    def ask(self, number: int, line: WarmLine) -> None:
        """One request, to the end of its answer."""
        where = f"line {number}" + (f" ({line.custom_id[:64]})" if line.custom_id else "")
        try:
            response = self._answer(line)
        except httpx.HTTPError as error:
            self.fails(where, str(error) or type(error).__name__)
            return
        if response.is_error:
            self.fails(where, f"{response.status_code} {explain(response)}")
            return
        said = response.headers.get("x-gatehouse-cache", "")
        word = {"miss": "kept", "hit": "there", "joined": "there", "semantic": "there"}.get(said, "not_kept")
        with self._lock:
            self.counts[word] += 1

    def _answer(self, line: WarmLine) -> httpx.Response:
        for _ in range(TRIES - 1):
            response = self._client.post(line.url, content=bytes(line.body), headers=self._headers)
            if response.status_code not in BUSY or self.stopped.wait(_wait(response)):
                return response
        return self._client.post(line.url, content=bytes(line.body), headers=self._headers)

    def progress(self, *, last: bool = False) -> None:
        now = time.monotonic()
        if last or now - self._said >= PROGRESS_SECONDS:
            self._said = now
            with self._lock:
                told = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(self.counts.items()))
            self._session.out.remark(f"{sum(self.counts.values())} requests: {told or 'none yet'}")


@connected
def warm(
    session: Session,
    file: Annotated[Path, typer.Argument(help="JSON Lines, one request each, as in a batch; `-` reads standard input.")],
    rate: Annotated[float, typer.Option("--rate", help="Maximum requests per second.", min=0.01, max=10_000)] = 10.0,
    at_once: Annotated[int, typer.Option("--at-once", help="Maximum simultaneous requests.", min=1, max=64)] = 4,
    refresh: Annotated[bool, typer.Option("--refresh", help="Ask engines even for cached answers.")] = False,
    gateway_url: Annotated[
        str | None, typer.Option("--gateway-url", help="The data listener; default: ask the gateway.", envvar="GATEHOUSE_GATEWAY_URL")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option("--api-key", help="The key to send them with; default: the profile's.", envvar="GATEHOUSE_API_KEY")
    ] = None,
) -> None:
    """Sends each request of a file, as a client with this key, so that its answer is cached.

    The requests pass everything that a client's pass, and cost what they cost. Answers are kept for the tenant of the key.
    """
    url, key, holder, tls = data_listener(session, gateway_url, api_key)
    with httpx.Client(base_url=url, timeout=TIMEOUT, **with_key(url, key, holder, tls)) as client:
        warming = Warming(client, session, refresh)
        try:
            _run(warming, _lines(file), rate, at_once)
        finally:
            warming.stopped.set()
            warming.progress(last=True)
    session.out.one({name: warming.counts[name] for name in ("kept", "there", "not_kept", "failed")})
    if warming.counts["failed"]:
        raise CommandError(f"{warming.counts['failed']} requests failed")


def _run(warming: Warming, lines: Iterator[tuple[int, bytes]], rate: float, at_once: int) -> None:
    """Sends the lines: at most `at_once` at a time and `rate` a second. Reads a line only when it can be sent."""
    room, due = threading.BoundedSemaphore(at_once), time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        try:
            for number, text in lines:
                try:
                    line = _LINE.decode(text)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    warming.fails(f"line {number}", f"is not a request: {str(error)[:200]}")
                    continue
                if line.method != "POST" or not line.url.startswith("/v1/") or len(text) > MOST_LINE:
                    warming.fails(
                        f"line {number}", "is not a request: `method` must be POST, `url` a path under /v1/, and the line at most 16 MiB"
                    )
                    continue
                while not room.acquire(timeout=PROGRESS_SECONDS):
                    warming.progress()
                warming.progress()
                time.sleep(max(0.0, due - time.monotonic()))
                due = max(due, time.monotonic()) + 1 / rate  # what was missed is not made up for
                pool.submit(warming.ask, number, line).add_done_callback(lambda _: room.release())
        except KeyboardInterrupt:
            warming.stopped.set()
            pool.shutdown(cancel_futures=True)
            raise


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as source:
            for number, line in enumerate(iter(lambda: source.readline(MOST_LINE + 1), b""), 1):
                if line.strip(_BLANK):
                    yield number, line
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror or error}") from None


def _wait(response: httpx.Response) -> float:
    """Seconds until the next try, as the gateway says."""
    try:
        return min(max(float(response.headers.get("retry-after", "1")), 0.1), MOST_WAIT)
    except ValueError:
        return 1.0
