"""The gRPC listener: `inference.GRPCInferenceService` (the Open Inference Protocol), health and reflection, by grpcio's asyncio server.

The handlers get and give bytes. A ModelInfer becomes the REST request that it stands for and passes the same pipeline, with an Exchange of
its own, so no policy knows of gRPC. A caller is known before the message is read, and again in the pipeline. Loaded only where
`listen.grpc` is set.

Each process that serves requests has a listener of its own on the same address (SO_REUSEPORT): the kernel spreads the connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from importlib.metadata import version
from typing import Any, Final

import grpc

from gateway.core.deadlines import within
from gateway.core.errors import ClientGone, ConfigError, GatehouseError, InternalError, RequestError
from gateway.core.proofs import PROOF, note_target, proven
from gateway.core.slices import at_once, in_slices
from gateway.core.snapshot import Snapshot
from gateway.core.specs import ListenSpec
from gateway.core.tasks import TaskOwner
from gateway.core.types import Headers, Peer
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.fetch import metadata
from gateway.pipeline.memory import STEP
from gateway.pipeline.pipeline import LARGE, serve
from gateway.pipeline.plane import DataPlane
from gateway.pipeline.stream import MAX_ANSWER_BYTES
from gateway.server.grpc_calls import (
    CallClient,
    Failed,
    PeerCalls,
    address_of_peer,
    failed,
    headers_of,
    peer_of_call,
    request_id_of,
    too_large,
)
from gateway.server.grpc_reflection import HEALTH, REFLECTIONS, SERVICE, descriptor, health, health_service, reflected
from gateway.server.head import check_head
from gateway.server.health import Health
from gateway.server.login import identified, owner_of
from gateway.server.refusals import head_too_large
from gateway.server.tls import Contexts, Material
from gateway.telemetry.metrics import PHASES
from gateway.wire.oip import codec
from gateway.wire.oip.messages import Asked, infer_request, infer_response, metadata_response, named
from gateway.wire.oip.protobuf import field, fields, integer

SPARE: Final = 64 * 1024
"""Bytes of a message besides the tensors."""
WINDOW: Final = 8
"""Requests of one ModelStreamInfer that are under way at once."""
WATCH_SECONDS: Final = 1.0
_HEADER_LENGTH: Final = codec.HEADER_LENGTH.encode()
log = logging.getLogger("gatehouse.server")
Handler = Callable[[Any], Coroutine[Any, Any, None]]


class Call:
    """A call, with its caller. snapshot: the one that admitted the peer."""

    __slots__ = ("headers", "owner", "peer", "remaining", "request_id", "snapshot")

    def __init__(self, headers: Headers, peer: Peer, request_id: bytes, remaining: float | None, snapshot: Snapshot) -> None:
        self.headers, self.peer, self.request_id, self.remaining, self.snapshot = headers, peer, request_id, remaining, snapshot
        self.owner = ""


class GrpcListener(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Life: `start`, `leave`. contexts: what TLS there is; their material is asked for at each handshake."""

    def __init__(self, plane: DataPlane, ready: Health, listen: ListenSpec, contexts: Contexts | None) -> None:
        self._plane, self._ready, self._contexts = plane, ready, contexts
        self._owner = TaskOwner("gRPC")
        self._leaving = False
        self._calls = PeerCalls()
        self._waits: set[within] = set()
        """Of streams for their next request."""
        self._description = descriptor()
        keep_alive = [("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 20_000)]
        patience = int(max(1.0, listen.header_timeout) * 1000)
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=listen.max_connections,
            options=[
                *keep_alive,
                ("grpc.so_reuseport", 1),
                ("grpc.max_receive_message_length", listen.max_body_bytes + SPARE),
                ("grpc.max_send_message_length", MAX_ANSWER_BYTES + SPARE),
                ("grpc.max_metadata_size", listen.max_header_bytes),
                ("grpc.absolute_max_metadata_size", 2 * listen.max_header_bytes),
                ("grpc.max_concurrent_streams", 128),
                ("grpc.max_allowed_incoming_connections", listen.max_connections),
                ("grpc.server_handshake_timeout_ms", patience),
                ("grpc.http2.settings_timeout", patience),  # until a client acknowledges them, no bound of metadata counts
                ("grpc.max_connection_idle_ms", int(max(1.0, listen.keep_alive_timeout) * 1000)),
                ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small message could become a huge one
            ],
        )
        self._server.add_generic_rpc_handlers((self,))
        self._methods: dict[str, Handler] = {
            f"/{SERVICE}/ServerLive": self._live,
            f"/{SERVICE}/ServerReady": self._is_ready,
            f"/{SERVICE}/ServerMetadata": self._about,
            f"/{SERVICE}/ModelReady": self._model_ready,
            f"/{SERVICE}/ModelMetadata": self._model_metadata,
            f"/{SERVICE}/ModelInfer": self._infer,
            f"/{SERVICE}/ModelStreamInfer": self._stream,
            f"/{HEALTH}/Check": self._check,
            f"/{HEALTH}/Watch": self._watch,
            **{f"/{name}/ServerReflectionInfo": self._reflect for name in REFLECTIONS},
        }

    async def start(self, address: str) -> int:
        """Listens; the port. Raises ConfigError."""
        try:
            if self._contexts is None:
                port: int = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, self._credentials(self._contexts))
        except RuntimeError:
            raise ConfigError(f"cannot listen on {address}", path="listen.grpc") from None
        await self._server.start()
        return port

    def _credentials(self, contexts: Contexts) -> Any:
        used: list[Material] = [contexts.current.material]

        def renewed() -> Any:
            material = contexts.current.material
            if material is used[0]:
                return None
            used[0] = material
            return _configured(material)

        return grpc.dynamic_ssl_server_credentials(_configured(used[0]), renewed, require_client_authentication=used[0].require_client)

    async def leave(self, grace: float) -> None:
        """Takes no further call, and no further request on a stream; what runs may finish within so many seconds."""
        self._leaving = True
        for wait in self._waits:
            wait.end()
        await self._server.stop(grace)
        await self._owner.aclose()

    # --- grpcio's side

    def service(self, details: Any) -> Any:
        handler = self._methods.get(details.method)
        if handler is None:
            return None  # UNIMPLEMENTED
        if too_large(details.invocation_metadata or (), self._plane.current().spec.listen):
            handler = self._refused
        return grpc.stream_stream_rpc_method_handler(self._guarded(handler))

    def _guarded(self, handler: Handler) -> Callable[[Any, Any], Awaitable[None]]:
        async def run(_: Any, context: Any) -> None:
            try:
                with self._calls.entered(address_of_peer(context.peer()), self._plane.current().spec.listen):
                    await handler(context)
            except Failed as error:
                _end(context, error)
            except GatehouseError as error:
                self._plane.metrics.denied(error.status, error.code)
                _end(context, failed(error, self._plane.next_id()))
            except asyncio.CancelledError:
                raise
            except Exception as error:  # boundary: whatever goes wrong in a call ends that call alone
                log.error("a call of gRPC failed: %r", error, exc_info=error)
                _end(context, failed(InternalError("Internal error."), self._plane.next_id()))

        return run

    async def _refused(self, context: Any) -> None:
        raise head_too_large(self._plane.current().spec.listen.max_header_bytes)

    async def _read(self, context: Any, seconds: float) -> bytes:
        """The one message of a call. Raises RequestError."""
        try:
            async with within(seconds):
                message = await context.read()
        except TimeoutError:
            raise RequestError("The message was not received in time.", code="request_timeout", status=408) from None
        if message is grpc.aio.EOF:
            raise RequestError("The call has no message.", code="invalid_message")
        return bytes(message) if not isinstance(message, bytes) else message

    # --- without a credential, as over HTTP. A message is held in memory while it arrives: those that say nothing are not read, and the
    # others, of a few bytes, have the time of a head

    async def _asked(self, context: Any) -> bytes:
        return await self._read(context, self._plane.current().spec.listen.header_timeout)

    async def _live(self, context: Any) -> None:
        await context.write(integer(1, 1))

    async def _is_ready(self, context: Any) -> None:
        await context.write(integer(1, self._ready.welcome()))

    async def _about(self, context: Any) -> None:
        extensions = b"".join(field(3, name) for name in codec.EXTENSIONS)
        await context.write(field(1, "gatehouse") + field(2, version("gatehouse")) + extensions)

    async def _check(self, context: Any) -> None:
        if health_service(await self._asked(context)) not in ("", SERVICE):
            raise Failed("NOT_FOUND", "There is no such service here.")
        await context.write(health(self._ready.welcome()))

    async def _watch(self, context: Any) -> None:
        known = health_service(await self._asked(context)) in ("", SERVICE)
        told = b""
        while not self._plane.draining or told == b"":
            now = health(self._ready.welcome()) if known else integer(1, 3)  # SERVICE_UNKNOWN
            if now != told:
                told = now
                await context.write(told)
            await asyncio.sleep(WATCH_SECONDS)
        await context.write(health(False))

    async def _reflect(self, context: Any) -> None:
        while True:
            try:
                async with within(self._plane.current().spec.listen.header_timeout):
                    message = await context.read()
            except TimeoutError:
                raise Failed("DEADLINE_EXCEEDED", "The stream was idle for too long.") from None
            if message is grpc.aio.EOF:
                return
            await context.write(reflected(message, self._description))

    # --- through the pipeline

    async def _arrived(self, context: Any, method: str) -> Call:
        """Who calls, before the message is read. Raises GatehouseError."""
        plane = self._plane
        headers, snapshot = headers_of(context.invocation_metadata() or ()), plane.current()
        peer = peer_of_call(plane, context.peer(), context.auth_context() or {}, headers)
        call = Call(headers, peer, request_id_of(headers, plane), context.time_remaining(), snapshot)
        if PROOF in headers:
            note_target(headers, b"POST", f"/{SERVICE}/{method}".encode())
        try:
            call.owner = owner_of(await identified(plane, headers, peer, call.request_id))
        except GatehouseError as error:
            plane.metrics.denied(error.status, error.code)
            raise failed(error, call.request_id) from None
        proven(headers)
        return call

    def _judged(self, context: Any, call: Call) -> None:
        """Judges again who calls, if a reload may have changed who is let in, or which proxy is trusted. Raises Failed."""
        snapshot = self._plane.current()
        if call.snapshot is snapshot:
            return
        try:
            call.peer = peer_of_call(self._plane, context.peer(), context.auth_context() or {}, call.headers)
        except GatehouseError as error:
            raise failed(error, self._plane.next_id()) from None
        call.snapshot = snapshot

    async def _message(self, context: Any, call: Call) -> bytes:
        """The message, while memory of the caller's is held for it. Raises GatehouseError when there is none."""
        memory, listen = self._plane.memory, self._plane.current().spec.listen
        memory.take(call.owner, STEP, listen)
        try:
            return await self._read(context, listen.body_timeout)
        finally:
            memory.give_back(call.owner, STEP)

    async def _infer(self, context: Any) -> None:
        call = await self._arrived(context, "ModelInfer")
        client, answer = await self._inferred(call, await self._message(context, call), call.request_id)
        try:
            context.set_trailing_metadata(client.shown())
            await context.write(answer)
        finally:
            client.taken()

    async def _inferred(self, call: Call, message: bytes, request_id: bytes) -> tuple[CallClient, bytes]:
        """The ModelInferResponse, which its client has not taken yet. Raises Failed."""
        plane, size = self._plane, len(message)
        limits = plane.current().spec.listen
        try:
            plane.memory.take(call.owner, size, limits)
        except GatehouseError as error:
            raise failed(error, request_id) from None
        try:
            try:
                reading = infer_request(message, limits.max_body_bytes)
                asked: Asked = await in_slices(reading) if size > LARGE else at_once(reading)
            except GatehouseError as error:
                plane.metrics.denied(error.status, error.code)
                raise failed(error, request_id) from None
            headers = {**call.headers, _HEADER_LENGTH: b"%d" % asked.length}
            client = await self._exchanged(call, asked.path, asked.body, headers, request_id, serve)
            try:
                body = client.body()
                writing = infer_response(client.headers.get(_HEADER_LENGTH), body, asked.id)
                return client, await in_slices(writing) if len(body) > LARGE else at_once(writing)
            except BaseException as error:
                client.taken()
                if isinstance(error, GatehouseError):
                    raise failed(error, request_id) from None
                raise
        finally:
            plane.memory.give_back(call.owner, size)

    async def _exchanged(
        self,
        call: Call,
        path: bytes,
        body: bytes,
        headers: Headers,
        request_id: bytes,
        phases: Callable[[Exchange], Coroutine[Any, Any, None]],
    ) -> CallClient:
        """The client of an exchange that has ended."""
        plane = self._plane
        wrong = check_head(b"GET", path, {b"host": b""}, 0)  # dot segments in a model's name
        if wrong is not None:
            raise failed(wrong, request_id)
        client = CallClient(plane, call.owner)
        exchange = Exchange(plane, plane.current(), client, path, headers, call.peer, request_id)
        if call.remaining is not None and (ends := plane.now + call.remaining) < exchange.deadline:
            exchange.deadline = exchange.until = exchange.wake_at = ends
            exchange.hurried = True
        exchange.body = body
        exchange.clock.mark(PHASES[0])
        exchange.run(phases(exchange))
        try:
            await asyncio.shield(client.done)
        except asyncio.CancelledError:
            exchange.cancel(ClientGone("The client cancelled the call."))
            client.taken()
            raise
        return client

    async def _model_ready(self, context: Any) -> None:
        call = await self._arrived(context, "ModelReady")
        name, number = named(await self._message(context, call))
        client = await self._exchanged(call, codec.model_path(name, number, "ready"), b"", call.headers, call.request_id, metadata)
        client.taken()
        context.set_trailing_metadata(client.shown())
        try:
            client.body()
        except Failed as error:
            if dict(error.trailing).get("x-gatehouse-code") not in ("no_healthy_endpoint", "model_loading"):
                raise
            await context.write(b"")  # not ready: false is not written
        else:
            await context.write(integer(1, 1))

    async def _model_metadata(self, context: Any) -> None:
        call = await self._arrived(context, "ModelMetadata")
        name, number = named(await self._message(context, call))
        client = await self._exchanged(call, codec.model_path(name, number), b"", call.headers, call.request_id, metadata)
        client.taken()
        answer = metadata_response(client.body())
        context.set_trailing_metadata(client.shown())
        await context.write(answer)

    async def _stream(self, context: Any) -> None:
        """Answers in the order of the requests; of those in a sequence, one after the other."""
        call = await self._arrived(context, "ModelStreamInfer")
        call.remaining = None  # the deadline of the stream, at which grpcio cancels it, is not that of each request
        waiting: asyncio.Queue[asyncio.Task[None] | None] = asyncio.Queue(WINDOW)
        before: asyncio.Task[None] | None = None
        try:
            while True:
                message = await self._next(context)
                if message is None or message is grpc.aio.EOF:
                    break
                while waiting.full() or (before is not None and not before.done() and _in_sequence(message)):
                    first = waiting.get_nowait()
                    assert first is not None
                    await first
                before = self._owner.spawn(self._answered(context, call, message, before), name="stream")
                waiting.put_nowait(before)
            while not waiting.empty():
                first = waiting.get_nowait()
                assert first is not None
                await first
            if message is None:
                raise Failed(
                    "UNAVAILABLE", "The gateway takes no more on this stream; what has no answer was not processed. Open it again."
                )
        finally:
            while not waiting.empty():
                if (left := waiting.get_nowait()) is not None:
                    left.cancel()

    def _is_leaving(self) -> bool:
        return self._leaving

    async def _next(self, context: Any) -> Any:
        """The next request of a stream; EOF behind the last; None when the listener leaves. Raises Failed."""
        if self._is_leaving():
            return None
        wait = within(self._plane.current().spec.listen.sockets.idle_timeout)
        self._waits.add(wait)
        try:
            async with wait:
                return await context.read()
        except TimeoutError:
            if self._is_leaving():
                return None
            raise Failed("DEADLINE_EXCEEDED", "The stream was idle for too long.") from None
        finally:
            self._waits.discard(wait)

    async def _answered(self, context: Any, call: Call, message: bytes, before: asyncio.Task[None] | None) -> None:
        """Answers one request of a stream, behind the one before it. An error is an answer, too."""
        client: CallClient | None = None
        try:
            self._judged(context, call)
            client, answer = await self._inferred(call, message, self._plane.next_id())
            written = field(2, answer)
        except Failed as error:
            written = field(1, f"[{error.status}] {error.message}") + field(2, _name_of(message))
        if before is not None:
            await asyncio.wait([before])
        try:
            await context.write(written)
        finally:
            if client is not None:
                client.taken()


def _configured(material: Material) -> Any:
    pair = (material.key.reveal().encode(), material.cert.encode())
    return grpc.ssl_server_certificate_configuration([pair], material.client_ca.encode() or None)


def _end(context: Any, error: Failed) -> None:
    context.set_code(getattr(grpc.StatusCode, error.status))
    context.set_details(error.message)
    context.set_trailing_metadata(tuple((name, value.encode("latin-1", "replace").decode("latin-1")) for name, value in error.trailing))


def _in_sequence(message: bytes) -> bool:
    """Whether a request may be one of a sequence, which a model answers in their order."""
    return b"sequence_id" in message


def _name_of(message: bytes) -> bytes:
    """The id of a request that failed, as a ModelInferResponse has it."""
    try:
        return b"".join(
            [field(3, bytes(value)) for number, _, value in fields(memoryview(message)) if number == 3 and not isinstance(value, int)]
        )
    except GatehouseError:
        return b""
