"""An archive of closed segments in an S3-compatible store. Everything here blocks, up to the deadlines of its settings.

Of each segment two objects: the compressed lines under the name of the file, and the signed seal as the manifest, `<segment>.seal.json`,
which comes last: a segment with a manifest is there as a whole. Both ask for the object lock of the settings. Objects are never
overwritten while they are the same, so that what was put twice after a crash makes no second version.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from gateway.audit.encode import encode_json
from gateway.audit.segments import FRAME, plain_name
from gateway.audit.statements import Seal
from gateway.core.clock import Clock
from gateway.core.specs.retention import ArchiveSpec
from gateway.transport.s3 import s3_client

_DIGEST: Final = "sha256"


class ArchiveFailed(OSError):
    """The store did not take an object. The message says why."""


class Archive:
    """Life: construct (ConfigError where boto3 is missing or the settings cannot be used), then the methods, which raise ArchiveFailed or
    OSError."""

    def __init__(self, spec: ArchiveSpec, clock: Clock) -> None:
        self._spec, self._clock = spec, clock
        self._client, self._failures = s3_client(
            "the archive",
            "audit.retention.archive",
            endpoint=spec.endpoint,
            region=spec.region,
            access_key=spec.access_key,
            secret_key=spec.secret_key,
            timeout=spec.timeout,
        )

    def place(self, name: str) -> str:
        """Where an object is, for people."""
        return f"s3://{self._spec.bucket}/{self._spec.prefix}{name}"

    def probe(self) -> None:
        """Whether the bucket answers."""
        self._call(lambda: self._client.head_bucket(Bucket=self._spec.bucket))

    def put_segment(self, path: Path, seal: Seal) -> str:
        """Puts a segment and its manifest there; where they are."""
        digest = sha256()
        with path.open("rb") as file:
            while block := file.read(FRAME):
                digest.update(block)
        with path.open("rb") as file:
            self._put(path.name, file, digest.digest(), {"root": seal.root, "lines": seal.sha256})
        self.put(f"{plain_name(path.name).removesuffix('.jsonl')}.seal.json", encode_json(seal) + b"\n")
        return self.place(path.name)

    def put(self, name: str, data: bytes, *, locked: bool = True) -> None:
        self._put(name, data, sha256(data).digest(), {}, locked=locked)

    def _put(self, name: str, body: Any, digest: bytes, metadata: dict[str, str], *, locked: bool = True) -> None:
        key = self._spec.prefix + name
        if self._has(key, digest.hex()):
            return
        lock: dict[str, Any] = {}
        if locked and self._spec.lock != "none":
            until = datetime.fromtimestamp(self._clock.wall(), UTC) + timedelta(seconds=self._spec.lock_for)
            lock = {"ObjectLockMode": self._spec.lock.upper(), "ObjectLockRetainUntilDate": until}
        self._call(
            lambda: self._client.put_object(
                Bucket=self._spec.bucket,
                Key=key,
                Body=body,
                ChecksumAlgorithm="SHA256",
                ChecksumSHA256=base64.b64encode(digest).decode("ascii"),
                Metadata={**metadata, _DIGEST: digest.hex()},
                **lock,
            )
        )

    def _has(self, key: str, digest: str) -> bool:
        try:
            found = self._client.head_object(Bucket=self._spec.bucket, Key=key)
        except self._failures as error:
            answer = getattr(error, "response", None) or {}  # None where nothing was answered
            if answer.get("ResponseMetadata", {}).get("HTTPStatusCode") in (403, 404):
                return False  # 403 where objects may be put and not be read
            raise ArchiveFailed(str(error)) from None
        return bool(found.get("Metadata", {}).get(_DIGEST) == digest)

    def _call(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except self._failures as error:
            text = str(error)
            if "ObjectLock" in text:
                text += " (the bucket must have object lock, or audit.retention.archive.lock must be none)"
            raise ArchiveFailed(text) from None
