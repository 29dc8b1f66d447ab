"""The client's side of an upload: begin or find it again, send from the offset that the gateway has, complete. Patient, but not forever."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from admin.cli.archive import Parcel
from admin.cli.client import LONG, ApiError, Client, name
from admin.cli.errors import CommandError
from gateway.core.modelfiles import model_of

CHUNK: Final = 8 * 1024 * 1024
ATTEMPTS: Final = 9
"""Consecutive failures allowed without a byte of progress; about 40 s with the pauses between them."""
MAX_PAUSE: Final = 8.0
_AGAIN: Final = frozenset({408, 409, 429, 500, 502, 503, 504})
_HEADERS: Final = (("content-type", "application/offset+octet-stream"), ("tus-resumable", "1.0.0"))


class Patience:
    """Counts failures and waits longer after each. Raises the error itself after too many."""

    def __init__(self, pause: Callable[[float], None] = time.sleep, attempts: int = ATTEMPTS) -> None:
        self._pause, self._attempts, self._failures = pause, attempts, 0

    def progress(self) -> None:
        self._failures = 0

    def wait(self, error: CommandError) -> None:
        """Call after a failure. Raises `error` if it is final or one too many."""
        self._failures += 1
        if self._failures >= self._attempts or (isinstance(error, ApiError) and error.status not in _AGAIN):
            raise error
        self._pause(min(MAX_PAUSE, 0.5 * 2 ** (self._failures - 1)))


def begin(client: Client, wanted: dict[str, Any]) -> dict[str, Any]:
    """The upload of these bytes that an earlier command left open, or a new one."""
    for upload in client.get("/model-uploads")["items"]:
        if all(upload.get(key) == value for key, value in {"signature": None, **wanted}.items()):
            found: dict[str, Any] = upload
            return found
    made: dict[str, Any] = client.post("/model-uploads", wanted)
    return made


def send(client: Client, upload: dict[str, Any], parcel: Parcel, at: Callable[[int], None], patience: Patience) -> None:
    """Sends all bytes from the gateway's offset on. at: called with the offset. Raises CommandError."""
    path, offset = f"/model-uploads/{name(upload['id'])}", int(upload["offset"])
    at(offset)
    while offset < parcel.size:
        before = offset
        try:
            headers = {**dict(_HEADERS), "upload-offset": str(offset)}
            answer = client.request("PATCH", path, content=parcel.read(offset, CHUNK), headers=headers)
            offset = int(answer.headers["upload-offset"])
        except CommandError as error:
            patience.wait(error)
            offset = _asked(client, path, offset)
        if offset > before:
            patience.progress()
        at(offset)


def _asked(client: Client, path: str, offset: int) -> int:
    """The gateway's offset; without an answer, the last one known."""
    try:
        return int(client.request("HEAD", path, headers={"tus-resumable": "1.0.0"}).headers["upload-offset"])
    except ApiError as error:
        if error.status == 404:
            raise
        return offset
    except CommandError:
        return offset


def complete(client: Client, upload: dict[str, Any], patience: Patience) -> dict[str, Any]:
    """The model. Asks again when the answer is lost: the gateway verifies once."""
    while True:
        lost: CommandError
        try:
            done: dict[str, Any] = client.post(f"/model-uploads/{name(upload['id'])}/complete", timeout=LONG)
            return done
        except ApiError as error:
            if error.status == 404:
                return present(client, upload["name"]) or _raise(error)
            if error.status in (409, 500):
                raise
            lost = error
        except CommandError as error:
            lost = error
        patience.wait(lost)


def _raise(error: CommandError) -> dict[str, Any]:
    raise error


def present(client: Client, file: str) -> dict[str, Any] | None:
    """The model of a file, if the gateway has it."""
    try:
        found: dict[str, Any] = client.get(f"/model-files/{name(model_of(file))}")
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return found
