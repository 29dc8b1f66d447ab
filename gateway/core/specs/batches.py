"""Settings of files, of batches, and of model files that are sent to the admin API."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.core.specs.base import Natural, Positive, Spec, Timeout


class UploadsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Model files sent to the admin API. `reserve_bytes` of the disk stay free; one without progress for `expire_after` is removed."""

    max_bytes: Annotated[int, Meta(ge=1, le=1 << 42)] = 64 * 1024**3
    max_open: Annotated[int, Meta(ge=1, le=1000)] = 8
    reserve_bytes: Natural = 1024**3
    expire_after: Timeout = 86400.0


class FilesSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Files of clients (`/v1/files`). directory: replicas that share a store share it too; relative to the state directory. max_bytes: of
    one; max_tenant_bytes, max_tenant_files: of all of one tenant. max_open: uploads at once. reserve_bytes: of the disk stay free.
    upload_timeout: for one upload. expire_after: from the upload on; a result is kept as long. scope: who reaches a file, and a batch: its
    whole tenant, or only the caller that made it."""

    enabled: bool = False
    scope: Literal["caller", "tenant"] = "tenant"
    directory: Annotated[str, Meta(min_length=1)] = "files"
    max_bytes: Annotated[int, Meta(ge=1, le=1 << 40)] = 200 * 1024**2
    max_tenant_bytes: Annotated[int, Meta(ge=1, le=1 << 50)] = 4 * 1024**3
    max_tenant_files: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    max_open: Annotated[int, Meta(ge=1, le=1000)] = 16
    reserve_bytes: Natural = 1024**3
    upload_timeout: Timeout = 600.0
    expire_after: Timeout = 30 * 86400.0


class BatchesSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Batches (`/v1/batches`), whose files are `files`. max_lines, max_line_bytes: of an input file. max_open: batches of one tenant that
    are not over. window: seconds after which a batch expires. parallel: lines at once in this process. spare: the share of a model's slots
    that lines leave free. unknown: what becomes of a line whose outcome a crash has taken with it: it is run again, at most `attempts`
    times in all, or reported. lease: seconds after which another process takes over from one that is silent."""

    enabled: bool = False
    max_lines: Annotated[int, Meta(ge=1, le=1_000_000)] = 50_000
    max_line_bytes: Annotated[int, Meta(ge=64, le=64 * 1024**2)] = 1024**2
    max_open: Positive = 100
    window: Timeout = 86400.0
    parallel: Annotated[int, Meta(ge=1, le=1024)] = 8
    spare: Annotated[float, Meta(ge=0, le=1)] = 0.25
    unknown: Literal["retry", "report"] = "retry"
    attempts: Annotated[int, Meta(ge=1, le=10)] = 3
    lease: Timeout = 15.0
