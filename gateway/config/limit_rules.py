"""Checks on one limit: that it limits something, and lets something pass."""

from __future__ import annotations

from collections.abc import Callable
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gateway.config.convert import quoted
from gateway.core.errors import ConfigError
from gateway.core.specs.limits import COUNTED, BudgetSpec, LimitSpec, LoopSpec, RateSpec
from gateway.wire.yamltree import join

MAX_MONEY = 1e9
"""The most that a budget of money may be, in units of its currency: it is counted in billionths, in 63 bits."""
AMOUNTS = ("requests", "tokens", "bytes", "elements", "concurrent", "queued", "budget", "session")


def check_limit(limit: LimitSpec, path: str, error: Callable[[str, str], ConfigError]) -> None:
    """Raises ConfigError for a limit that limits nothing, or that nothing could ever pass."""
    given = [name for name in AMOUNTS if getattr(limit, name) is not None]
    if not given:
        raise error(
            path, "limits nothing; give it 'requests', 'tokens', 'bytes', 'elements', 'concurrent', 'queued', 'budget' or 'session'"
        )
    for name in ("requests", "tokens", "bytes", "elements"):
        rate: RateSpec | None = getattr(limit, name)
        if rate is not None:
            _rate(rate, join(path, name), name, error)
    if limit.budget is not None:
        _budget(limit.budget, join(path, "budget"), error)
    if limit.session is not None:
        if limit.per != "session":
            raise error(join(path, "session"), f"bounds single sessions, but 'per' is {limit.per}; say 'per: session'")
        _session(limit.session, join(path, "session"), error)
    weights = limit.weights
    if not (weights.prompt or weights.completion):
        raise error(join(path, "weights"), "makes every token count nothing; give 'prompt' or 'completion' more than 0")

    if limit.precision == "leased":
        _leased(limit, join(path, "precision"), error)


def _leased(limit: LimitSpec, path: str, error: Callable[[str, str], ConfigError]) -> None:
    for name in ("concurrent", "queued", "budget", "session"):
        if getattr(limit, name) is not None:
            raise error(path, f"leased is for rates, and this limit has {name!r}, which is always exact; give {name!r} a limit of its own")


def _rate(rate: RateSpec, path: str, what: str, error: Callable[[str, str], ConfigError]) -> None:
    burst = rate.rate if rate.burst is None else rate.burst
    if burst < 1:
        raise error(path, f"allows {burst:g} {what} at once, so none would ever pass; set 'burst' to 1 or more")


def _budget(budget: BudgetSpec, path: str, error: Callable[[str, str], ConfigError]) -> None:
    if budget.unit in COUNTED and budget.amount < 1:
        raise error(join(path, "amount"), f"allows {budget.amount:g} {budget.unit}, so none would ever pass; set it to 1 or more")
    if budget.unit not in COUNTED and budget.amount > MAX_MONEY:
        raise error(join(path, "amount"), f"is more than {MAX_MONEY:.0f} {budget.unit}, the most that a budget can count")
    if budget.timezone != "UTC":
        if not isinstance(budget.window, str):
            raise error(join(path, "timezone"), "is for windows of the calendar; a rolling one begins at no certain time")
        try:
            ZoneInfo(budget.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            where = join(path, "timezone")
            raise error(where, f"there is no time zone {quoted(budget.timezone)}; write a name such as Europe/Berlin") from None


def _session(loop: LoopSpec, path: str, error: Callable[[str, str], ConfigError]) -> None:
    if all(getattr(loop, name) is None for name in loop.__struct_fields__):
        raise error(path, "bounds nothing; give it 'calls', 'tokens', 'wall_time', 'same_tool_calls' or 'depth'")
