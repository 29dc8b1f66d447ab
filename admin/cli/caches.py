"""`gatehouse caches`: what is kept of models' answers."""

from __future__ import annotations

from typing import Annotated

import typer

from admin.cli.cache_warming import warm
from admin.cli.client import LONG
from admin.cli.errors import UsageError
from admin.cli.session import DryRun, Session, connected

group = typer.Typer(no_args_is_help=True, help="Cached answers: show, warm, purge.")
COLUMNS = ("model", "entries", "bytes", "hits", "semantic", "joined", "misses", "bypassed", "evicted", "expired", "purged")
BEHIND = ("name", "up", "entries", "bytes", "hits", "misses", "late", "skipped", "foreign", "stored", "dropped", "evicted")


group.command("warm")(warm)


@group.command("list")
@connected
def index(session: Session) -> None:
    """Shows the cache of each model that has one."""
    with session.client() as client:
        session.out.rows(client.get("/caches")["items"], COLUMNS)


@group.command("behind")
@connected
def behind(session: Session) -> None:
    """Shows the disk and Redis caches behind the memory."""
    with session.client() as client:
        session.out.rows(client.get("/caches")["behind"], BEHIND)


@group.command("purge")
@connected
def purge(
    session: Session,
    model: Annotated[str | None, typer.Option("--model", help="Only answers of this model.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only answers of this tenant.")] = None,
    answer: Annotated[str | None, typer.Option("--answer", help="Only this answer: `cache_key` in the audit record's detail.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All answers.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Deletes cached answers in memory, on disk and in Redis, on this replica and then on the others."""
    params = {name: value for name, value in (("model", model), ("tenant", tenant), ("key", answer)) if value is not None}
    if bool(params) == everything:
        raise UsageError("say which answers: --model, --tenant, --answer, several of them, or --all alone")
    if dry_run:
        params["dry_run"] = "true"
    with session.client() as client:
        session.out.one(client.json("DELETE", "/caches", params=params, timeout=LONG))
