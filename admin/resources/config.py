"""The configuration in force: shown with its secrets masked, replaced by a text, read again from its file."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from admin import values
from admin.operation import JSON, Answer, Call, Operation, Written
from admin.resource import Change
from gateway.core.errors import RequestError

YAML = "application/yaml"
MAX_CONFIG = 1024 * 1024


class ConfigView(msgspec.Struct):
    """version: of the configuration in force, also its ETag."""

    version: int
    config: dict[str, Any]


class Applied(msgspec.Struct):
    """changed: the paths that differ from what was in force. applied: false after a dry run, which also says what would change in `diff`,
    secrets masked. until_restart: the configuration file says something else, so a restart, or reading it again, brings that back."""

    version: int
    changed: list[str]
    applied: bool
    until_restart: bool = False
    dry_run: bool = False
    diff: list[Change] | None = None


async def show(call: Call) -> Answer:
    version = call.ports.config.version
    return Answer(ConfigView(version, await current(call)), version=str(version))


async def apply(call: Call) -> Answer:
    """The text is not written to the file; the answer says so (`until_restart`)."""
    call.target = "config"
    try:
        text = call.raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"The body is not UTF-8 text (byte {error.start}).", code="invalid_value") from None
    before = await current(call)
    # shielded: a caller that goes away must not leave the audit log without the outcome
    outcome = await asyncio.shield(
        call.ports.config.apply(text, source=f"admin:{call.actor}", dry_run=call.dry_run, expected=call.expected(), actor=call.actor)
    )
    return await _answer(call, before, outcome)


async def reload(call: Call) -> Answer:
    call.target = "config"
    before = await current(call)
    return await _answer(call, before, await call.ports.config.reload(call.actor))


async def current(call: Call) -> dict[str, Any]:
    """The configuration in force, secrets masked. In a thread: of thousands of members it takes a while the first time."""
    return await asyncio.to_thread(call.ports.config.current)


async def changed(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """The differences within members that have names. In a thread: two configurations of a MiB take a second to compare."""
    return await asyncio.to_thread(lambda: values.diff(values.named(before), values.named(after)))


async def _answer(call: Call, before: dict[str, Any], outcome: dict[str, Any]) -> Answer:
    if call.dry_run:
        outcome = {"dry_run": True, "diff": await changed(before, outcome.pop("would")), **outcome}
    else:
        call.diff = await asyncio.to_thread(values.diff, before, await current(call))
    return Answer(outcome, version=str(outcome["version"]))


def operations() -> list[Operation]:
    return [
        Operation("GET", "config", "config:read", "Show the configuration in force", show, ConfigView),
        Operation(
            "PUT",
            "config",
            "config:apply",
            "Put another configuration into force",
            apply,
            Applied,
            query=Written,
            body=bytes,
            accepts=(YAML, "text/yaml", "text/plain", JSON),
            max_body=MAX_CONFIG,
            conditional=True,
            engine=True,
        ),
        Operation("POST", "config/reload", "config:reload", "Read the configuration file again", reload, Applied, engine=True),
    ]
