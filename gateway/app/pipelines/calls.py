"""One step of a pipeline: a request of its own, through the whole pipeline of phases, as its caller's, whose client is the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from gateway.app.batches.lines import LineClient
from gateway.core.errors import ClientGone, GatehouseError, InternalError, ModelNotFound, PermissionDenied
from gateway.core.labels import HEADER
from gateway.core.ports import Receiver
from gateway.core.proofs import proven
from gateway.core.standing import MESSAGES
from gateway.core.types import Headers, Peer, Principal, ResponseHead, Usage
from gateway.identity.credentials import invalid_credentials
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.pipeline import NOT_CLEARED, serve

GONE: Final = "The pipeline needs the step no more."
TRACE: Final = b"traceparent"
SAID: Final = frozenset((*MESSAGES, "creator_stopped"))
"""Codes of refusals that say why: they are about the caller, or about a model that the caller may use."""
COMMENT: Final = b": keep-alive\n\n"
"""Keep-alives in a step's stream, which are dropped: the pipeline's own stream has its own."""


class StepClient(LineClient):
    """The client of a step's exchange. step, model: for the record of the pipeline's request. receiver: gets the answer as it comes; None:
    it is gathered. error: why the step has failed. ours: because whoever reads the pipeline's answer does not take it."""

    def __init__(self, outer: Exchange, step: str, model: str, receiver: Receiver | None) -> None:
        principal = outer.principal
        assert principal is not None
        super().__init__(outer.plane, f"{principal.tenant}/{principal.kind}/{principal.id}")
        self.step, self.model = step, model
        self.paused = outer.client.paused
        self.error: GatehouseError | None = None
        self.exchange: Exchange | None = None
        self.ours = False
        self._receiver, self._begun = receiver, False

    def send(self, data: bytes) -> None:
        if self.error is not None:
            return  # what tells of the error; the pipeline tells its own client
        parts = self.reader.feed(data)
        if self._receiver is None:
            self.parts += parts
            return
        try:
            if not self._begun and self.reader.status:
                self._begun = True
                kind = self.reader.headers.get(b"content-type", b"application/json")
                self._receiver.on_head(ResponseHead(self.reader.status, [(b"content-type", kind)]))
            for part in parts:
                if part != COMMENT:
                    self._receiver.on_body(part)
        except GatehouseError as error:
            self._refused(error)
        except Exception:  # boundary: as for the transport, a receiver that fails ends its own reading only
            self._refused(InternalError("The answer of the step could not be passed on."))
            raise

    def _refused(self, error: GatehouseError) -> None:
        """Whoever reads the answer wants no more of it. It is ended from outside: its own relay is in the middle of something."""
        self.error, self.ours = error, True
        if self.exchange is not None:
            asyncio.get_running_loop().call_soon(self.exchange.cancel, ClientGone(GONE))


def of_step(name: str, error: GatehouseError) -> GatehouseError:
    """The error as the caller of the pipeline gets it: it names the step, and no model that the caller may not know of."""
    if isinstance(error, ModelNotFound | PermissionDenied) and error.code not in SAID:
        what = "you may not use the model that it asks"
        if error.code == NOT_CLEARED:
            what = "no engine of the model that it asks may see data with the labels of this request"
        return PermissionDenied(f"The step {name!r} is refused: {what}.", code=error.code if error.status == 403 else None)
    error.message = f"The step {name!r} failed: {error.message}"
    error.interrupts = False
    error.__traceback__ = error.__context__ = error.__cause__ = None  # they hold the step's exchange
    return error


class StepCalls:
    """The requests of one pipeline's steps. name: of the pipeline. until: monotonic seconds, for all of them."""

    def __init__(self, outer: Exchange, name: str, until: float, trace: bytes | None) -> None:
        self._outer, self._name, self._until, self._trace = outer, name, until, trace
        self._clients: list[StepClient] = []
        """The clients of the steps under way."""
        earlier = (outer.detail or {}).get("pipeline")  # the steps of an answer whose form this run is to repair
        self.told: list[dict[str, Any]] = [] if earlier is None else list(earlier["steps"])
        self._over = False

    def tell(self, **told: Any) -> None:
        """Something for the record of the pipeline's request, while that is not written."""
        if self._over:
            return
        self.told.append(told)
        self._outer.detail = {**(self._outer.detail or {}), "pipeline": {"steps": self.told}}

    def end(self) -> None:
        """The pipeline's request ends before its steps, so its record names those under way too."""
        for client in self._clients:
            if client.exchange is not None:
                request = client.exchange.request_id.decode()
                self.tell(step=client.step, model=client.model, request=request, status=ClientGone.status)
        self._over = True

    async def asked(
        self, step: str, model: str, path: bytes, body: bytes, receiver: Receiver | None = None, timeout: float | None = None
    ) -> bytes:
        """The answer; b"" where the receiver has it. timeout: seconds for this step. Raises the step's GatehouseError, which names it.

        The step is under the configuration in force when it begins: engines of an older one may be gone, and its policies have changed."""
        outer = self._outer
        request, peer = outer.request, outer.peer
        assert request is not None
        try:
            caller = await self._caller()
        except GatehouseError as error:
            self.tell(step=step, model=model, status=error.status)
            raise of_step(step, error) from None
        headers: Headers = {b"content-type": b"application/json"}
        if request.labels:
            headers[HEADER] = ",".join(sorted(request.labels)).encode("latin-1")
        if self._trace is not None:
            headers[TRACE] = self._trace
        client = StepClient(outer, step, model, receiver)
        self._clients.append(client)
        # What these headers say is the gateway's own word, so the peer is one whose headers count.
        trusted = Peer(peer.address, True, peer.certificate, chain=peer.chain)
        inner = client.exchange = Exchange(outer.plane, outer.plane.current(), client, path, headers, trusted, outer.plane.next_id())
        until = self._until if timeout is None else min(self._until, outer.plane.now + timeout)
        inner.deadline = inner.until = inner.wake_at = min(inner.deadline, until)
        inner.principal, inner.body = caller, body
        inner.detail = {"pipeline": {"model": self._name, "step": step, "request": outer.request_id.decode()}}
        try:
            inner.run(self._served(inner, client))
            await client.done
        finally:
            inner.cancel(ClientGone(GONE))  # unless it is over
            client.taken()
            client.exchange = None
            self._clients.remove(client)
            self.tell(step=step, model=model, request=inner.request_id.decode(), status=inner.status or client.reader.status or 499)
            self._add(inner.usage)
            if inner.request is not None:
                request.labels |= inner.request.labels  # what has come of labelled data has its labels
        if client.error is not None:
            raise client.error if client.ours else of_step(step, client.error)
        return b"".join(client.parts)

    def _add(self, usage: Usage | None) -> None:
        """Adds what a step has cost, as its record says, to the costs of the request."""
        costs = self._outer.costs
        if costs is not None and usage is not None and usage.currency:
            costs[usage.currency] = costs.get(usage.currency, 0) + usage.cost

    async def _caller(self) -> Principal:
        """Whose step it is, with the rights of this moment: a credential that has ended meanwhile begins no further step. Raises the
        errors of a login."""
        outer = self._outer
        plane, client, peer = outer.plane, outer.client, outer.peer
        if isinstance(client, LineClient) and client.caller is not None:
            return await client.caller()
        headers = dict(outer.headers)
        proven(headers)
        snapshot = plane.current()
        found = snapshot.identity.authenticate(headers, peer)
        principal = await found if isinstance(found, Awaitable) else found
        if principal is None:
            raise invalid_credentials()
        return plane.named.of(principal, headers, snapshot.spec.identity.open_webui) if peer.trusted else principal

    async def _served(self, inner: Exchange, client: StepClient) -> None:
        """`serve`, and the error before anything of it is written."""
        try:
            await serve(inner)
        except GatehouseError as error:
            client.error = client.error or error
            raise
        except Exception:  # boundary: the exchange logs it, and it is a defect of the step
            client.error = InternalError(f"Internal error. The request id is {inner.request_id.decode()}.")
            raise

    def pause(self) -> None:
        for client in self._clients:
            client.paused = True
            if client.exchange is not None:
                client.exchange.pause()

    def resume(self) -> None:
        for client in tuple(self._clients):
            client.paused = False
            if client.exchange is not None:
                client.exchange.resume()
