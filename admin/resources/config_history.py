"""The configurations that were put into force: who, when, what changed; and the way back to one of them.

Two kinds of entries share one sequence of numbers: those of a file or a text that a replica put into force (`of: file`), and those of a
write to the store (`of: store`). Going back to an entry of a file puts its text into force again on the replica that is asked. Going back
to an entry of the store makes the store's configuration what it was after that write, on all replicas: all later writes are undone
together, by the rules of `sync`.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from admin import problems
from admin.moments import Timestamp, shown
from admin.operation import Answer, Call, Operation, Written
from admin.resource import Change, Collection, read_only
from admin.resources import bindings, sync
from admin.resources.apply import about
from admin.resources.config import changed, current
from gateway.core.errors import NotFound, RequestError, VersionMismatch
from gateway.core.slices import in_slices
from gateway.core.storage import ConfigurationRow, Resource

PAGE: Final = 100
MOST: Final = 1000
KINDS: Final = {known.kind: known for known in sync.COLLECTIONS}


class HistoryView(msgspec.Struct, kw_only=True):
    """number: of the change of the store that it is or was noted with; later ones have larger numbers. changed: the first paths. count: how
    many there are. source, replica, version: of a file; where it came from, who put it into force, as which version. rolled_back_to: the
    entry that it brought back. start: it came into force with a start of its replica, the `first` that the history knows or one `again`,
    which is not compared with what was before. whole: its settings were kept, so that it can be gone back to."""

    number: int
    at: Timestamp
    by: str
    of: Literal["file", "store"]
    changed: list[str]
    count: int
    source: str | None = None
    replica: str | None = None
    version: int | None = None
    rolled_back_to: int | None = None
    start: Literal["first", "again"] | None = None
    whole: bool = True


class HistoryList(msgspec.Struct):
    """The newest first."""

    items: list[HistoryView]
    cursor: str | None = None


class HistoryEntry(HistoryView, kw_only=True):
    """diff: what it changed, secrets masked. config: the whole configuration of a file, secrets masked."""

    diff: list[Change]
    config: dict[str, Any] | None = None


class RolledBack(msgspec.Struct, kw_only=True):
    """diff: what has changed, or in a dry run would, secrets masked. version, until_restart: of a file, as for `PUT config`."""

    number: int
    of: Literal["file", "store"]
    applied: bool
    changed: list[str]
    diff: list[Change]
    version: int | None = None
    until_restart: bool | None = None
    dry_run: bool = False


class HistoryQuery(msgspec.Struct, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=MOST)] = PAGE
    cursor: str | None = None


def _view(row: ConfigurationRow) -> dict[str, Any]:
    told = row.told
    known = {key: told.get(key) for key in ("source", "replica", "version", "rolled_back_to", "start")}
    seen = {"number": row.number, "at": row.made, "by": row.actor, "of": told["of"], "changed": told["changed"], "count": told["count"]}
    return shown({**seen, **known, "whole": row.whole}, "at")


async def _head(call: Call) -> int:
    """The number of the newest entry; 0 without any."""
    page = await call.store.configurations(limit=1)
    return page.items[0].number if page.items else 0


async def index(call: Call) -> Answer:
    page = await call.store.configurations(limit=call.query.limit, cursor=call.query.cursor)
    value = {"items": [_view(row) for row in page.items], "cursor": page.cursor}
    return Answer(value, version=str(await _head(call)))


async def show(call: Call) -> Answer:
    row, payload = await _entry(call)
    if row.told["of"] == "file":
        found = {"diff": payload.get("diff", []), "config": payload.get("config")}
    else:
        found = {"diff": _differences([(unit["kind"], unit["name"], unit["before"], unit["after"]) for unit in payload.get("units", [])])}
    return Answer({**_view(row), **found}, version=str(await _head(call)))


async def _entry(call: Call) -> tuple[ConfigurationRow, dict[str, Any]]:
    """Raises NotFound, ConfigError."""
    text = call.path["number"]
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise NotFound(f"The entries of the configuration's history have numbers, such as 17; {text[:64]!r} is none.")
    return await call.store.configuration(int(text))


def _differences(changed: list[tuple[str, str, dict[str, Any] | None, dict[str, Any] | None]]) -> list[dict[str, Any]]:
    found = []
    for kind, name, before, after in changed:
        collection = KINDS[kind]
        was, now = (None if body is None else sync.decided(collection, name, body) for body in (before, after))
        found += [{**entry, "path": f"{kind}/{name}.{entry['path']}"} for entry in collection.diff(was, now)]
    return found


# --- going back


async def rollback(call: Call) -> Answer:
    """If-Match names the newest entry that the caller has seen."""
    row, payload = await _entry(call)
    call.target = f"config/history/{row.number}"
    if not row.whole:
        raise problems.simple(409, "not_whole", "This entry was too large to be kept with its settings, so nothing can go back to it.")
    head = await _head(call)
    if call.expected() is not None and call.expected() != head:
        raise _moved_on(head)
    return await (_of_file(call, row, payload) if row.told["of"] == "file" else _of_store(call, row, head))


def _moved_on(head: int) -> VersionMismatch:
    error = VersionMismatch(f"The newest entry is {head} by now: look at the history again.")
    error.current = head
    return error


async def _of_file(call: Call, row: ConfigurationRow, payload: dict[str, Any]) -> Answer:
    """Refused, with the reason, where the text can no longer be put into force; nothing has changed then."""
    config = call.ports.config
    version, before = config.version, await current(call)
    # shielded: a caller that goes away must not leave the audit log without the outcome
    outcome = await asyncio.shield(
        config.apply(
            str(payload["text"]),
            source=f"admin:{call.actor}",
            dry_run=call.dry_run,
            expected=version,
            actor=call.actor,
            restores=row.number,
        )
    )
    diff = await changed(before, outcome["would"] if call.dry_run else await current(call))
    if not call.dry_run:
        call.diff = diff
    known = {key: outcome[key] for key in ("applied", "changed", "version", "until_restart")}
    return Answer({"dry_run": call.dry_run, "number": row.number, "of": "file", "diff": diff, **known})


async def _of_store(call: Call, row: ConfigurationRow, head: int) -> Answer:
    """Everything is examined as it will be before anything is written; the writes and deletions are one transaction."""
    call.require("resources:sync")
    wanted = await _after(call, row.number, head)
    kinds = [kind for kind in sync.KINDS if any(kind == which for which, _ in wanted)]
    found = await sync.held(call, kinds)
    if (newest := await _head(call)) != head:  # what was written meanwhile, such as a deletion, is not to be undone unseen
        raise _moved_on(newest)
    items = [
        item
        for (kind, name), body in wanted.items()
        if (item := _item(call, KINDS[kind], name, body, found.resources[kind].get(name))) is not None
    ]
    then = await in_slices(sync.planned(found, items))
    for item in items:
        await asyncio.sleep(0)  # requests get the loop in between
        with about(item.kind, item.name):
            await sync.examine(call, then, item)
    await sync.write(call, items, row.number, (found.seq, [kind for kind in kinds if kind != "users"]))  # logins make users all the time
    call.diff = await in_slices(sync.differing(items))
    changed = [item.path for item in items]
    answer = {
        "dry_run": call.dry_run,
        "number": row.number,
        "of": "store",
        "applied": not call.dry_run,
        "changed": changed,
        "diff": call.diff,
    }
    return Answer(answer)


async def _after(call: Call, number: int, head: int) -> dict[tuple[str, str], dict[str, Any] | None]:
    """What each resource that was written since was then; None: it was not there. Raises RequestError where that is not known."""
    wanted: dict[tuple[str, str], dict[str, Any] | None] = {}
    cursor: str | None = None
    while True:
        page = await call.store.configurations(limit=PAGE, cursor=cursor)
        for row in page.items:
            if row.number <= number:
                return wanted
            if row.number > head or row.told["of"] != "store":
                continue
            if not row.whole:
                message = f"The later entry {row.number} was too large to be kept with its settings, so nothing goes back beyond it."
                raise problems.simple(409, "not_whole", message)
            _, payload = await call.store.configuration(row.number)
            for unit in payload["units"]:
                wanted[unit["kind"], unit["name"]] = unit["before"]
        cursor = page.cursor
        if cursor is None:
            return wanted


def _item(call: Call, collection: Collection[Any], name: str, body: dict[str, Any] | None, now: Resource | None) -> sync.Item | None:
    """None: it is as it was then."""
    if (now is None and body is None) or (now is not None and now.body == body):
        return None
    if name in sync.filed(call, collection.kind):
        raise read_only(collection.singular, name)
    was = None if now is None else sync.decided(collection, name, now.body)
    if body is None:
        return sync.Item(collection.kind, name, "deleted", collection.diff(was, None), now, collection)
    plain = sync.decided(collection, name, body)
    try:
        settings = msgspec.convert(plain, collection.settings)
    except msgspec.ValidationError as error:
        raise RequestError(f"{collection.kind}/{name} was stored in a form that this version cannot use: {error}", param=name) from None
    action = "created" if now is None else "replaced"
    kept = bindings.plain(body) if collection.kind == bindings.BINDINGS.kind else body
    return sync.Item(collection.kind, name, action, collection.diff(was, plain), now, collection, settings, kept)


def operations() -> list[Operation]:
    return [
        Operation("GET", "config/history", "config:read", "List the configurations that were in force", index, HistoryList, HistoryQuery),
        Operation("GET", "config/history/{number}", "config:read", "Show one of them, and what it changed", show, HistoryEntry, finds=True),
        Operation(
            "POST",
            "config/history/{number}/rollback",
            "config:apply",
            "Go back to one of them",
            rollback,
            RolledBack,
            Written,
            conditional=True,
            engine=True,
            finds=True,
            refuses=(409,),
        ),
    ]
