"""An S3-compatible store where model files are: objects `PREFIX DIGEST/NUMBER`, one for each file of a model, named by the model's content.

Nothing there is believed: whoever fetches verifies each file by the checksum that the gateways' own store names. Whoever puts sends each
part with its SHA-256 and reads no other bytes than those. Keys that are not made like these are somebody else's: they are never read, and
never deleted. Calls block up to the deadline of the settings, so they run in threads of their own.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

from engines.host.catalogue.checksums import Stopped
from gateway.core.errors import GatehouseError
from gateway.core.modelshare import SharedFile
from gateway.core.specs.fleet import ModelStoreSpec
from gateway.transport.s3 import s3_client

T = TypeVar("T")
PATH: Final = "model_sharing.store"
PART: Final = 16 * 1024 * 1024
"""Bytes of a part, at least; a file of no more is put at once."""
MAX_PARTS: Final = 9000
FETCHED: Final = 8 * 1024 * 1024
"""Bytes that are asked for at once."""
BLOCK: Final = 1024 * 1024
REST: Final = 30.0
"""Seconds after a failure in which the store is not asked."""
LISTED: Final = 1000
"""Pages of a listing that are read."""
_NUMBER: Final = re.compile(r"[0-9]{1,4}")
_SHA256: Final = "sha256"
Stamp = tuple[int, int, int]


class BucketFailed(GatehouseError):
    """The store did not do what it was asked for. absent: it does not have it."""

    status = 503
    default_code = "storage_failed"
    absent = False


class Changed(GatehouseError):
    """A file is not what was announced, so it is not put there."""

    status = 409
    default_code = "model_invalid"


class Sent(NamedTuple):
    """A file that is put there. stamp: what it was when its checksum was computed. model: for people. go_on: False ends it after a part."""

    file: SharedFile
    path: str
    stamp: Stamp
    model: str
    go_on: Callable[[], bool]

    @property
    def told(self) -> dict[str, str]:
        return {_SHA256: self.file.sha256, "model": self.model, "file": self.file.path}


class Bucket:
    """workers: calls at once. Life: construct (ConfigError), `aclose`."""

    def __init__(self, spec: ModelStoreSpec, workers: int) -> None:
        self._spec = spec
        self._client, self._failures = s3_client(
            "model_sharing.store",
            PATH,
            endpoint=spec.endpoint,
            region=spec.region,
            access_key=spec.access_key,
            secret_key=spec.secret_key,
            timeout=spec.timeout,
            connections=workers,
        )
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="gatehouse-model-store")
        self._open = True
        self._puts: set[Future[None]] = set()
        self._rests = 0.0
        self.name = f"s3://{spec.bucket}/{spec.prefix}"
        """How it is called among those who have a model."""
        self.problem: str | None = None
        """Why the last call failed."""
        self.since = 0.0
        """The moment, as of the wall clock, of the first failure since the last success."""
        self.failures = 0
        self.on_change: Callable[[str | None], None] = lambda problem: None
        """Called when it fails after it did not (with the reason), and when it works again."""

    async def aclose(self) -> None:
        """Calls that are under way end at their next part, or by their deadline."""
        self._open = False
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def resting(self) -> bool:
        """Whether it failed just now."""
        return time.monotonic() < self._rests

    # --- what is asked of it

    async def piece(self, digest: str, number: int, offset: int, size: int) -> bytes:
        """Up to `size` bytes of a file from an offset on. Raises BucketFailed."""
        return await self._run(partial(self._piece, self._key(digest, number), offset, size))

    async def put(self, digest: str, number: int, sent: Sent, *, again: bool) -> None:
        """Puts a file there, or the parts of it that are not there yet. again: what an earlier try has put whole is left as it is.

        Raises BucketFailed, Changed, Stopped, OSError."""
        await self._run(partial(self._put, self._key(digest, number), sent, again), self._puts)

    async def settled(self) -> None:
        """Waits for the threads that put something: one whose caller was cancelled goes on until its part is sent, or by its deadline."""
        if under_way := [asyncio.wrap_future(future) for future in list(self._puts)]:
            await asyncio.wait(under_way)

    async def remove(self, digest: str) -> None:
        """Deletes all files of a model, and what was begun to be put. Raises BucketFailed."""
        await self._run(partial(self._remove, digest))

    async def probe(self) -> None:
        """Whether the bucket answers. Raises BucketFailed."""
        await self._run(lambda: self._ask(self._client.head_bucket))

    # --- in threads

    async def _run(self, call: Callable[[], T], among: set[Future[T]] | None = None) -> T:
        """among: where it is noted as long as it runs."""
        if not self._open:
            raise BucketFailed("The gateway is shutting down.")
        future = self._threads.submit(call)
        if among is not None:
            among.add(future)
            future.add_done_callback(among.discard)
        try:
            made = await asyncio.wrap_future(future)
        except BucketFailed as error:
            if not error.absent:
                self._failed(error.message)
            raise
        self._rests = 0.0
        if self.problem is not None:
            self.problem = None
            self.on_change(None)
        return made

    def _failed(self, why: str) -> None:
        self.failures += 1
        self._rests = time.monotonic() + REST
        before, self.problem = self.problem, why
        if before is None:
            self.since = time.time()
            self.on_change(why)

    def _key(self, digest: str, number: int) -> str:
        return f"{self._spec.prefix}{digest}/{number}"

    def _ask(self, call: Callable[..., T], **parts: Any) -> T:
        """Raises BucketFailed."""
        try:
            return call(Bucket=self._spec.bucket, **parts)
        except self._failures as error:
            raise _told(error) from None

    def _piece(self, key: str, offset: int, size: int) -> bytes:
        until = time.monotonic() + self._spec.timeout + size / BLOCK  # at least a MiB a second
        answer: Mapping[str, Any] = self._ask(self._client.get_object, Key=key, Range=f"bytes={offset}-{offset + size - 1}")
        body = answer["Body"]
        try:
            if offset and answer["ResponseMetadata"]["HTTPStatusCode"] != 206:
                raise BucketFailed("It gives no ranges of objects.")
            found = bytearray()
            while len(found) < size and (block := body.read(min(BLOCK, size - len(found)))):
                found += block
                if time.monotonic() > until or not self._open:
                    raise BucketFailed("It answers too slowly.")
            return bytes(found)
        except self._failures as error:
            raise _told(error) from None
        finally:
            body.close()

    def _put(self, key: str, sent: Sent, again: bool) -> None:
        file = sent.file
        if again and self._whole(key, file):
            return
        with open(sent.path, "rb") as content:
            status = os.fstat(content.fileno())
            if (status.st_size, status.st_mtime_ns, status.st_ino) != sent.stamp:
                raise _changed(file)
            if file.size <= PART:
                data = content.read(file.size)
                if hashlib.sha256(data).hexdigest() != file.sha256:
                    raise _changed(file)
                self._ask(self._client.put_object, Key=key, Body=data, Metadata=sent.told, **_checksum(data))
            else:
                self._put_parts(key, content, sent)
        if not self._whole(key, file):
            raise BucketFailed(f"It took {file.path!r}, and does not have it as it was sent.")

    def _whole(self, key: str, file: SharedFile) -> bool:
        try:
            found: Mapping[str, Any] = self._ask(self._client.head_object, Key=key)
        except BucketFailed as error:
            if error.absent:
                return False
            raise
        return bool(found["ContentLength"] == file.size and found.get("Metadata", {}).get(_SHA256) == file.sha256)

    def _put_parts(self, key: str, content: BinaryIO, sent: Sent) -> None:
        file = sent.file
        size = max(PART, -(-file.size // (MAX_PARTS * BLOCK)) * BLOCK)
        upload = self._begun(key)
        there = {} if upload is None else {part["PartNumber"]: part for part in self._parts(key, upload)}
        if upload is None:
            upload = self._ask(self._client.create_multipart_upload, Key=key, Metadata=sent.told, ChecksumAlgorithm="SHA256")["UploadId"]
        state, made, number = hashlib.sha256(), [], 0
        while data := content.read(size):
            number += 1
            state.update(data)
            part = there.get(number)
            if part is None or not _same(part, data):
                part = self._ask(
                    self._client.upload_part, Key=key, UploadId=upload, PartNumber=number, Body=data, **_checksum(data)
                )  # with its own checksum, so what arrives altered is refused
            made.append({"PartNumber": number, "ETag": part["ETag"], "ChecksumSHA256": _base64(data)})
            if not (self._open and sent.go_on()):
                raise Stopped
        if state.hexdigest() != file.sha256:
            self._ask(self._client.abort_multipart_upload, Key=key, UploadId=upload)
            raise _changed(file)
        self._ask(self._client.complete_multipart_upload, Key=key, UploadId=upload, MultipartUpload={"Parts": made})

    def _begun(self, key: str) -> str | None:
        """An upload of this object that was begun, the latest."""
        found = [one for one in self._uploads(key) if one["Key"] == key]
        return None if not found else str(max(found, key=lambda one: one["Initiated"])["UploadId"])

    def _remove(self, digest: str) -> None:
        base = f"{self._spec.prefix}{digest}/"
        ours = [key for key in self._keys(base) if _NUMBER.fullmatch(key.removeprefix(base))]
        for key in ours:
            self._ask(self._client.delete_object, Key=key)
        for one in [one for one in self._uploads(base) if _NUMBER.fullmatch(str(one["Key"]).removeprefix(base))]:
            try:
                self._ask(self._client.abort_multipart_upload, Key=one["Key"], UploadId=one["UploadId"])
            except BucketFailed as error:
                if not error.absent:
                    raise

    # --- listings

    def _keys(self, base: str) -> Iterator[str]:
        more: dict[str, str] = {}
        for _ in range(LISTED):
            page: Mapping[str, Any] = self._ask(self._client.list_objects_v2, Prefix=base, **more)
            yield from (str(one["Key"]) for one in page.get("Contents", ()))
            if not page.get("NextContinuationToken"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _uploads(self, base: str) -> Iterator[Mapping[str, Any]]:
        more: dict[str, str] = {}
        for _ in range(LISTED):
            page: Mapping[str, Any] = self._ask(self._client.list_multipart_uploads, Prefix=base, **more)
            yield from page.get("Uploads", ())
            if not page.get("IsTruncated") or not page.get("NextKeyMarker"):
                return
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page.get("NextUploadIdMarker", "")}

    def _parts(self, key: str, upload: str) -> Iterator[Mapping[str, Any]]:
        more: dict[str, int] = {}
        for _ in range(LISTED):
            page: Mapping[str, Any] = self._ask(self._client.list_parts, Key=key, UploadId=upload, **more)
            yield from page.get("Parts", ())
            if not page.get("IsTruncated"):
                return
            more = {"PartNumberMarker": page["NextPartNumberMarker"]}


def _same(part: Mapping[str, Any], data: bytes) -> bool:
    """Whether a part of an earlier try is this one, as far as the store says what it has."""
    if part["Size"] != len(data):
        return False
    if "ChecksumSHA256" in part:
        return bool(part["ChecksumSHA256"] == _base64(data))
    return str(part["ETag"]).strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest()


def _base64(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode("ascii")


def _checksum(data: bytes) -> dict[str, str]:
    return {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": _base64(data)}


def _changed(file: SharedFile) -> Changed:
    return Changed(f"The file {file.path!r} is not what was announced any more.")


def _told(error: Exception) -> BucketFailed:
    """What a call of boto3 has raised, with nothing of its parameters."""
    response: Mapping[str, Any] = getattr(error, "response", None) or {}
    code = str(response.get("Error", {}).get("Code", ""))
    text = f"{code}: {response.get('Error', {}).get('Message', '')}"[:300] if code else f"{type(error).__name__}: {error}"[:300]
    made = BucketFailed(f"The store of models refused or does not answer ({text.rstrip(': ')})")
    made.absent = code in ("NoSuchKey", "NoSuchUpload", "404", "InvalidRange")
    return made
