"""`gatehouse audit`: the audit log of a running gateway, and its verification without one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import Progress

from admin.audit_scope import scope_of
from admin.cli import audit_search, completion, texts
from admin.cli import client as urls
from admin.cli import holds as legal
from admin.cli.client import LONG
from admin.cli.errors import CommandError, UsageError
from admin.cli.keys import duration
from admin.cli.newfile import new_file
from admin.cli.output import Format, clean, moment, short
from admin.cli.session import Session, connected
from gateway.core.audit_questions import AuditScope
from gateway.core.errors import GatehouseError

Verify = Callable[[Path, Path, AuditScope, Callable[[int, int], None]], dict[str, Any]]
"""(directory, public key, what must be there, progress in bytes) to the report: gateway.audit.verify, handed in by the composition root.
Raises OSError, or an error whose text says what is wrong."""
FOLLOW_SECONDS: Final = 1.0
MOST_TAIL: Final = 1000
"""Records at a time."""
_SHOWN: Final = ("writer", "seq", "time", "kind", "hash")


class ExportFormat(StrEnum):
    jsonl = "jsonl"
    csv = "csv"
    ocsf = "ocsf"
    cef = "cef"


def make(verify: Verify, search_offline: audit_search.SearchOffline) -> typer.Typer:
    """The group; `verify` and `search` work offline."""
    group = typer.Typer(no_args_is_help=True, help="The audit log: read, search, export, verify.")
    group.command("tail")(tail)
    group.command("export")(export)
    texts.add(group)
    group.command("prove")(prove)
    group.command("search")(audit_search.make(search_offline))
    group.command("report")(audit_search.report)
    group.command("consistency")(consistency)
    group.command("hold")(legal.hold)
    group.command("release")(legal.release)
    group.command("holds")(legal.holds)
    group.command("rotate-key")(rotate_key)

    @group.command("verify")
    @connected
    def run(
        session: Session,
        directory: Annotated[Path | None, typer.Option("--dir", help="The log's directory: verify it here, without a gateway.")] = None,
        public_key: Annotated[Path | None, typer.Option("--public-key", help="The file with the public key (PEM).")] = None,
        first: Annotated[
            list[str] | None, typer.Option("--from-segment", help="The oldest segment that must be there: N, or WRITER=N; repeat it.")
        ] = None,
        archived: Annotated[
            list[str] | None, typer.Option("--archived", help="A writer whose files were moved away as a whole; repeat it.")
        ] = None,
    ) -> None:
        """Verifies every line and checkpoint, and that no record is left in a journal. Exit code 1 if anything is wrong or missing."""
        if (directory is None) != (public_key is None):
            raise UsageError("--dir and --public-key go together")
        asked = {"from_segment": ",".join(first or ()), "archived": ",".join(archived or ())}
        try:
            scope = scope_of(**asked)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if directory and public_key:
            console = session.out.remarks
            with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
                task = bar.add_task("verify", total=None)
                report = _offline(verify, directory, public_key, scope, lambda read, total: bar.update(task, completed=read, total=total))
        else:
            with session.out.remarks.status("verify"):
                report = _online(session, asked)
        _report(session, report)

    return group


def _offline(verify: Verify, directory: Path, public_key: Path, scope: AuditScope, progress: Callable[[int, int], None]) -> dict[str, Any]:
    try:
        return verify(directory, public_key, scope, progress)
    except OSError as error:
        raise CommandError(f"{error.filename or directory}: {error.strerror or error}") from None
    except GatehouseError as error:
        raise CommandError(str(error)) from None


def _online(session: Session, asked: dict[str, str]) -> dict[str, Any]:
    params = {name: value for name, value in asked.items() if value}
    with session.client() as client:
        found: dict[str, Any] = client.json("POST", "/audit/verify", timeout=LONG, params=params)
        return found


def _report(session: Session, report: dict[str, Any]) -> None:
    if session.out.for_people:
        columns = ("writer", "live", "segments", "expired", "lines", "checkpoints", "signed", "unsigned", "unfinished", "unchained")
        session.out.rows([{**writer, "unchained": (writer["journal"] or {}).get("unchained", 0)} for writer in report["writers"]], columns)
        if report["ok"]:
            for writer in report["writers"]:
                _remark_on_archived(session, writer)
                if writer["signed"] and not writer["checkpoints"]:
                    session.out.remark(f"writer {writer['writer']}: no checkpoints file is here: lines cut off the end would not be found")
            session.out.remark("ok: every line is as it was written")
    else:
        session.out.data(report)
    if not report["ok"]:
        problem = report["first_problem"]
        others = sum(len(writer["problems"]) for writer in report["writers"]) - 1
        raise CommandError(_told(problem) + (f" (and {others} more: --output json shows all)" if others > 0 else ""))


def _told(problem: dict[str, Any]) -> str:
    place = f"{problem['file']}:{problem['line']}" if problem["line"] else problem["file"]
    return f"{place}: {problem['reason']}"


def _remark_on_archived(session: Session, writer: dict[str, Any]) -> None:
    """Prints what was not verified because it was archived, and what the archive must agree with."""
    if seen := writer.get("archived"):
        session.out.remark(
            f"writer {writer['writer']}: not verified: archived as a whole. Its checkpoint {seen['number']} must cover "
            f"line {seen['covers']} with the hash {seen['head']}, as the others signed"
        )
    if skipped := writer["skipped"]:
        proof = f"checkpoint {skipped['checkpoint']} proves" if skipped["checkpoint"] else "the first checkpoint after it proves"
        session.out.remark(
            f"writer {writer['writer']}: not verified: segments 1 to {skipped['segment']} (lines 1 to {skipped['line']}). "
            f"They must end with the hash {skipped['hash']}, which {proof}"
        )


@connected
def tail(
    session: Session,
    count: Annotated[int, typer.Option("--count", "-n", help="How many records.", min=1, max=MOST_TAIL)] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new records until Ctrl-C.")] = False,
    writer: Annotated[str | None, typer.Option("--writer", help="Only this writer's.")] = None,
) -> None:
    """Shows the newest records of all writers, by time."""
    with session.client() as client:
        records = client.get("/audit/records", count=MOST_TAIL if follow else count, writer=writer)["items"]
        if not follow:
            _records(session, records)
            return
        for record in records[-count:]:
            _line(session, record)
        while True:
            time.sleep(FOLLOW_SECONDS)
            found = client.get("/audit/records", count=MOST_TAIL, writer=writer)["items"]
            _new(session, found, frozenset(map(_hash, records)))
            records = found


def _new(session: Session, records: list[dict[str, Any]], seen: frozenset[str]) -> None:
    """Prints the records that have not been seen."""
    fresh = [record for record in records if _hash(record) not in seen]
    if len(fresh) == MOST_TAIL and seen:
        session.out.remark(f"more than {MOST_TAIL} records in {FOLLOW_SECONDS:g} s: some are not shown; `gatehouse audit export` has all")
    for record in fresh:
        _line(session, record)


def _hash(record: dict[str, Any]) -> str:
    return str(record.get("hash"))


def _records(session: Session, records: list[dict[str, Any]]) -> None:
    if not session.out.for_people:
        session.out.data(records)
        return
    for record in records:
        _line(session, record)


def _line(session: Session, record: dict[str, Any]) -> None:
    if session.out.format is not Format.table:
        session.out.data(record)
        return
    rest = short({key: value for key, value in record.items() if key not in _SHOWN})
    place = f"{record.get('writer', '-')}:{record.get('seq', '-')}"
    line = f"{moment(record.get('time', 0.0))} {place:>16} {record.get('kind', '-'):<10} {rest}"
    session.out.console.print(clean(line), markup=False, no_wrap=True, overflow="ellipsis", crop=session.out.console.is_terminal)


@connected
def prove(
    session: Session,
    request_id: Annotated[str, typer.Argument(help="The request's id, as in x-request-id.")],
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="A new ZIP file with the policy's text and everything needed for the proof.")
    ] = None,
) -> None:
    """Prints proofs that a request's records are part of the signed log; scripts/verify-proof checks them with the public key alone."""
    with session.client() as client:
        if bundle is not None:
            data = b"".join(client.lines(f"/audit/bundles/{urls.name(request_id)}", {}))
            with new_file(bundle) as file:
                file.write(data)
            session.out.remark(f"{bundle}: check it with scripts/verify-proof PUBLIC_KEY.pem {bundle}")
            return
        found = client.json("GET", f"/audit/proofs/{urls.name(request_id)}", timeout=LONG)
    if not session.out.for_people:
        session.out.data(found)
        return
    rows = [
        {"kind": one["record"]["kind"], "time": moment(one["record"]["time"]), "hash": one["record"]["hash"], **one["tree"]}
        for one in found["proofs"]
    ]
    session.out.rows(rows, ("kind", "time", "writer", "segment", "hash", "root", "covers"))
    session.out.remark("--output json prints the proofs themselves")


@connected
def consistency(
    session: Session,
    first: Annotated[int, typer.Argument(help="The number of the older checkpoint, such as the last one that you stored.", min=1)],
    second: Annotated[int | None, typer.Argument(help="The number of the newer one; default: the newest.", min=1)] = None,
    writer: Annotated[str, typer.Option("--writer", help="The writer of the checkpoints.")] = ...,  # type: ignore[assignment]
) -> None:
    """Proves that a checkpoint continues the history that an older one signed, for scripts/verify-proof."""
    with session.client() as client:
        found = client.get("/audit/consistency", writer=writer, first=first, second=second)
    if not session.out.for_people:
        session.out.data(found)
        return
    rows = [{**one, "time": moment(one["time"])} for one in (found["first"], found["second"])]
    session.out.rows(rows, ("number", "time", "covers", "head", "root"))
    session.out.remark("--output json prints the proof itself")


@connected
def rotate_key(session: Session, dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing.")] = False) -> None:
    """Replaces the log's signing key with a new one, which the current one signs. Each public key leads to all others."""
    with session.client() as client:
        answer = client.json("POST", "/audit/keys", params={"dry_run": "true"} if dry_run else {}, timeout=LONG)
    if session.out.for_people and not dry_run:
        answer = {**answer, "time": moment(answer["time"])}
    session.out.one(answer)


@connected
def export(
    session: Session,
    to: Annotated[Path | None, typer.Option("--to", help="A new file; default: standard output.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="How far back, such as 24h.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Only records older than this, such as 1h.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.", autocompletion=completion.tenants)] = None,
    principal: Annotated[str | None, typer.Option("--principal", help="Only this caller: the id of a key.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only requests for this model.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="intent, outcome, event, checkpoint or segment.",
            autocompletion=completion.one_of("intent", "outcome", "event", "checkpoint", "segment"),
        ),
    ] = None,
    event: Annotated[str | None, typer.Option("--event", help="Only events of this name, such as start or 'admin.keys.*'.")] = None,
    outcome: Annotated[str | None, typer.Option("--outcome", help="Only with this outcome, such as denied.")] = None,
    request_id: Annotated[str | None, typer.Option("--request-id", help="Only this request.")] = None,
    writer: Annotated[str | None, typer.Option("--writer", help="Only this writer's.")] = None,
    format: Annotated[
        ExportFormat, typer.Option("--format", help="The output format; jsonl: the log's lines as they are.")
    ] = ExportFormat.jsonl,
    sealed: Annotated[bool, typer.Option("--sealed", help="Leave records that are encrypted as a whole encrypted, for proofs.")] = False,
) -> None:
    """Writes the records that match, writer by writer: exactly as in the log, one JSON object per line, or in another format. Records that
    are encrypted as a whole (audit.encryption.scope) are opened, unless they are wanted sealed."""
    params: dict[str, Any] = {"format": str(format), "tenant": tenant, "principal": principal, "model": model, "kind": kind, "event": event}
    params |= {"outcome": outcome, "request_id": request_id, "writer": writer, "sealed": "true" if sealed else None}
    for name, text in (("since", since), ("until", until)):
        if text is not None:
            params[name] = time.time() - duration(text)
    params = {name: value for name, value in params.items() if value is not None}
    with session.client() as client:
        if to is None:
            for part in client.lines("/audit/export", params):
                sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
            return
        with new_file(to) as file, session.out.remarks.status(f"export to {to}"):
            for part in client.lines("/audit/export", params):
                file.write(part)
