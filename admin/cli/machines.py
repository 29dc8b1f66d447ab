"""`gatehouse machines` and `gatehouse join-tokens`: machines whose engines have joined, and what they join with."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from admin.cli.client import name
from admin.cli.errors import UsageError
from admin.cli.session import DryRun, Session, connected

machines = typer.Typer(no_args_is_help=True, help="Machines that have joined with their engines (gatehouse engines run --join).")
tokens = typer.Typer(no_args_is_help=True, help="Tokens with which machines join.")
COLUMNS = ("name", "state", "drained", "address", "serves", "engines", "seen", "reason")
TOKEN_COLUMNS = ("id", "machines", "engines", "left", "expires_at", "created_by")
MachineName = Annotated[str, typer.Argument(metavar="MACHINE", help="The machine's name.")]
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@machines.command("list")
@connected
def index(session: Session) -> None:
    """Lists the machines that have joined, and whether this gateway hears from them."""
    with session.client() as client:
        found = client.get("/machines")["items"]
    shown = [{**one, "engines": [_engine(engine) for engine in one["engines"]]} for one in found] if session.out.for_people else found
    session.out.rows(shown, COLUMNS)


def _engine(engine: dict[str, Any]) -> str:
    return f"{engine['name']}({engine['state']}, {engine['in_use']}/{engine['slots']})"


@machines.command("show")
@connected
def show(session: Session, machine: MachineName) -> None:
    """Shows a machine with its engines and its load."""
    with session.client() as client:
        session.out.one(client.get(f"/machines/{name(machine)}"))


@machines.command("drain")
@connected
def drain(session: Session, machine: MachineName, dry_run: DryRun = False) -> None:
    """Stops sending new requests to a machine; those under way finish."""
    with session.client() as client:
        session.out.one(client.post(f"/machines/{name(machine)}/drain", dry_run=dry_run))


@machines.command("resume")
@connected
def resume(session: Session, machine: MachineName, dry_run: DryRun = False) -> None:
    """Sends requests to a machine again."""
    with session.client() as client:
        session.out.one(client.post(f"/machines/{name(machine)}/resume", dry_run=dry_run))


@machines.command("remove")
@connected
def remove(session: Session, machine: MachineName, dry_run: DryRun = False) -> None:
    """Removes a machine and its engines; to come back it must join again."""
    with session.client() as client:
        params = {"dry_run": "true"} if dry_run else {}
        session.out.one(client.json("DELETE", f"/machines/{name(machine)}", params=params))


@tokens.command("create")
@connected
def create(
    session: Session,
    machine: Annotated[list[str], typer.Option("--machine", help="A name that a machine may have, or a pattern such as gpu-*.")],
    engine: Annotated[list[str], typer.Option("--engine", help="An engine that it may serve, or a pattern.")],
    ttl: Annotated[str, typer.Option("--ttl", help="How long it is valid, such as 30m or 2d.")] = "1h",
    uses: Annotated[int, typer.Option("--uses", help="How many machines may join with it.", min=1, max=1000)] = 1,
    dry_run: DryRun = False,
) -> None:
    """Creates a join token and shows it, only this once."""
    body = {"machines": machine, "engines": engine, "ttl": _seconds(ttl), "uses": uses}
    with session.client() as client:
        session.out.one(client.post("/join-tokens", body, dry_run=dry_run))


@tokens.command("list")
@connected
def list_tokens(session: Session) -> None:
    """Lists the join tokens that have not been revoked."""
    with session.client() as client:
        session.out.rows(client.get("/join-tokens")["items"], TOKEN_COLUMNS)


@tokens.command("revoke")
@connected
def revoke(session: Session, token: Annotated[str, typer.Argument(metavar="ID", help="The token's id.")], dry_run: DryRun = False) -> None:
    """Revokes a join token. Machines that joined with it stay: see `machines list` and `machines remove`."""
    with session.client() as client:
        params = {"dry_run": "true"} if dry_run else {}
        session.out.one(client.json("DELETE", f"/join-tokens/{name(token)}", params=params))


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(s|m|h|d)", text)
    if found is None:
        raise UsageError(f"--ttl {text!r} is not a time; write 30m, 12h or 2d")
    return float(found[1]) * UNITS[found[2]]
