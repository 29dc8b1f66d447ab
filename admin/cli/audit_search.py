"""`gatehouse audit search` and `gatehouse audit report`: what is in the audit log's index."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from admin.cli import completion
from admin.cli.audit_fleet import found_by_all, reported_by_all
from admin.cli.audit_html import page
from admin.cli.client import Client
from admin.cli.errors import CommandError, UsageError
from admin.cli.keys import duration
from admin.cli.newfile import new_file
from admin.cli.session import Session, connected
from gateway.core.audit_questions import NO_KEYS, AuditSearch, Unopened
from gateway.core.errors import GatehouseError

SearchOffline = Callable[[Path, AuditSearch, Path | None, bool], tuple[list[dict[str, Any]], Unopened]]
"""(directory, what is wanted, the configuration file whose keys open it, with the lines) to the entries, and to how many encrypted ones
could not be opened: gateway.app.offline, handed in by the composition root. Raises OSError, or an error whose text says what is wrong."""
COLUMNS: Final = (
    "time",
    "tenant",
    "tenants",
    "principal",
    "user",
    "operation",
    "model",
    "outcome",
    "code",
    "endpoint",
    "rule",
    "event",
    "target",
    "actor",
    "peer",
    "request_id",
)
MOST: Final = 100_000


class ReportFormat(StrEnum):
    html = "html"
    json = "json"


Text = str | None
Also = Annotated[
    list[str] | None, typer.Option("--also", metavar="URL", help="The admin listener of another replica, to ask with the same key.")
]
Config = Annotated[
    Path | None, typer.Option("--config", help="With --dir: the gateway's configuration, whose keys open encrypted records.")
]


def make(search_offline: SearchOffline) -> Callable[..., None]:
    """`audit search`; with --dir it works offline."""

    @connected
    def search(
        session: Session,
        request: Annotated[Text, typer.Option("--request", help="The request with this id.")] = None,
        tenant: Annotated[Text, typer.Option("--tenant", help="In this tenant.", autocompletion=completion.tenants)] = None,
        of_key: Annotated[Text, typer.Option("--key-id", help="By this key id or subject.", autocompletion=completion.keys)] = None,
        user: Annotated[Text, typer.Option("--user", help="By this user.")] = None,
        agent: Annotated[Text, typer.Option("--agent", help="By this agent.")] = None,
        of: Annotated[Text, typer.Option("--session", help="In this session.")] = None,
        method: Annotated[Text, typer.Option("--method", help="By this login method, such as api_key.")] = None,
        peer: Annotated[Text, typer.Option("--peer", help="From this address.")] = None,
        model: Annotated[Text, typer.Option("--model", help="For this model.", autocompletion=completion.models)] = None,
        endpoint: Annotated[Text, typer.Option("--endpoint", help="Answered by this endpoint.")] = None,
        operation: Annotated[Text, typer.Option("--operation", help="For this operation.")] = None,
        outcome: Annotated[Text, typer.Option("--outcome", help="ok, denied, failed, cancelled, timeout or unknown.")] = None,
        code: Annotated[Text, typer.Option("--code", help="With this code, such as policy_denied.")] = None,
        rule: Annotated[Text, typer.Option("--rule", help="Decided by this rule.")] = None,
        guardrail: Annotated[Text, typer.Option("--guardrail", help="Refused by this guardrail.")] = None,
        event: Annotated[Text, typer.Option("--event", help="Events of this name, such as 'admin.keys.*'.")] = None,
        actor: Annotated[Text, typer.Option("--actor", help="Events that this administrator caused.")] = None,
        target: Annotated[Text, typer.Option("--target", help="Events about this, such as 'keys/*'.")] = None,
        kind: Annotated[
            Text, typer.Option("--kind", help="request or event.", autocompletion=completion.one_of("request", "event"))
        ] = None,
        since: Annotated[Text, typer.Option("--since", help="How far back, such as 24h.")] = None,
        until: Annotated[Text, typer.Option("--until", help="Only records older than this, such as 1h.")] = None,
        limit: Annotated[int, typer.Option("--limit", help="How many, newest first.", min=1, max=MOST)] = 50,
        records: Annotated[bool, typer.Option("--records", help="Include the log's own lines (--output json).")] = False,
        also: Also = None,
        directory: Annotated[Path | None, typer.Option("--dir", help="The log's directory: search it here, without a gateway.")] = None,
        config: Config = None,
    ) -> None:
        """Searches requests and events, the newest first. In a text, * stands for any characters. Exit code 1 if not everything could be
        searched."""
        now = time.time()
        times = {name: now - duration(text) for name, text in (("since", since), ("until", until)) if text is not None}
        given = {"request_id": request, "tenant": tenant, "user": user, "agent": agent, "session": of, "method": method, "peer": peer}
        given |= {"model": model, "endpoint": endpoint, "operation": operation, "outcome": outcome, "code": code, "rule": rule}
        given |= {"guardrail": guardrail, "event": event, "actor": actor, "target": target, "kind": kind}
        texts = {name: text for name, text in given.items() if text is not None}
        if config is not None and directory is None:
            raise UsageError("--config goes with --dir: a gateway opens with its own keys")
        if directory is not None:
            asked = msgspec.convert({**texts, **times, "principal": of_key, "limit": limit}, AuditSearch)
            found, whole = _offline(session, partial(search_offline, directory, asked, config, records), directory)
        else:
            wanted = {**texts, **times, **({} if of_key is None else {"key": of_key}), **({"records": "true"} if records else {})}
            clients: list[Callable[[], Client]] = [session.client, *(partial(session.client_of, url) for url in also or ())]
            found, whole = _of_all(session, clients, wanted, limit)
        _show(session, found, event)
        if not whole:
            raise typer.Exit(1)

    return search


def _show(session: Session, found: list[dict[str, Any]], event: str | None) -> None:
    if found or not session.out.for_people:
        session.out.rows(found, columns(found))
    else:
        more = f"; --event '*{event}*' finds all whose names contain it" if event is not None and "*" not in event else ""
        session.out.remark(f"nothing was found{more}")


def columns(found: Sequence[dict[str, Any]]) -> Sequence[str]:
    """The columns that have a value in some row. The address is shown only if the author of some row is unknown."""
    unknown = any(one.get("peer") and not one.get("principal") for one in found)
    return [name for name in COLUMNS if any(one.get(name) for one in found) and (name != "peer" or unknown)]


def _of_all(session: Session, clients: list[Callable[[], Client]], wanted: dict[str, Any], limit: int) -> tuple[list[dict[str, Any]], bool]:
    """What the replicas have found, and whether all that were asked answered; tells whose logs were not searched."""
    found, missing, failures, unopened = found_by_all(clients, wanted, limit)
    if missing:
        session.out.remark(f"not searched: the logs of {', '.join(missing)}; name their admin listeners with --also")
    for failure in failures:
        session.out.remark(f"the search is incomplete: {failure}")
    _tell_unopened(session, unopened)
    return found, not failures and not unopened


def _tell_unopened(session: Session, unopened: Unopened) -> None:
    for why, count in sorted(unopened.items()):
        session.out.remark(f"the search is incomplete: {count} requests and events are encrypted as a whole and may fit, too ({why})")


def _offline(
    session: Session, search: Callable[[], tuple[list[dict[str, Any]], Unopened]], directory: Path
) -> tuple[list[dict[str, Any]], bool]:
    """What is in the directory, and whether all of it could be searched; tells what could not."""
    try:
        found, unopened = search()
    except OSError as error:
        raise CommandError(f"{error.filename or directory}: {error.strerror or error}") from None
    except GatehouseError as error:
        raise CommandError(str(error)) from None
    _tell_unopened(session, unopened)
    if NO_KEYS in unopened:
        session.out.remark("name the gateway's configuration with --config, which has their keys, or search by what is in the clear alone:")
        session.out.remark("request, tenant, outcome, event and time")
    return found, not unopened


@connected
def report(
    session: Session,
    since: Annotated[str, typer.Option("--since", help="How far back the period begins, such as 30d.")] = "30d",
    until: Annotated[str | None, typer.Option("--until", help="How far back the period ends; default: now.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.", autocompletion=completion.tenants)] = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Verify the whole log too.")] = True,
    format: Annotated[ReportFormat, typer.Option("--format", help="The output format.")] = ReportFormat.html,
    to: Annotated[Path | None, typer.Option("--to", help="A new file; default: standard output.")] = None,
    also: Also = None,
) -> None:
    """Reports on a period: accesses, denials, logins, changes, the log's integrity, and which of an auditor's requirements that meets. Exit
    code 1 if a replica that was asked did not answer."""
    now = time.time()
    params: dict[str, Any] = {"since": now - duration(since), "verify": "true" if verify and tenant is None else "false"}
    params |= {} if until is None else {"until": now - duration(until)}
    params |= {} if tenant is None else {"tenant": tenant}
    if also and until is None:
        params["until"] = now  # the same period of all
    found, failures = reported_by_all([session.client, *(partial(session.client_of, url) for url in also or ())], params)
    for failure in failures:
        session.out.remark(f"the report is incomplete: {failure}")
    for why, count in sorted(found["unopened"].items()):
        session.out.remark(f"{count} requests and events could not be decrypted ({why}): the report has only what is in the clear")
    _write(session, found, format, to)
    if failures:
        raise typer.Exit(1)


def _write(session: Session, found: dict[str, Any], format: ReportFormat, to: Path | None) -> None:
    if to is None and format is ReportFormat.json:
        session.out.data(found)
        return
    text = page(found) if format is ReportFormat.html else session.out.encoded(found)
    if to is None:
        typer.echo(text)
        return
    with new_file(to) as file:
        file.write(text.encode())
