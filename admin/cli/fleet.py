"""`gatehouse models` and `gatehouse engines`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from admin.cli import completion
from admin.cli.client import LONG, Client, name
from admin.cli.errors import CommandError, UsageError
from admin.cli.output import clean
from admin.cli.session import DryRun, Session, connected, fail

models = typer.Typer(no_args_is_help=True, help="Public models and the engines behind them.")
engines = typer.Typer(no_args_is_help=True, help="Engines: drain, resume, create, run by hand.")
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="The model's public name.", autocompletion=completion.models)]
Force = Annotated[bool, typer.Option("--force", help="Include pinned engines.")]
EngineName = Annotated[str, typer.Argument(metavar="ENGINE", help="The engine's name.", autocompletion=completion.engines)]
RuntimeOption = Annotated[
    str | None,
    typer.Option(
        "--runtime",
        help="llama.cpp, onnx or genai; default: the one that the model's name suggests.",
        autocompletion=completion.one_of("llama.cpp", "onnx", "genai"),
    ),
]
WAIT_SECONDS = 0.5


@models.command("list")
@connected
def list_models(session: Session) -> None:
    """Lists models: whether they are ready, how many requests wait, and which engines serve them."""
    with session.client() as client:
        found = client.items("/models", limit=1000)
        shown = [{**m, "engines": [member(e) for e in m["pool"]]} for m in found] if session.out.for_people else found
        session.out.rows(shown, ("name", "ready", "queued", "policy", "engines", "aliases", "source"))


@models.command("show")
@connected
def show_model(session: Session, model: ModelName) -> None:
    """Shows a model."""
    with session.client() as client:
        session.out.one(client.get(f"/models/{name(model)}"))


def member(engine: dict[str, Any]) -> str:
    """An engine of a pool as people read it: its state, and how far its replacement is."""
    rollout = engine.get("rollout")
    if rollout is None:
        return f"{engine['engine']}({engine['state']})"
    return f"{engine['engine']}({engine['state']}, {doing(rollout)})"


def doing(rollout: dict[str, Any]) -> str:
    """The present state of a rollout."""
    way = f"{rollout['from_version']} -> {rollout['version']}"
    if rollout["phase"] != "shifting":
        return f"{way} {rollout['phase']}"
    counts = f"{rollout['requests']} requests, {rollout['failures']} failed"
    return f"{way} step {rollout['step']}/{rollout['steps']} {rollout['share']:.0%}, {counts}"


@models.command("load")
@connected
def load(session: Session, model: ModelName, dry_run: DryRun = False) -> None:
    """Starts the engines of a model and waits until they are ready."""
    _act(session, model, "load", dry_run)


@models.command("unload")
@connected
def unload(session: Session, model: ModelName, force: Force = False, dry_run: DryRun = False) -> None:
    """Drains and stops the engines of a model. Engines that are loaded on demand start again with the next request."""
    _act(session, model, "unload", dry_run, force=force)


@models.command("reload")
@connected
def reload(
    session: Session,
    model: ModelName,
    stop_first: Annotated[
        bool, typer.Option("--stop-first", help="If old and new do not fit into memory together, stop the old one first.")
    ] = False,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Replaces a model's engines, all or none: the new ones are ready and warm before traffic moves to them, step by step."""
    _act(session, model, "reload", dry_run, stop_first=stop_first, force=force)


@models.command("abort")
@connected
def abort(session: Session, model: ModelName, dry_run: DryRun = False) -> None:
    """Aborts the replacement of a model's engines: the old processes get all the traffic again, and the change fails."""
    _act(session, model, "abort", dry_run)


def _act(session: Session, model: str, action: str, dry_run: bool, **flags: bool) -> None:
    path = f"/models/{name(model)}"
    with session.client() as client, ThreadPoolExecutor(1) as thread:
        answering = thread.submit(client.post, f"{path}/{action}", timeout=LONG, dry_run=dry_run, **flags)
        if session.out.remarks.is_terminal:
            _follow(session, client, path, f"{action} {model}", answering)
        answer = answering.result()
    if dry_run or not session.out.for_people:
        session.out.one(answer)
        return
    session.out.rows(answer["engines"], ("engine", "state", "version"))


def _follow(session: Session, client: Client, path: str, title: str, answering: Future[Any]) -> None:
    """Shows how far each engine is until the answer has come."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[doing]}"), TimeElapsedColumn())
    with Progress(*columns, console=session.out.remarks, transient=True) as progress:
        progress.add_task(clean(title), total=None, doing="")
        bars: dict[str, TaskID] = {}
        while not futures.wait([answering], timeout=WAIT_SECONDS).done:
            try:
                pool = client.get(path)["pool"]
            except CommandError:
                continue  # the answer says more
            for engine in pool:
                rollout, label = engine.get("rollout"), str(engine["engine"])
                if label not in bars:
                    bars[label] = progress.add_task(clean(label), total=1.0, doing="")
                share = rollout["share"] if rollout is not None else float(engine["state"] == "ready")
                text = str(engine["state"]) if rollout is None else doing(rollout)
                progress.update(bars[label], completed=share, doing=clean(text))


@engines.command("list")
@connected
def list_engines(session: Session) -> None:
    """Lists engines with the state of their endpoints and breakers."""
    with session.client() as client:
        endpoints = {e["name"]: e for e in client.items("/endpoints", limit=1000)}
        found = [{**e, "endpoint": endpoints.get(e["name"])} for e in client.items("/engines", limit=1000)]
    if session.out.for_people:
        found = [{**e, "machines": [f"{one['machine']}({one['state']})" for one in e.get("machines") or ()]} for e in found]
        found = [{**e, "reason": e.get("reason") or _last_end(e.get("last_end"))} for e in found]
    columns = (
        "name",
        "runtime",
        "state",
        "machines",
        "endpoint.state",
        "endpoint.in_flight",
        "slots",
        "device",
        "endpoint.breaker.state",
        "reason",
    )
    session.out.rows(found, columns)


def _last_end(end: dict[str, Any] | None) -> str | None:
    return None if end is None else f"since {end['at']} again: {end['reason']}"


@engines.command("log")
@connected
def log_of_engine(
    session: Session, engine: EngineName, lines: Annotated[int, typer.Option("--lines", "-n", help="How many.", min=1, max=10_000)] = 200
) -> None:
    """Shows the last lines that an engine's process wrote."""
    with session.client() as client:
        answer = client.get(f"/engines/{name(engine)}/log", lines=lines)
    if not session.out.for_people:
        return session.out.one(answer)
    for line in answer["lines"]:
        typer.echo(clean(line))


@engines.command("drain")
@connected
def drain(
    session: Session,
    engine: EngineName,
    wait: Annotated[bool, typer.Option("--wait", help="Return once no request is under way there.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", help="Maximum seconds to wait.")] = 300.0,
    dry_run: DryRun = False,
) -> None:
    """Stops sending new requests to an engine; those under way finish."""
    with session.client() as client:
        answer = client.post(f"/engines/{name(engine)}/drain", dry_run=dry_run)
        if wait and not dry_run:
            with session.out.remarks.status(f"drain {engine}"):
                answer = _idle(client, engine, time.monotonic() + timeout)
    session.out.one(answer)


def _idle(client: Client, engine: str, deadline: float) -> dict[str, Any]:
    while True:
        found: dict[str, Any] = client.get(f"/endpoints/{name(engine)}")
        if not found["in_flight"]:
            return found
        if time.monotonic() > deadline:
            raise CommandError(f"{found['in_flight']} requests are still under way at {engine}")
        time.sleep(WAIT_SECONDS)


@engines.command("resume")
@connected
def resume(session: Session, engine: EngineName, dry_run: DryRun = False) -> None:
    """Sends requests to an engine again."""
    with session.client() as client:
        session.out.one(client.post(f"/engines/{name(engine)}/resume", dry_run=dry_run))


@engines.command("breaker")
@connected
def breaker(
    session: Session,
    engine: EngineName,
    state: Annotated[
        str,
        typer.Argument(
            metavar="STATE",
            help="open, closed, or auto to let it decide again.",
            autocompletion=completion.one_of("open", "closed", "auto"),
        ),
    ],
    dry_run: DryRun = False,
) -> None:
    """Holds the breaker of an engine open or closed, or releases it."""
    with session.client() as client:
        session.out.one(client.post(f"/engines/{name(engine)}/breaker", {"state": state}, dry_run=dry_run))


Join = Callable[..., int]
"""Runs a machine that joins: (gateways, config, name, listen, advertise, token, ca, tickets, tickets_advertise) -> the exit code."""


def add_run(join: Join) -> None:
    """Adds `engines run`. join: of a machine that joins, which is not in this package."""

    @engines.command("run")
    def run(
        model: Annotated[Path | None, typer.Argument(metavar="[MODEL]", help="A GGUF file, or a folder with an ONNX model.")] = None,
        runtime: RuntimeOption = None,
        device: Annotated[str, typer.Option("--device", help="cpu or cuda:N.")] = "cpu",
        slots: Annotated[int, typer.Option("--slots", help="Requests that run at once.", min=1, max=1024)] = 4,
        context: Annotated[int, typer.Option("--context", help="Tokens of context for each slot.", min=64)] = 2048,
        socket: Annotated[Path | None, typer.Option("--socket", help="The Unix socket to listen on.")] = None,
        gateways: Annotated[
            list[str] | None,
            typer.Option("--join", help="The admin listener of a gateway to serve; repeat it for each replica."),
        ] = None,
        config: Annotated[Path | None, typer.Option("--config", help="With --join: the engines of this machine.")] = None,
        name: Annotated[str | None, typer.Option("--name", help="With --join: the machine's name; default: its host name.")] = None,
        listen: Annotated[str, typer.Option("--listen", help="With --join: ADDRESS:PORT for gateways.")] = "0.0.0.0:8443",
        advertise: Annotated[str | None, typer.Option("--advertise", help="With --join: the address at which gateways reach it.")] = None,
        token: Annotated[str | None, typer.Option("--token", help="A join token; other users of this machine can see it here.")] = None,
        token_file: Annotated[Path | None, typer.Option("--token-file", help="A file with the join token; - reads standard input.")] = None,
        ca: Annotated[Path | None, typer.Option("--ca", help="With --join: CAs that verify the gateways, instead of the system's.")] = None,
        tickets: Annotated[str | None, typer.Option("--tickets", help="With --join: ADDRESS:PORT for clients with tickets.")] = None,
        tickets_advertise: Annotated[
            str | None, typer.Option("--tickets-advertise", help="With --tickets: the address at which clients reach it.")
        ] = None,
    ) -> None:
        """Runs one engine in the foreground and prints its socket when it is ready, or with --join all engines of a file for a gateway on
        another machine. Ctrl-C drains."""
        try:
            if gateways:
                if model is not None or config is None:
                    raise UsageError("with --join the engines are those of a file: write --config FILE, and no MODEL")
                given = _token(token, token_file)
                raise typer.Exit(join(gateways, config, name, listen, advertise, given, ca, tickets, tickets_advertise))
            if model is None or any(given is not None for given in (config, name, advertise, token, token_file, ca, tickets)):
                raise UsageError("name a MODEL to run one engine, or --join URL --config FILE to serve a gateway")
            from admin.cli import run as engine  # noqa: PLC0415 - the runtimes take as long to load as half the command line

            raise typer.Exit(engine.run(model, runtime, device, slots, context, socket))
        except CommandError as error:
            raise fail(error) from None


def _token(token: str | None, file: Path | None) -> str | None:
    """Raises CommandError."""
    if token is not None and file is not None:
        raise UsageError("--token and --token-file name the same thing: write one of them")
    if file is None:
        return token
    try:
        text = sys.stdin.readline() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file}: cannot be read: {getattr(error, 'strerror', error)}") from None
    return text.strip()
