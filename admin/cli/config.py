"""`gatehouse config`: the configuration of a running gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from admin.cli.client import LONG
from admin.cli.errors import CommandError
from admin.cli.output import Format
from admin.cli.session import DryRun, Session, connected

group = typer.Typer(no_args_is_help=True, help="The configuration of a running gateway.")


@group.command("show")
@connected
def show(session: Session) -> None:
    """Shows the configuration in force, secrets masked."""
    with session.client() as client:
        found = client.get("/config")
    if session.out.for_people:
        session.out.format = Format.yaml
        session.out.remark(f"# version {found['version']}")
    session.out.data(found["config"])


@group.command("apply")
@connected
def apply(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A configuration; its references are read by the gateway.")],
    version: Annotated[int | None, typer.Option("--if-version", help="Only if this version is in force.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Puts a configuration into force until the next restart: the gateway's own file is not written. An invalid one changes nothing."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None
    headers = {"content-type": "application/yaml", **({} if version is None else {"if-match": f'"{version}"'})}
    with session.client() as client, session.out.remarks.status("apply"):
        params = {"dry_run": "true"} if dry_run else {}
        answer = client.json("PUT", "/config", content=text, headers=headers, params=params, timeout=LONG)
    session.out.one(answer)
    if answer.get("until_restart"):
        session.out.remark("Not in the gateway's file: a restart, or reading the file again, brings the file's configuration back.")


@group.command("reload")
@connected
def reload(session: Session) -> None:
    """Has the gateway read its file again."""
    with session.client() as client, session.out.remarks.status("reload"):
        answer = client.post("/config/reload", timeout=LONG)
    session.out.one(answer)
