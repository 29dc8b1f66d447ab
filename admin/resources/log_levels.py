"""What the log tells at the moment: seen, changed for a while, restored."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from admin.moments import Timestamp, timestamp
from admin.operation import Answer, Call, Operation, Written
from admin.ports import LogLevelControl
from gateway.core.errors import NotFound, RequestError
from gateway.core.log_levels import AS_CONFIGURED, LONGEST, MOST, NAME, Level, LogLevels


class LogLevelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """level: of everything that has no level of its own; left out: the configured one. loggers: by name, such as `gatehouse.engines`.
    seconds: after so many the configured levels count again."""

    level: Level | None = None
    loggers: dict[str, Level] = {}
    seconds: Annotated[float, Meta(gt=0, le=LONGEST)] = 900.0


class LogLevelView(msgspec.Struct, kw_only=True):
    """configured: the level of the configuration in force, which counts again at `until`; null: nothing else counts now."""

    configured: Level
    level: Level
    loggers: dict[str, Level]
    until: Timestamp | None
    actor: str | None


class LogLevelDryRun(msgspec.Struct):
    result: LogLevelView
    diff: list[dict[str, Any]]
    dry_run: bool = True


async def show(call: Call) -> Answer:
    book = _port(call)
    return Answer(_view(book, book.levels))


async def change(call: Call) -> Answer:
    """Counts in this process at once, in its workers within a second; with `?wait=`, in all of them."""
    wanted: LogLevelSettings = call.body
    if wanted.level is None and not wanted.loggers:
        raise RequestError("Give `level`, `loggers` or both; DELETE restores the configured levels.", param="level")
    if len(wanted.loggers) > MOST:
        raise RequestError(f"At most {MOST} loggers can have a level of their own.", param="loggers")
    for name in wanted.loggers:
        if not NAME.fullmatch(name):
            raise RequestError(
                f"{name[:100]!r} is not a logger of the gateway: write gatehouse.NAME, such as gatehouse.engines.", param="loggers"
            )
    book = _port(call)
    call.target = "log-levels"
    before = _view(book, book.levels)
    made = book.change(wanted.level or "", dict(wanted.loggers), wanted.seconds, call.actor, dry_run=call.dry_run)
    return _answer(call, before, _view(book, made))


async def restore(call: Call) -> Answer:
    book = _port(call)
    call.target = "log-levels"
    before = _view(book, book.levels)
    if not call.dry_run:
        book.restore()
    return _answer(call, before, _view(book, AS_CONFIGURED))


def _answer(call: Call, before: dict[str, Any], after: dict[str, Any]) -> Answer:
    call.diff = [
        {"path": name, "from": before[name], "to": after[name]} for name in after if name != "actor" and before[name] != after[name]
    ]
    return Answer({"dry_run": True, "diff": call.diff, "result": after} if call.dry_run else after)


def _view(book: LogLevelControl, levels: LogLevels) -> dict[str, Any]:
    configured = book.configured()
    return {
        "configured": configured,
        "level": levels.level or configured,
        "loggers": levels.loggers,
        "until": timestamp(levels.until) if levels.until else None,
        "actor": levels.actor or None,
    }


def _port(call: Call) -> LogLevelControl:
    if call.ports.log_levels is None:
        raise NotFound("This process has no log whose levels can be changed.")
    return call.ports.log_levels


def operations() -> list[Operation]:
    either = (LogLevelView, LogLevelDryRun)
    return [
        Operation("GET", "log-levels", "logs:read", "Show the levels of the log", show, LogLevelView),
        Operation(
            "PUT", "log-levels", "logs:update", "Change the levels of the log for a while", change, either, Written, LogLevelSettings
        ),
        Operation("DELETE", "log-levels", "logs:update", "Restore the configured levels of the log", restore, either, Written),
    ]
