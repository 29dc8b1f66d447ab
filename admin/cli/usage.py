"""`gatehouse usage`, `gatehouse usage report` and `gatehouse limits reconcile`."""

from __future__ import annotations

import csv
import io
import re
import sys
import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from admin.cli import completion
from admin.cli.errors import CommandError, UsageError
from admin.cli.keys import duration
from admin.cli.session import Session, connected

BY: Final = ("tenant", "key", "user", "agent", "model", "operation", "currency", "day")
COUNTED: Final = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "unknown", "cost", "currency")
group = typer.Typer(help="Usage: requests, tokens and costs.", invoke_without_command=True)
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.", autocompletion=completion.tenants)]


class ReportFormat(StrEnum):
    csv = "csv"
    json = "json"


def first_day(text: str, now: float) -> str:
    """The day (UTC) that a text names: `2026-01-31` itself, or the day that lies a duration such as `7d` back. Raises UsageError."""
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        return text
    try:
        back = duration(text)
    except UsageError:
        raise UsageError(f"{text!r} is neither a day such as 2026-01-31 nor a duration such as 24h or 30d") from None
    return datetime.fromtimestamp(max(0.0, now - back), UTC).strftime("%Y-%m-%d")


@group.callback()
@connected
def usage(
    session: Session,
    context: typer.Context,
    by: Annotated[str, typer.Option("--by", help=f"Any of {', '.join(BY)}, separated by commas.")] = "tenant,model",
    since: Annotated[
        str | None, typer.Option("--since", help="The first day, YYYY-MM-DD (UTC), or how far back, such as 24h or 30d.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="The last day.")] = None,
    tenant: Tenant = None,
    of_key: Annotated[str | None, typer.Option("--key-id", help="Only this key's.", autocompletion=completion.keys)] = None,
    user: Annotated[str | None, typer.Option("--user", help="Only this user's.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Only this agent's.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only this model's.", autocompletion=completion.models)] = None,
    operation: Annotated[str | None, typer.Option("--operation", help="Only this operation's.")] = None,
) -> None:
    """Reports requests, tokens and costs."""
    if context.invoked_subcommand is not None:
        return
    if wrong := [group for group in by.split(",") if group not in BY]:
        raise UsageError(f"--by {wrong[0]!r} is none of {', '.join(BY)}")
    with session.client() as client:
        wanted = {"tenant": tenant, "key": of_key, "user": user, "agent": agent, "model": model, "operation": operation}
        start = None if since is None else first_day(since, time.time())
        report = client.items("/usage", group_by=by, since=start, until=until, limit=10000, **wanted)
        session.out.rows(report, tuple(dict.fromkeys((*by.split(","), *COUNTED))))


@connected
def sessions(
    session: Session,
    since: Annotated[str | None, typer.Option("--since", help="The first day, or how far back, such as 24h.")] = None,
    tenant: Tenant = None,
    of: Annotated[str | None, typer.Option("--session", help="Only this session.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="The number of sessions, most recently used first.", min=1, max=10_000)] = 100,
) -> None:
    """Reports the usage of the most recent sessions."""
    start = None if since is None else first_day(since, time.time())
    with session.client() as client:
        found = client.get("/usage:sessions", since=start, tenant=tenant, session=of, limit=limit)["items"]
        session.out.rows(found, ("last", "tenant", "session", "agent", "user", "key", *COUNTED))


@connected
def engines(
    session: Session,
    since: Annotated[str | None, typer.Option("--since", help="The first day, or how far back; default: today.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="The last day.")] = None,
) -> None:
    """Reports the cost of engines with a rate, busy and idle."""
    start = None if since is None else first_day(since, time.time())
    with session.client() as client:
        found = client.get("/usage:engines", since=start, until=until)["items"]
        session.out.rows(found, ("engine", "requests", "begins", "hours", "busy_hours", "cost", "idle_cost", "whole_cost", "currency"))


@connected
def report(
    session: Session,
    month: Annotated[str, typer.Option("--month", help="YYYY-MM (UTC).")],
    by: Annotated[str, typer.Option("--by", help="cost-centre.")] = "cost-centre",
    tenant: Tenant = None,
    format: Annotated[ReportFormat | None, typer.Option("--format", help="The format; default: csv, unless --output is set.")] = None,
) -> None:
    """Reports what each cost centre pays for a month."""
    if by != "cost-centre":
        raise UsageError("--by is cost-centre; for other groups: gatehouse usage --by")
    with session.client() as client:
        found = client.get("/usage:cost-centres", month=month, tenant=tenant)
    if format is ReportFormat.csv or (format is None and session.out.for_people):
        sys.stdout.write(as_csv(found["items"]))
    else:
        session.out.data(found)


def as_csv(rows: list[dict[str, Any]]) -> str:
    """RFC 4180, with a line of names. A text that a spreadsheet would take for a formula gets an apostrophe before it."""
    out = io.StringIO()
    columns = ("cost_centre", "currency", "cost", *COUNTED[:6])
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_harmless(row[name]) for name in columns])
    return out.getvalue()


def _harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


@connected
def reconcile(session: Session) -> None:
    """Recomputes from the audit log what was used, and compares it with what was charged. Exit code 1 if they differ, or if a budget was
    charged less."""
    with session.client() as client:
        found = client.get("/usage:reconcile")
    if session.out.for_people:
        shown = [line for line in found["scopes"] if line["difference"]] or [line for line in found["scopes"] if line["scope"] == "all"]
        session.out.rows(shown, ("scope", "unit", "from_audit", "charged", "difference"))
        for writer in found["writers"]:
            since = f", from {writer['complete_from']} on" if writer["complete_from"] else ""
            session.out.remark(f"the log of {writer['writer']} up to line {writer['up_to']}{since}")
        session.out.remark(f"difference: {found['difference']}")
        if unlike := [line for line in found["budgets"] if line["difference"]]:
            session.out.rows(unlike, ("limit", "scope", "unit", "from_audit", "charged", "in_hand", "under_way", "lost", "difference"))
        session.out.remark(
            f"{len(found['budgets']) - len(unlike)} of {len(found['budgets'])} budgets and lasting rates are as the audit log says"
        )
        for left in found["not_compared"]:
            session.out.remark(f"the limit {left['limit']} is not compared: {left['reason']}")
    else:
        session.out.data(found)
    if found["difference"] or any(line["difference"] < 0 for line in found["budgets"]):
        raise CommandError("what was charged is not what the audit log says")


group.command("report")(report)
group.command("sessions")(sessions)
group.command("engines")(engines)
