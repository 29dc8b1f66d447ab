"""`gatehouse webhooks`: who is told of events, and how that went."""

from __future__ import annotations

from typing import Annotated

import typer

from admin.cli.client import LONG, name
from admin.cli.errors import CommandError
from admin.cli.session import Session, connected

group = typer.Typer(no_args_is_help=True, help="Webhooks: receivers of events.")
COLUMNS = ("created", "webhook", "event", "status", "attempts", "code", "due", "error", "id")


@group.command("list")
@connected
def index(session: Session) -> None:
    """Lists the webhooks of the configuration."""
    with session.client() as client:
        session.out.rows(client.get("/webhooks")["items"], ("name", "url", "events", "timeout"))


@group.command("deliveries")
@connected
def deliveries(
    session: Session,
    webhook: Annotated[str | None, typer.Option("--webhook", help="Only this webhook's.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="How many, newest first.", min=1, max=1000)] = 50,
) -> None:
    """Lists the latest deliveries, newest first."""
    with session.client() as client:
        session.out.rows(client.get("/webhooks:deliveries", webhook=webhook, limit=limit)["items"], COLUMNS)


@group.command("test")
@connected
def test(session: Session, webhook: Annotated[str, typer.Argument(metavar="NAME", help="The webhook.")]) -> None:
    """Sends a test event now. Exit code 1 if it is not accepted."""
    with session.client() as client:
        done = client.json("POST", f"/webhooks/{name(webhook)}/test", timeout=LONG)
    session.out.one(done)
    if done["status"] != "delivered":
        raise CommandError(f"the webhook did not take it: {done['error']}")
