"""Settings of operators' jobs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.core.specs.base import Natural, Spec, Timeout


class JobsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Jobs of operators. parallel: that run at once in this process. threads, memory_bytes, max_output_bytes: bounds of one; niceness: its
    priority. export_python: the Python that has PyTorch, "" for the gateway's own. deadline: of one attempt. attempts: how often one is
    begun at most; backoff: before the second, doubled for each further one up to max_backoff. max_open: jobs of one tenant that are not
    over; max_schedules: of one tenant. lease: seconds after which another process takes over from one that is silent. keep: how long those
    that are over are kept."""

    enabled: bool = False
    parallel: Annotated[int, Meta(ge=1, le=64)] = 1
    threads: Annotated[int, Meta(ge=1, le=1024)] = 2
    niceness: Annotated[int, Meta(ge=0, le=19)] = 10
    memory_bytes: Annotated[int, Meta(ge=256 * 1024**2, le=1 << 44)] = 8 * 1024**3
    max_output_bytes: Annotated[int, Meta(ge=1, le=1 << 44)] = 64 * 1024**3
    reserve_bytes: Natural = 1024**3
    export_python: Annotated[str, Meta(pattern=r"^(/[^\0]{1,1000})?$")] = ""
    deadline: Timeout = 6 * 3600.0
    attempts: Annotated[int, Meta(ge=1, le=100)] = 3
    backoff: Timeout = 30.0
    max_backoff: Timeout = 3600.0
    max_open: Annotated[int, Meta(ge=1, le=100_000)] = 100
    max_schedules: Annotated[int, Meta(ge=1, le=10_000)] = 50
    lease: Timeout = 15.0
    keep: Timeout = 30 * 86400.0
