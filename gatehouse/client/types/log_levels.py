"""Types of the operations below /log_levels. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class LogLevelDryRun(TypedDict):
    result: LogLevelView
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class LogLevelSettings(TypedDict):
    """level: of everything that has no level of its own; left out: the configured one. loggers: by name, such as `gatehouse.engines`.
    seconds: after so many the configured levels count again.
    """

    level: NotRequired[Literal["debug", "error", "info", "trace", "warning"] | None]
    loggers: NotRequired[dict[str, Literal["debug", "error", "info", "trace", "warning"]]]
    seconds: NotRequired[float]


class LogLevelView(TypedDict):
    """configured: the level of the configuration in force, which counts again at `until`; null: nothing else counts now."""

    configured: Literal["debug", "error", "info", "trace", "warning"]
    level: Literal["debug", "error", "info", "trace", "warning"]
    loggers: dict[str, Literal["debug", "error", "info", "trace", "warning"]]
    until: str | None
    actor: str | None
