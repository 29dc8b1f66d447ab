"""`gatehouse jobs`: work of operators that takes long, and schedules that begin it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import typer

from admin.cli.client import Client, name
from admin.cli.errors import CommandError, UsageError
from admin.cli.output import clean
from admin.cli.session import DryRun, Session, connected

group = typer.Typer(no_args_is_help=True, help="Long-running work: convert, export, quantise, benchmark and warm, now or on a schedule.")
run = typer.Typer(no_args_is_help=True, help="Create a job; with --cron, a schedule that creates jobs.")
group.add_typer(run, name="run")
COLUMNS = ("id", "kind", "state", "progress", "attempts", "max_attempts", "schedule", "creator", "created_at", "due_at")
SCHEDULES = ("name", "tenant", "cron", "timezone", "next_at", "last_job", "creator")
OVER = ("done", "dead", "cancelled")
Id = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model file by its name.")]
Target = Annotated[str, typer.Argument(metavar="TO", help="The name of the file to make.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only those of this tenant.")]
Replace = Annotated[bool, typer.Option("--replace", help="Replace an existing file named TO.")]
After = Annotated[list[str] | None, typer.Option("--after", metavar="ID", help="Start when this job is done; repeat it.")]
Attempts = Annotated[int | None, typer.Option("--attempts", help="Maximum number of attempts.", min=1, max=100)]
Cron = Annotated[str | None, typer.Option("--cron", help="Create a schedule, such as '0 3 * * sun'; needs --name.")]
Timezone = Annotated[str, typer.Option("--timezone", help="The time zone of --cron, such as Europe/Zurich.")]
Named = Annotated[str | None, typer.Option("--name", help="The schedule's name.")]
Follow = Annotated[bool, typer.Option("--watch", help="Follow the job until it ends.")]


class How:
    """What every kind of job may be told."""

    def __init__(self, after: list[str] | None, attempts: int | None, cron: str | None, timezone: str, named: str | None) -> None:
        self.more: dict[str, Any] = {} if attempts is None else {"attempts": attempts}
        self.cron = cron
        if (cron is None) != (named is None) or (cron is not None and after):
            raise UsageError("--cron and --name belong together, and a schedule waits for no job (--after)")
        self.more |= {"name": named, "cron": cron, "timezone": timezone} if cron is not None else {"after": after or []}


def _make(session: Session, task: dict[str, Any], how: How, follow: bool, dry_run: bool) -> None:
    with session.client() as client:
        params = {"dry_run": "true"} if dry_run else {}
        made = client.json("POST", "/jobs" if how.cron is None else "/job-schedules", json={"task": task, **how.more}, params=params)
        if not follow or dry_run or how.cron is not None:
            session.out.one(made)
            return
        _watch(session, client, made["id"])


@run.command()
@connected
def convert(
    session: Session,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder with config.json and safetensors.")],
    to: Target,
    type: Annotated[Literal["auto", "F32", "F16", "BF16"], typer.Option("--type", help="The type of the matrices.")] = "auto",
    replace: Replace = False,
    after: After = None,
    attempts: Attempts = None,
    cron: Cron = None,
    timezone: Timezone = "UTC",
    named: Named = None,
    watch: Follow = False,
    dry_run: DryRun = False,
) -> None:
    """Makes a GGUF file from a Hugging Face folder (Llama, Mistral, Qwen 2 and 3, Gemma 2 and 3)."""
    task = {"kind": "convert", "model": folder, "to": to, "type": type, "replace": replace}
    _make(session, task, How(after, attempts, cron, timezone, named), watch, dry_run)


@run.command()
@connected
def export(
    session: Session,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder with config.json and safetensors.")],
    to: Annotated[str, typer.Argument(metavar="TO", help="The folder to make.")],
    replace: Replace = False,
    after: After = None,
    attempts: Attempts = None,
    cron: Cron = None,
    timezone: Timezone = "UTC",
    named: Named = None,
    watch: Follow = False,
    dry_run: DryRun = False,
) -> None:
    """Makes an ONNX folder from a Hugging Face folder: an encoder, a classifier or a cross-encoder. Needs PyTorch at the gateway."""
    task = {"kind": "export", "model": folder, "to": to, "replace": replace}
    _make(session, task, How(after, attempts, cron, timezone, named), watch, dry_run)


@run.command()
@connected
def quantize(
    session: Session,
    model: Model,
    to: Target,
    type: Annotated[str, typer.Option("--type", help="The type, such as Q4_K_M or Q8_0; for ONNX int8 or uint8.")],
    requantize: Annotated[bool, typer.Option("--requantize", help="Allow a MODEL that is quantised already; this loses quality.")] = False,
    replace: Replace = False,
    after: After = None,
    attempts: Attempts = None,
    cron: Cron = None,
    timezone: Timezone = "UTC",
    named: Named = None,
    watch: Follow = False,
    dry_run: DryRun = False,
) -> None:
    """Quantises a GGUF or ONNX file, or a folder with one, into a smaller model file beside it."""
    task: dict[str, Any] = {"kind": "quantize", "model": model, "to": to, "type": type, "requantize": requantize, "replace": replace}
    if to.endswith(".onnx") or not to.endswith(".gguf"):
        task = {"kind": "quantize-onnx", "model": model, "to": to, "weights": type, "replace": replace}
    _make(session, task, How(after, attempts, cron, timezone, named), watch, dry_run)


@run.command()
@connected
def benchmark(
    session: Session,
    model: Model,
    streams: Annotated[int, typer.Option("--streams", help="Simultaneous requests.", min=1, max=64)] = 1,
    requests: Annotated[int, typer.Option("--requests", help="Total number of requests.", min=1, max=10_000)] = 8,
    prompt_words: Annotated[int, typer.Option("--prompt-words", help="Words in each prompt.", min=1, max=8192)] = 64,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Tokens in each answer.", min=1, max=4096)] = 64,
    context: Annotated[int, typer.Option("--context", help="Maximum tokens of a stream.", min=128, max=131_072)] = 1024,
    after: After = None,
    attempts: Attempts = None,
    cron: Cron = None,
    timezone: Timezone = "UTC",
    named: Named = None,
    watch: Follow = False,
    dry_run: DryRun = False,
) -> None:
    """Measures a GGUF file's tokens per second and time to the first token, in a separate engine on the CPU."""
    sizes = {"streams": streams, "requests": requests, "prompt_words": prompt_words, "max_tokens": max_tokens, "context": context}
    task = {"kind": "benchmark", "model": model, **sizes}
    _make(session, task, How(after, attempts, cron, timezone, named), watch, dry_run)


@run.command()
@connected
def warm(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE-ID", help="A file of /v1/files with lines as in a batch.")],
    endpoint: Annotated[str, typer.Option("--endpoint", help="The endpoint of the lines.")] = "/v1/chat/completions",
    at_once: Annotated[int, typer.Option("--at-once", help="Maximum simultaneous requests.", min=1, max=64)] = 2,
    after: After = None,
    attempts: Attempts = None,
    cron: Cron = None,
    timezone: Timezone = "UTC",
    named: Named = None,
    watch: Follow = False,
    dry_run: DryRun = False,
) -> None:
    """Sends the requests of a file as you, so that their answers are cached. `gatehouse caches warm` does so from this machine, once."""
    task = {"kind": "warm", "file": file, "endpoint": endpoint, "at_once": at_once}
    _make(session, task, How(after, attempts, cron, timezone, named), watch, dry_run)


@group.command("list")
@connected
def index(
    session: Session,
    state: Annotated[
        Literal["waiting", "queued", "running", "failed", "done", "dead", "cancelled"] | None,
        typer.Option("--state", help="Only those in this state."),
    ] = None,
    kind: Annotated[
        Literal["convert", "export", "quantize", "quantize-onnx", "benchmark", "warm"] | None,
        typer.Option("--kind", help="Only those of this kind."),
    ] = None,
    tenant: Tenant = None,
) -> None:
    """Lists jobs, the newest first."""
    given = {key: value for key, value in {"state": state, "kind": kind, "tenant": tenant}.items() if value is not None}
    with session.client() as client:
        session.out.rows(list(client.items("/jobs", **given)), COLUMNS)


@group.command()
@connected
def show(session: Session, id: Id) -> None:
    """Shows a job: its task, progress, last log lines and result."""
    with session.client() as client:
        session.out.one(client.get(f"/jobs/{name(id)}"))


@group.command()
@connected
def cancel(session: Session, id: Id, dry_run: DryRun = False) -> None:
    """Cancels a job, and stops it if it is running."""
    with session.client() as client:
        session.out.one(client.json("POST", f"/jobs/{name(id)}/cancel", params={"dry_run": "true"} if dry_run else {}))


@group.command()
@connected
def retry(session: Session, id: Id, dry_run: DryRun = False) -> None:
    """Retries a job that failed, is dead or was cancelled."""
    with session.client() as client:
        session.out.one(client.json("POST", f"/jobs/{name(id)}/retry", params={"dry_run": "true"} if dry_run else {}))


@group.command()
@connected
def watch(session: Session, id: Id) -> None:
    """Follows a job until it ends. Exit code 1 unless it is done."""
    with session.client() as client:
        _watch(session, client, id)


@group.command()
@connected
def schedules(session: Session, tenant: Tenant = None) -> None:
    """Lists schedules."""
    with session.client() as client:
        session.out.rows(client.items("/job-schedules", limit=1000, **({"tenant": tenant} if tenant else {})), SCHEDULES)


@group.command()
@connected
def unschedule(
    session: Session,
    schedule: Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")],
    tenant: Annotated[str | None, typer.Option("--tenant", help="The schedule's tenant; default: yours.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Deletes a schedule. The jobs that it created stay."""
    params = {**({"tenant": tenant} if tenant else {}), **({"dry_run": "true"} if dry_run else {})}
    with session.client() as client:
        session.out.one(client.json("DELETE", f"/job-schedules/{name(schedule)}", params=params))


def _watch(session: Session, client: Client, id: str) -> None:
    said, job = "", dict[str, Any]()
    for line in _lines(client.lines(f"/jobs/{name(id)}/events", {})):
        if not line.startswith(b"data: "):
            continue
        job = json.loads(line[6:])
        if "state" not in job:
            raise CommandError(f"the job goes on, but you may not follow it any more: {clean(job.get('detail', ''))}")
        told = f"{job['state']} {job['progress']:.0%}, attempt {job['attempts']} of {job['max_attempts']}"
        if told != said:
            said = told
            session.out.remark(clean(told))
    if job.get("state") not in OVER:
        job = client.get(f"/jobs/{name(id)}")
    session.out.one(job)
    if job["state"] != "done":
        why = job["error"]["message"] if job["error"] else ""
        raise CommandError(f"the job is {job['state']}{f': {clean(why)}' if why else ''}")


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        yield from whole
