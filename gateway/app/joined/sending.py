"""Sends orders to a machine: model files in pieces, from where the last try ended, then the order itself."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from gateway.config.expand import OnMachine
from gateway.core.errors import EngineError, GatehouseError
from gateway.core.placing import PIECE, Order, Received
from gateway.transport.ask import Reply, ask
from gateway.transport.pool import EndpointClient

log = logging.getLogger("gatehouse.machines")
T = TypeVar("T")
PIECE_SECONDS: Final = 60.0
"""The deadline for one piece. What has arrived by then is kept."""
ASK_SECONDS: Final = 5.0
VERIFY_SECONDS: Final = 900.0
VERIFY_LOOK: Final = 0.2
TRIES: Final = 5
"""Tries in a row without a byte that arrived."""
PAUSE: Final = 1.0


class Refused(GatehouseError):
    """The machine does not take it; the text is its own."""


class Sending:
    """Sends orders to one machine. Life: `aclose`."""

    def __init__(self, machine: OnMachine) -> None:
        self.machine = machine.machine
        self._client = EndpointClient(f"https://{machine.host}#{machine.place.text}", tls=machine.tls, max_idle=1)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def file(self, path: Path, size: int, sha256: str) -> int:
        """Returns when the machine has the file and has verified it: how many bytes were sent for that. Raises EngineError where it cannot
        be reached, Refused, OSError for a file that cannot be read."""
        where, sent, failures = f"/v1/files/{sha256}?size={size}", 0, 0
        have = await self._received("GET", where)
        while not have.verified:
            if have.offset >= size and not (size == 0 and sent == 0 and have.offset == 0):
                have = await self._verified(where, size)
                continue
            piece = await asyncio.to_thread(_piece, path, have.offset)
            if not piece and size:
                raise Refused(f"{path.name} is shorter than it was.", code="model_invalid", status=409)
            try:
                found = await self._received("PUT", f"{where}&offset={have.offset}", piece, PIECE_SECONDS)
            except (EngineError, TimeoutError) as error:
                failures += 1
                if failures >= TRIES:
                    raise
                log.info("machine %s: a piece of %s did not arrive (%s): it goes on from there", self.machine, path.name, error)
                await asyncio.sleep(PAUSE)
                found = await self._received("GET", where)
            except Refused as error:
                if error.code not in ("offset_mismatch", "upload_busy") or failures >= TRIES:
                    raise
                failures += 1
                await asyncio.sleep(PAUSE)
                found = await self._received("GET", where)
            if found.offset > have.offset or found.verified:
                failures = 0
            sent += max(0, found.offset - have.offset)
            have = found
            if not size and not have.verified:
                have = await self._verified(where, size)
        return sent

    async def _verified(self, where: str, size: int) -> Received:
        """Waits until the machine has hashed what came. Raises Refused where it was not what was announced."""
        async with asyncio.timeout(VERIFY_SECONDS):
            while True:
                have = await self._received("GET", where)
                if have.verified:
                    return have
                if have.offset < size:
                    raise Refused(
                        "The file that arrived has another SHA-256: it changed, or was altered.", code="checksum_mismatch", status=422
                    )
                await asyncio.sleep(VERIFY_LOOK)

    async def order(self, engine: str, order: Order) -> None:
        """Raises EngineError, Refused."""
        await self._asked("PUT", f"/v1/engines/{engine}", msgspec.json.encode(order))

    async def remove(self, engine: str, fence: int) -> None:
        """Raises EngineError, Refused."""
        await self._asked("DELETE", f"/v1/engines/{engine}?fence={fence}")

    async def _received(self, method: str, path: str, body: bytes = b"", seconds: float = ASK_SECONDS) -> Received:
        return _read(await self._asked(method, path, body, seconds), Received)

    async def _asked(self, method: str, path: str, body: bytes = b"", seconds: float = ASK_SECONDS) -> Reply:
        async with asyncio.timeout(seconds):
            answer = await ask(self._client, method, path, {"content-type": "application/json"}, body)
        if answer.head.status >= 300:
            raise _refused(answer)
        return answer


def _piece(path: Path, offset: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, PIECE, offset)
    finally:
        os.close(descriptor)


def _read(answer: Reply, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError("Its answer is not that of a machine.") from None


def _refused(answer: Reply) -> Refused:
    try:
        error = msgspec.json.decode(answer.body)["error"]
        return Refused(str(error["message"])[:256], code=str(error["code"])[:64], status=answer.head.status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return Refused(f"It answered {answer.head.status}.", code="engine_failed", status=answer.head.status)
