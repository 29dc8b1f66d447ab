"""`gatehouse config`: the configuration of a running gateway."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from admin.cli.client import LONG
from admin.cli.errors import CommandError
from admin.cli.output import Format
from admin.cli.session import DryRun, Session, connected

FEW: Final = 4
"""Paths of an entry in the list."""
STARTS: Final = {"first": "the first configuration", "again": "a start with another file"}
"""What an entry is that changes no setting of the one before; any other only changed the file's text."""
group = typer.Typer(no_args_is_help=True, help="The configuration of a running gateway.")


NumberArgument = Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="An entry of `gatehouse config history`.")]


@group.command("show")
@connected
def show(
    session: Session,
    number: Annotated[
        int | None, typer.Argument(metavar="[NUMBER]", help="An entry of the history; default: the configuration in force.")
    ] = None,
) -> None:
    """Shows the configuration in force, or an entry of the history and what it changed; secrets masked."""
    with session.client() as client:
        if number is not None:
            entry = client.get(f"/config/history/{number}")
            if session.out.for_people:
                session.out.format = Format.yaml
            session.out.data(entry)
            return
        found = client.get("/config")
    if session.out.for_people:
        session.out.format = Format.yaml
        session.out.remark(f"# version {found['version']}")
    session.out.data(found["config"])


@group.command("apply")
@connected
def apply(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A configuration file; the gateway resolves its references.")],
    version: Annotated[int | None, typer.Option("--if-version", help="Only if this version is in force.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Puts a configuration into force until the next restart; the gateway's own file stays as it is. An invalid one changes nothing."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None
    headers = {"content-type": "application/yaml", **({} if version is None else {"if-match": f'"{version}"'})}
    with session.client() as client, session.out.remarks.status("apply"):
        params = {"dry_run": "true"} if dry_run else {}
        answer = client.json("PUT", "/config", content=text, headers=headers, params=params, timeout=LONG)
    session.out.one(_short(session, answer))
    if answer["applied"] and answer.get("until_restart"):
        session.out.remark("Not in the gateway's file: a restart, or reading the file again, brings the file's configuration back.")


@group.command("history")
@connected
def history(session: Session, limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many, newest first.")] = 20) -> None:
    """Lists earlier configurations, from files and from changes of the store: who changed what, and when."""
    with session.client() as client:
        found = client.json("GET", "/config/history", params={"limit": str(limit)})
    columns = ("number", "at", "by", "of", "replica", "changed")
    session.out.rows([{**item, "changed": _few(item)} if session.out.for_people else item for item in found["items"]], columns)


def _few(item: dict[str, Any]) -> str:
    """The first paths; of an entry without any, what it is."""
    back = "" if item["rolled_back_to"] is None else f"back to {item['rolled_back_to']}: "
    more = item["count"] - FEW
    unchanged = STARTS.get(item.get("start") or "", "no setting")
    return back + (", ".join(item["changed"][:FEW]) or unchanged) + (f" and {more} more" if more > 0 else "")


def _short(session: Session, answer: dict[str, Any]) -> dict[str, Any]:
    """The changes as people read them, without the values, which `config show NUMBER` has."""
    return {key: value for key, value in answer.items() if key != "diff"} if session.out.for_people else answer


@group.command("rollback")
@connected
def rollback(
    session: Session,
    number: NumberArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Returns to an entry of the history: puts a file's text into force again, or undoes all later changes of the store.

    What would change is shown first, and confirmed at the terminal or by --yes. Nothing changes if something else was changed meanwhile.
    """
    path = f"/config/history/{number}/rollback"
    with session.client() as client, session.out.remarks.status("rollback"):
        newest = client.json("GET", "/config/history", params={"limit": "1"})["items"]
        headers = {"if-match": f'"{newest[0]["number"]}"'} if newest else {}  # without any, the next answer says that there is none
        plan = client.json("POST", path, headers=headers, params={"dry_run": "true"}, timeout=LONG)
    if dry_run:
        session.out.one(_short(session, plan))
        return
    if not plan["changed"]:
        session.out.remark("Nothing differs from what is in force.")
    elif not yes:
        for changed in plan["changed"]:
            session.out.remark(changed)
        if not sys.stdin.isatty():
            raise CommandError("nothing has changed: say --yes")
        if not typer.confirm(f"Go back to {number}?", err=True):
            raise CommandError("nothing has changed")
    with session.client() as client, session.out.remarks.status("rollback"):
        answer = client.json("POST", path, headers=headers, timeout=LONG)
    session.out.one(_short(session, answer))
    if answer.get("until_restart"):
        session.out.remark("Not in the gateway's file: a restart, or reading the file again, brings the file's configuration back.")


@group.command("reload")
@connected
def reload(session: Session) -> None:
    """Makes the gateway reload its file."""
    with session.client() as client, session.out.remarks.status("reload"):
        answer = client.post("/config/reload", timeout=LONG)
    session.out.one(answer)
