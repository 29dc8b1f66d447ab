"""Applies a file of resources to the store: creates new ones, replaces different ones, deletes none; all or nothing."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from admin.cli.client import LONG, ApiError, Client
from admin.cli.errors import CommandError
from admin.cli.output import Output, clean
from gateway.core.errors import ConfigError
from gateway.wire import yamltree

Wanted = dict[str, list[dict[str, Any]]]
"""Resources by kind."""
SHOWN: Final = 200
"""Characters of a value."""
_PLACE: Final = re.compile(r"^(\w+)\[(\d+)\](?:\.|: |$)")


def text_of(file: Path, most: int = yamltree.MAX_BYTES) -> tuple[str, str]:
    """The content of a file (or standard input for `-`) and its name in errors. Raises CommandError."""
    if str(file) == "-":
        data, where = sys.stdin.buffer.read(most + 1), "standard input"
    else:
        where = str(file)
        try:
            data = file.read_bytes()
        except OSError as error:
            raise CommandError(f"{file}: {error.strerror}") from None
    if len(data) > most:
        raise CommandError(f"{where} is larger than {most} bytes")
    try:
        return data.decode("utf-8"), where
    except UnicodeDecodeError as error:
        raise CommandError(f"{where} is not UTF-8: byte {error.start} cannot be read") from None


def read(file: Path, kinds: Sequence[str], by_name: Sequence[str] = (), *, nameless: bool = False) -> Wanted:
    """The resources of a file (`-`: of standard input), in the order of the kinds. by_name: kinds that may be written as in the
    configuration, as a mapping of names. nameless: whether they may have no name. Raises CommandError."""
    text, where = text_of(file)
    try:
        root = yamltree.read(text, file=where)
    except ConfigError as error:
        raise CommandError(str(error)) from None
    found = yamltree.plain(root)
    if not isinstance(found, dict) or not found:
        raise CommandError(f"{where} must hold a mapping with {', '.join(kinds)}")
    if others := [repr(kind) for kind in found if kind not in kinds]:
        raise CommandError(f"{where} must hold nothing but {', '.join(kinds)}; it also has {_short(', '.join(others))}")
    listed(found, by_name, where)
    for kind, items in found.items():
        if not isinstance(items, list) or any(not isinstance(item, dict) or not (nameless or item.get("name")) for item in items):
            raise CommandError(f"{where}: {kind} must be a list of mappings{'' if nameless else ' with a name'}")
    return {kind: found[kind] for kind in kinds if kind in found}


def listed(found: dict[str, Any], by_name: Sequence[str], where: str) -> None:
    """Turns mappings of names into lists. Raises CommandError for a name without settings: it must not look as if it were not there."""
    for kind in by_name:
        if isinstance(found.get(kind), dict):
            for name, body in found[kind].items():
                if not isinstance(body, dict):
                    raise CommandError(f"{where}: {kind}.{name} must be a mapping")
                if body.get("name", name) != name:
                    raise CommandError(f"{where}: {kind}.{name} has another name, {_short(repr(body['name']))}")
            found[kind] = [{"name": name, **body} for name, body in found[kind].items()]


def named(wanted: Mapping[str, Any], message: str) -> str:
    """An error with `limits/NAME: ` for `limits[3].`, and for `limits[3]`."""
    return _PLACE.sub(lambda place: _named(wanted, place), message, count=1)


def _named(wanted: Mapping[str, Any], place: re.Match[str]) -> str:
    kind, index = place[1], int(place[2])
    known = wanted.get(kind, [])
    one = known[index] if isinstance(known, list) and index < len(known) else None
    name = one.get("name", one.get("id")) if isinstance(one, dict) else None
    return place[0] if name is None else f"{kind}/{name}: "


def apply_all(client: Client, wanted: Wanted, dry_run: bool) -> list[dict[str, Any]]:
    """The result for each: kind, name, action, diff. Raises ApiError naming the first one refused; then nothing has changed."""
    try:
        answer = client.post("/apply", wanted, timeout=LONG, dry_run=dry_run)
    except ApiError as error:
        raise ApiError(error.status, named(wanted, str(error))) from None
    done: list[dict[str, Any]] = answer["items"]
    return done


def report(out: Output, done: Sequence[Mapping[str, Any]]) -> None:
    """Prints the results of `apply_all`."""
    if not out.for_people:
        out.data(list(done))
        return
    for item in done:
        for line in lines(item):
            sys.stdout.write(f"{line}\n")


def lines(item: Mapping[str, Any]) -> list[str]:
    """One result for people: what happened to a resource, and one line for each setting where it replaced another one."""
    changes = item["diff"] if item["action"] == "replaced" else ()
    return [
        clean(f"{item['action']} {item['kind']}/{item['name']}"),
        *(clean(f"  {change['path']}: {_value(change['from'])} -> {_value(change['to'])}") for change in changes),
    ]


def _value(value: Any) -> str:
    return _short(json.dumps(value, ensure_ascii=False))


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
