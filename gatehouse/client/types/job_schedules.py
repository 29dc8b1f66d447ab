"""Types of the operations below /job_schedules. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.jobs import Benchmark, Convert, Export, Quantize, QuantizeOnnx, Warm


class ScheduleCreation(TypedDict):
    """cron: minute, hour, day of the month, month, day of the week. attempts: of each job."""

    name: str
    cron: str
    timezone: NotRequired[str]
    task: Convert | Export | Quantize | QuantizeOnnx | Benchmark | Warm
    attempts: NotRequired[int | None]


class ScheduleDryRun(TypedDict):
    result: ScheduleView
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class ScheduleList(TypedDict):
    items: list[ScheduleView]
    cursor: NotRequired[str | None]


class ScheduleView(TypedDict):
    """next_at: of its next job. last_job: the one that it made last, or ""."""

    name: str
    tenant: str
    creator: str
    cron: str
    timezone: str
    task: Convert | Export | Quantize | QuantizeOnnx | Benchmark | Warm
    replica: str
    max_attempts: int
    next_at: str
    last_job: str
    created_at: str
