"""`gatehouse dump`, `gatehouse diff`, `gatehouse sync`: what is decided in the store, as a file."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from admin.cli.apply import lines, listed, named, text_of
from admin.cli.client import LONG, ApiError, Client
from admin.cli.errors import CommandError
from admin.cli.output import Format, clean
from admin.cli.session import DryRun, Session, connected
from admin.cli.yamltext import written
from gateway.core.errors import ConfigError
from gateway.wire import yamltree

MAX_BYTES: Final = 8 * 1024 * 1024
_BY_NAME: Final = ("roles",)
"""Kinds that may be written as in the configuration, as a mapping of names."""
LEFT_OUT: Final = "schedules of jobs, joined machines, suspensions, halts, legal holds, and states such as usage and files of clients"
"""What people may take for a part of a dump; docs/cli.md has the whole list."""
UNKNOWN: Final = 2
"""The exit code of `diff` where it does not know, as that of diff(1)."""
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON as `dump` writes it; `-` is standard input.")]


@connected
def dump(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; `-` is standard output.")],
    kinds: Annotated[list[str] | None, typer.Option("--kind", help="Only this kind, such as limits; repeat it.")] = None,
) -> None:
    """Writes the store's resources to a file: YAML, or JSON with -o json or to a FILE.json. Secrets are masked."""
    with session.client() as client:
        found = client.json("GET", "/dump", timeout=LONG, params={"kinds": ",".join(kinds)} if kinds else {})
    unread = [kind for kind, items in found.items() if items is None]
    if unread and not kinds:
        raise CommandError(f"you may not read all {', '.join(unread)}: say with --kind what the dump is to have")
    found = {kind: items for kind, items in found.items() if items is not None}
    as_json = session.out.format is Format.json or file.suffix == ".json"
    text = json.dumps(found, indent=2, ensure_ascii=False) + "\n" if as_json else written(found)
    most = MAX_BYTES if as_json else yamltree.MAX_BYTES
    if len(text.encode() if as_json else text) > most:  # better said now than when the file is needed
        what, shorter = ("bytes of JSON", "leave kinds out with --kind") if as_json else ("characters of YAML", "write JSON")
        session.out.remark(f"WARNING: `diff` and `sync` read no more than {most} {what}: {shorter}")
    if str(file) == "-":
        sys.stdout.buffer.write(text.encode())  # in UTF-8 as in a file, whatever the terminal's encoding
        sys.stdout.buffer.flush()
        return
    try:
        replace(file, text)
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None
    session.out.remark(f"{file}: {', '.join(f'{len(items)} {kind}' for kind, items in found.items())}")
    if not kinds:
        session.out.remark(f"not in it: {LEFT_OUT}; a backup of the database has them (docs/cli.md)")


@partial(connected, trouble=UNKNOWN)
def diff(session: Session, file: FileArgument) -> None:
    """Prints what `sync` would create, replace and delete for a file. Exit code 1 if the store differs, 2 if that cannot be found out."""
    wanted = read(file)
    with session.client() as client:
        found = _asked(client, "/sync:diff", wanted)
    show(session, found)
    if found["items"]:
        raise typer.Exit(1)


@connected
def sync(
    session: Session,
    file: FileArgument,
    delete: Annotated[bool, typer.Option("--delete", help="Delete what the file does not contain, without asking.")] = False,
    revive: Annotated[bool, typer.Option("--revive", help="Let expired keys be valid again, without asking.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Makes the store equal to a file, all or nothing. Kinds that the file does not name stay unchanged.

    What would be deleted, and expired keys that would be valid again, are named first, and confirmed at the terminal or by --delete and
    --revive. Exit code 1 when a key has still to be created.
    """
    wanted = read(file)
    with session.client() as client:
        found = _asked(client, "/sync", wanted, dry_run="true")
        show(session, found)
        gone = [f"{item['kind']}/{item['name']}" for item in found["items"] if item["action"] == "deleted"]
        again = [f"{item['kind']}/{item['name']}" for item in found["items"] if item.get("revives")]
        doing = [item for item in found["items"] if item["action"] != "missing"]
        if doing and not dry_run:
            _confirm(gone, delete, file, "delete {}", "--delete")
            _confirm(again, revive, file, "make expired keys valid again: {}", "--revive")
            allowed = {name: "true" for name, listed in (("delete", gone), ("revive", again)) if listed}
            _asked(client, "/sync", wanted, plan=found["plan"], **allowed)
            session.out.remark(f"done: {_differences(doing)}")
    missing = [item["name"] for item in found["items"] if item["action"] == "missing"]
    if missing:
        raise CommandError(f"to be created with `gatehouse keys create --id ID`, as a file has no secrets: keys {', '.join(missing)}")


def _confirm(paths: list[str], allowed: bool, file: Path, what: str, option: str) -> None:
    """Raises CommandError unless it is wanted."""
    if not paths or allowed:
        return
    named = what.format(", ".join(paths))
    if str(file) == "-" or not sys.stdin.isatty():
        raise CommandError(f"this would {named}; nothing has changed: say {option}")
    if not typer.confirm(clean(f"{named[:1].upper()}{named[1:]}?"), err=True):
        raise CommandError("nothing has changed")


def _asked(client: Client, path: str, wanted: dict[str, Any], **params: str) -> Any:
    try:
        return client.json("POST", path, timeout=LONG, params=params, json=wanted)
    except ApiError as error:
        raise ApiError(error.status, named(wanted, str(error))) from None


def show(session: Session, found: dict[str, Any]) -> None:
    """The differences, one line for each setting."""
    if not session.out.for_people:
        session.out.one(found)
        return
    for item in found["items"]:
        for line in lines(item):
            typer.echo(line)
        if item.get("revives"):
            typer.echo("  WARNING: this key has expired, and would be valid again")
    session.out.remark(f"{_differences(found['items'])}, {found['unchanged']} equal")


# --- files


def replace(file: Path, text: str) -> None:
    """Writes a file whole or not at all, for its owner only: who has which rights is nobody else's business. Raises OSError."""
    if file.exists() and not file.is_file():
        file.write_text(text, "utf-8")  # a pipe or a terminal
        return
    beside = file.with_name(f".{file.name}-{os.getpid()}")
    try:
        with open(beside, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as made:
            made.write(text)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def _differences(items: list[Any]) -> str:
    return f"{len(items)} difference{'' if len(items) == 1 else 's'}"


def read(file: Path) -> dict[str, Any]:
    """Resources by kind. Raises CommandError."""
    text, where = text_of(file, MAX_BYTES)
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
            json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:
            raise CommandError(f"{where}: a text has half of a surrogate pair") from None
        except RecursionError:
            raise CommandError(f"{where}: nested too deeply") from None
        except ValueError as error:
            raise CommandError(f"{where}: {error}") from None
    else:
        try:
            found = yamltree.plain(yamltree.read(text, file=where)) if text.strip() else None
        except ConfigError as error:
            raise CommandError(f"{error} (JSON may be longer)" if len(text) > yamltree.MAX_BYTES else str(error)) from None
    if not isinstance(found, dict) or not found:
        raise CommandError(f"{where} must hold a mapping with limits, roles, bindings or other kinds, as `gatehouse dump` writes them")
    listed(found, _BY_NAME, where)
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises ValueError for a name that appears twice: nobody could say which of the two counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} appears twice")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
