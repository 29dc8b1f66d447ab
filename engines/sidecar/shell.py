"""The HTTP shell that every sidecar runtime shares: one process, one model, one Unix socket.

Life of a sidecar
    A supervisor starts ``python -m engines.llamacpp`` (or ``engines.onnx``) and writes one JSON line, a
    :class:`gateway.core.specs.SidecarSpec`, on its standard input. The pipe then stays open as the lifeline: end of file on
    it means that the supervisor is dead (a thread reads it; nothing polls). The process ends at once, unless requests are under
    way, which other processes may still wait for: these it finishes first, as if it were told to drain.

States
    ``starting -> loading -> ready -> draining -> stopped``, and ``failed`` with a reason. ``GET /health`` answers in every
    state with HTTP 200. A load that fails leaves the process up for ``FAILED_LINGER`` seconds in the state ``failed``, so
    that the supervisor can read the reason; it also prints one line on standard error and then exits with code 1.
    ``POST /control/drain`` and SIGTERM do the same: no new work, the requests under way finish (at most
    ``spec.drain_timeout`` seconds), the process exits with code 0. SIGINT is ignored: Ctrl-C in a terminal reaches the
    whole process group, and draining is the supervisor's decision.

A runtime
    implements :class:`Runtime` and calls :func:`run`. Its handlers take a :class:`Request` and return a :class:`Response`
    or a :class:`Stream`; they raise :class:`ApiError` for everything a client should read. The shell cancels a handler
    when its client goes away (the coroutine sees ``CancelledError``, a stream's iterator is closed) and when the deadline
    of ``x-gatehouse-deadline-ms`` has passed (504, or an SSE error event after the first byte).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
import uvicorn
import uvloop

from engines.confinement import Confinement, confine, rather_me
from engines.sidecar.gathering import GatheringProtocol
from engines.sidecar.http import (
    WORKING_SECONDS,
    ApiError,
    Found,
    Handler,
    HandlerRun,
    Receive,
    Request,
    Response,
    Router,
    Scope,
    Send,
    Stream,
    overloaded,
    send_whole,
)
from engines.sidecar.loading import LoadError, cache_folder, named_beside, readable, shell_options
from engines.sidecar.memory import resident_memory
from gateway.core.specs import SidecarSpec
from gateway.wire.table import is_inference

__all__ = ["ApiError", "Handler", "Request", "Response", "Runtime", "Sidecar", "Stream", "overloaded", "run"]

FAILED_LINGER = 5.0
"""Seconds for which a sidecar that failed to load still answers ``/health``."""
STUCK_SECONDS = 2.0
"""How long the event loop may take to hear that the supervisor is dead; one that takes longer is blocked."""
LAST_SECONDS = 5.0
"""What the end takes at most after the last request."""
MAX_SOCKET_PATH = 99
"""Longest path of a Unix socket in bytes (the kernel's limit is 107)."""


class Runtime(Protocol):
    """What a sidecar runs. Constructed with the spec; nothing slow may happen before `load`."""

    def load(self) -> None:
        """Check the files and load the model; blocking, called once in a thread of its own. Raises `LoadError`."""

    async def start(self) -> None:
        """Start the threads and tasks that serve. Called on the event loop after `load`."""

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        """(method, path template) -> handler. Asked once, before `load`; served only in the state `ready`."""

    def health(self) -> dict[str, Any]:
        """The runtime's fields of `/health`: device, sha256, slots, in_use, queue, kv_used, tokens_per_second, ..."""

    def metrics(self) -> str:
        """Lines in the Prometheus text format, ending with a newline, or an empty string."""

    async def aclose(self) -> None:
        """End threads and free the model. Called once, after the last request; must be safe if `load` failed."""


class Sidecar:
    """The ASGI application and the life cycle around one runtime."""

    def __init__(
        self,
        spec: SidecarSpec,
        runtime: Runtime,
        place: SocketPlace | None = None,
        confinement: Confinement | None = None,
        last: Callable[[], None] = lambda: None,
    ) -> None:
        self.spec = spec
        self._last = last
        self._place = place or SocketPlace(spec.socket)
        self._confinement = confinement or Confinement(reason="not confined")
        self.runtime = runtime
        self.state = "starting"
        self.reason: str | None = None
        self.reason_code: str | None = None
        self.active = 0
        self._router = Router(runtime.routes())
        self._max_body = shell_options(spec.options).max_body_bytes
        self._working = float(spec.options.get("working_interval", WORKING_SECONDS))
        self._counts: dict[tuple[str, int], int] = {}
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()

    # -- life cycle ---------------------------------------------------------------------------------------------------

    async def serve(self) -> int:
        """Listen, load, serve until drained; returns the exit code."""
        sock = self._place.bind()
        server = _server(self)
        await server.startup(sockets=[sock])
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.drain)
        try:
            code = await self._live()
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            server.should_exit = True
            self._place.leave()  # while the socket is open: until then no other file can have its inode
            await server.shutdown(sockets=[sock])
        return code

    async def _live(self) -> int:
        self.state = "loading"
        error = await self._load()
        if error is not None:
            if self._stop.is_set():
                return 1
            self.state, self.reason, self.reason_code = "failed", str(error), getattr(error, "code", "load_failed")
            print(f"engine {self.spec.name}: {self.reason}", file=sys.stderr, flush=True)
            await _wait(self._stop, FAILED_LINGER)
            await self.runtime.aclose()
            return 1
        await self.runtime.start()
        if not self._stop.is_set():
            self.state = "ready"
        await self._stop.wait()
        await self._drained()
        await self.runtime.aclose()
        self.state = "stopped"
        return 0

    async def _load(self) -> BaseException | None:
        """Load in a daemon thread, so that SIGTERM during a long load ends the process without waiting for it."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[BaseException | None] = loop.create_future()

        def finish(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(error)

        def work() -> None:
            error: BaseException | None = None
            try:
                self.runtime.load()
            except LoadError as exc:
                error = exc
            except Exception as exc:  # noqa: BLE001 - boundary: whatever a native library raises becomes the state `failed`
                sys.excepthook(type(exc), exc, exc.__traceback__)  # the traceback, which the reason below lacks
                error = LoadError("load_failed", f"{self.spec.model}: {type(exc).__name__}: {exc}")
            try:
                loop.call_soon_threadsafe(finish, error)
            except RuntimeError:
                pass  # the loop was closed: the process is ending

        threading.Thread(target=work, name="load", daemon=True).start()
        stop = asyncio.ensure_future(self._stop.wait())
        waiting: set[asyncio.Future[Any]] = {done, stop}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            self._place.leave()
            self._last()
            os._exit(0)  # nothing was served yet, and a native load cannot be interrupted
        stop.cancel()
        return done.result()

    def drain(self) -> None:
        """Take no new work; the process ends when the requests in progress have finished."""
        if self.state in ("ready", "loading", "starting"):
            self.state = "draining"
        self._stop.set()

    async def _drained(self) -> None:
        end = time.monotonic() + self.spec.drain_timeout
        while self.active and time.monotonic() < end:
            self._changed.clear()
            await _wait(self._changed, end - time.monotonic())

    # -- ASGI ---------------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        method, path = scope["method"], scope["path"]
        headers = dict(scope["headers"])
        status, label = 499, "other"
        self.active += 1
        try:
            body = await self._body(receive, headers)
            if body is None:
                return
            handler, params, label = self._own(method, path) or self._route(method, path)
            request = Request(method, path, headers, body, params, scope["query_string"])
            status = await HandlerRun(request, handler, receive, send, self._working).run()
        except ApiError as error:
            status = error.status
            await send_whole(send, Response(error.body(), status=error.status, headers=error.headers))
        finally:
            self.active -= 1
            self._changed.set()
            key = (label, status)
            self._counts[key] = self._counts.get(key, 0) + 1

    async def _body(self, receive: Receive, headers: dict[bytes, bytes]) -> bytes | None:
        """The whole body; None if the client left before it was complete."""
        length = headers.get(b"content-length")
        if length is not None and int(length) > self._max_body:
            raise self._too_large()
        message = await receive()
        body: bytes = message.get("body", b"")
        if len(body) > self._max_body:
            raise self._too_large()
        if not message.get("more_body"):
            return body if message["type"] == "http.request" else None
        parts = bytearray(body)
        while message.get("more_body"):
            message = await receive()
            if message["type"] != "http.request":
                return None
            parts += message.get("body", b"")
            if len(parts) > self._max_body:
                raise self._too_large()
        return bytes(parts)

    def _too_large(self) -> ApiError:
        message = f"the body is larger than {self._max_body} bytes"
        return ApiError(413, message, code="request_too_large", headers=((b"connection", b"close"),))

    def _own(self, method: str, path: str) -> Found | None:
        """The paths that answer in every state."""
        if path == "/health" and method == "GET":
            return self._health, {}, path
        if path == "/metrics" and method == "GET":
            return self._metrics, {}, path
        if path == "/control/drain" and method == "POST":
            return self._drain, {}, path
        return None

    def _route(self, method: str, path: str) -> Found:
        found = self._router.find(method, path)
        if found is None:
            if method == "POST" and is_inference(path.encode()):  # the request names a model of another kind
                raise ApiError(400, f"this model does not serve {path[:200]}", code="unsupported_operation", param="model")
            raise ApiError(404, f"no such path: {method} {path}", code="not_found")
        if self.state == "ready":
            return found
        if self.state in ("starting", "loading"):
            raise ApiError(503, "the model is being loaded", kind="engine_error", code="model_loading", headers=((b"retry-after", b"1"),))
        if self.state == "failed":
            if self.reason_code == "insufficient_memory":
                raise ApiError(507, self.reason or "", kind="engine_error", code="insufficient_memory")
            raise ApiError(503, f"the engine failed: {self.reason}", kind="engine_error", code="engine_failed")
        raise overloaded("the engine is draining")

    def health(self) -> dict[str, Any]:
        """The body of `GET /health`."""
        spec = self.spec
        report: dict[str, Any] = {
            "state": self.state, "reason": self.reason, "reason_code": self.reason_code, "name": spec.name, "runtime": spec.runtime,
            "device": spec.device, "wanted": spec.wanted, "model": spec.model, "sha256": None, "slots": spec.slots,
            "in_use": 0, "queue": 0, "kv_used": 0.0, "tokens_per_second": 0.0, "vram_bytes": 0, "pid": os.getpid(),
            "resident_bytes": resident_memory(), "confinement": self._confinement.report(),
        }  # fmt: skip
        if self.state in ("ready", "draining"):
            report.update(self.runtime.health())
        return report

    async def _health(self, request: Request) -> Response:
        return Response(msgspec.json.encode(self.health()))

    async def _metrics(self, request: Request) -> Response:
        lines = ["# TYPE gatehouse_sidecar_requests_total counter"]
        lines += [f'gatehouse_sidecar_requests_total{{path="{p}",status="{s}"}} {n}' for (p, s), n in sorted(self._counts.items())]
        lines += ["# TYPE gatehouse_sidecar_active gauge", f"gatehouse_sidecar_active {self.active}", ""]
        text = "\n".join(lines)
        if self.state in ("ready", "draining"):
            text += self.runtime.metrics()
        return Response(text.encode(), content_type=b"text/plain; version=0.0.4; charset=utf-8")

    async def _drain(self, request: Request) -> Response:
        self.drain()
        return Response(msgspec.json.encode({"state": self.state}), status=202)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most this long."""
    try:
        await asyncio.wait_for(event.wait(), max(0.0, seconds))
    except TimeoutError:
        pass


class SocketPlace:
    """The path of the sidecar's Unix socket. A process that ends late leaves the file to its successor."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._bound: tuple[int, int] | None = None

    def bind(self) -> socket.socket:
        """A listening socket of mode 0600; an old one is replaced. Raises OSError or ValueError (too long)."""
        if len(os.fsencode(self._path)) > MAX_SOCKET_PATH:
            raise ValueError(f"socket path is longer than {MAX_SOCKET_PATH} bytes: {self._path}")
        self._path.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            sock.bind(str(self._path))
        finally:
            os.umask(mask)
        self._bound = self._file()
        sock.listen(2048)
        sock.setblocking(False)
        return sock

    def leave(self) -> None:
        """Remove the file, if it is still this process's own."""
        if self._bound is not None and self._file() == self._bound:
            self._path.unlink(missing_ok=True)

    def _file(self) -> tuple[int, int] | None:
        """Identity of the present file. While the socket is open its inode cannot be reused."""
        try:
            found = self._path.lstat()
        except OSError:
            return None
        return found.st_dev, found.st_ino


def _server(app: Sidecar) -> uvicorn.Server:
    """uvicorn without its main loop (which ticks ten times a second) and without its signal handlers."""
    config = uvicorn.Config(
        app, http=GatheringProtocol, ws="none", lifespan="off", interface="asgi3", log_config=None, log_level="critical", access_log=False,
        proxy_headers=False, server_header=False, date_header=False, timeout_keep_alive=3600, timeout_graceful_shutdown=1,
    )  # fmt: skip
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    return server


def read_spec(line: bytes) -> SidecarSpec:
    """Parse a supervisor's settings. Raises ValueError."""
    try:
        return msgspec.json.decode(line, type=SidecarSpec)
    except msgspec.DecodeError as exc:
        raise ValueError(f"settings on standard input: {exc}") from None


class Lifeline:
    """Ends the process when `descriptor` reaches end of file, from a thread, so even if the event loop is blocked. Requests under way are
    finished first, as long as the loop turns and within the sidecar's drain timeout."""

    def __init__(self, descriptor: int, place: SocketPlace, last: Callable[[], None]) -> None:
        self._descriptor, self._place, self._last = descriptor, place, last
        self._sidecar: Sidecar | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turned = threading.Event()
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def serves(self, sidecar: Sidecar) -> None:
        """Called on the loop: from now on there may be requests."""
        self._sidecar, self._loop = sidecar, asyncio.get_running_loop()

    def _watch(self) -> None:
        while os.read(self._descriptor, 4096):
            pass
        sidecar = self._sidecar
        if sidecar is not None and sidecar.active and self._drains(sidecar):
            time.sleep(sidecar.spec.drain_timeout + LAST_SECONDS)  # the process ends before, when the last request has
        self._place.leave()
        self._last()
        os._exit(0)

    def _drains(self, sidecar: Sidecar) -> bool:
        """Tells the loop to drain; whether it has heard."""

        def drain() -> None:
            self._turned.set()
            sidecar.drain()

        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(drain)
        except RuntimeError:
            return False  # it is closed: the process is ending
        return self._turned.wait(STUCK_SECONDS)


def run(
    make: Callable[[SidecarSpec], Runtime],
    confined: Callable[[SidecarSpec], Confinement] | None = None,
    last: Callable[[], None] = lambda: None,
) -> int:
    """Entry point of a sidecar process: read settings from standard input, then serve; returns the exit code (0 drained, 1 failed).

    confined: confines the process, by default to its model's files. last: called where the process ends without closing its runtime,
    because its supervisor is gone or a load is interrupted.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rather_me()
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)  # unbuffered: what follows the line belongs to the lifeline
        if not byte:
            break
        line += byte
    try:
        spec = read_spec(bytes(line))
        confinement = (confined or to_its_model)(spec)
        place = SocketPlace(spec.socket)
        lifeline = Lifeline(0, place, last)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_main(spec, make, place, confinement, lifeline, last))
    except (ValueError, OSError, LoadError) as exc:
        print(f"sidecar: {exc}", file=sys.stderr, flush=True)
        return 1


def to_its_model(spec: SidecarSpec) -> Confinement:
    """Confines the process while it has one thread and has not touched the model. Temporary files go to the socket's folder."""
    own, cache = Path(spec.socket).parent, cache_folder(spec.state_dir, spec.name)
    with suppress(OSError):  # a runtime that needs the folder reports the error itself
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["TMPDIR"] = str(own)
    devices = spec.device != "cpu"
    reads = (*readable(Path(spec.model)), *named_beside(Path(spec.model), spec.options))
    return confine(reads=reads, writes=(own, cache), devices=devices, files=shell_options(spec.options).confine)


async def _main(
    spec: SidecarSpec,
    make: Callable[[SidecarSpec], Runtime],
    place: SocketPlace,
    confinement: Confinement,
    lifeline: Lifeline,
    last: Callable[[], None],
) -> int:
    sidecar = Sidecar(spec, make(spec), place, confinement, last)
    lifeline.serves(sidecar)
    return await sidecar.serve()
