"""Settings of what becomes of the audit log's closed segments, and of where copies of its checkpoints go."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.core.secret import Secret
from gateway.core.specs.base import Kept, Positive, Spec, Timeout


class ArchiveSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An S3-compatible store for closed segments. endpoint: its URL; without one, AWS's. access_key, secret_key: without them, those that
    boto3 finds (environment, profile, the machine's role). lock: the mode of the object lock that is asked for; `none` for a bucket
    without. lock_for: how long. timeout: of one request."""

    bucket: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
    prefix: Annotated[str, Meta(pattern=r"^([A-Za-z0-9!_.*'()-]+/)*$", max_length=256)] = ""
    endpoint: str | None = None
    region: str | None = None
    access_key: Secret | None = None
    secret_key: Secret | None = None
    lock: Literal["governance", "compliance", "none"] = "governance"
    lock_for: Kept = 86400.0 * 365
    timeout: Timeout = 60.0


class RetentionSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What becomes of closed segments. compress_after: seconds after their last record until they are compressed. delete_after: until they
    are taken away. keep_bytes: the oldest are taken away while all together are larger. archive: where they are put before; one that is not
    there yet is never taken away."""

    compress_after: Kept | None = 86400.0
    delete_after: Kept | None = None
    keep_bytes: Positive | None = None
    archive: ArchiveSpec | None = None


class CopySpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A second place for checkpoints: one of `folder`, `url` (each new one is POSTed; token: sent as Bearer) and `archive: true` (in the
    bucket of `audit.retention.archive`)."""

    folder: str | None = None
    url: str | None = None
    token: Secret | None = None
    archive: bool = False
    timeout: Timeout = 10.0


class CheckpointSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How often the head of the audit chain is signed, and where copies go."""

    every: Timeout = 60.0
    copies: tuple[CopySpec, ...] = ()
