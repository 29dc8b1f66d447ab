"""`gatehouse models add`, `pull`, `files`, `remove`, `uploads`, `copies`, `forget`: model files on the gateway's machine."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace as changed
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from admin.cli import archive, completion, pull, upload
from admin.cli.client import LONG, ApiError, Client, name
from admin.cli.errors import CommandError, UsageError
from admin.cli.session import DryRun, Session, connected, fail
from gateway.core.errors import RequestError
from gateway.core.modelfiles import MAX_SIGNATURE, SIGNATURE, kind_of, signature_of, split_name, split_of
from gateway.wire import model_signatures

_COLUMNS: Final = ("name", "runtime", "task", "parameters", "quantisation", "context", "size", "source", "used_by", "problem")
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
FileName = Annotated[
    str, typer.Argument(metavar="NAME", help="The model's name, as `models files` shows it.", autocompletion=completion.removable_files)
]


@connected
def add(
    session: Session,
    source: Annotated[Path, typer.Argument(metavar="PATH", exists=True, help="A GGUF or ONNX file, or the folder of a model.")],
    as_name: Annotated[str | None, typer.Option("--name", help="The name on the gateway; default: the file's.")] = None,
    sha256: Annotated[str | None, typer.Option("--sha256", help="The checksum the file must have.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite a model of this name that no engine uses.")] = False,
    signature: Annotated[
        Path | None, typer.Option("--signature", exists=True, dir_okay=False, help="Its signature; default: PATH.sig, if it exists.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Uploads a model file to the gateway. After an interruption it resumes, even when the command is run again."""
    todo = _parcels(source, as_name)
    if signature is not None and (source.is_dir() or len(todo) > 1):
        raise UsageError(f"--signature is for a single file: a folder has {SIGNATURE} in it, each part of a split model its own beside it")
    if sha256 is not None and len(todo) > 1:
        raise UsageError("a split model has a checksum for each part; leave --sha256 out")
    with session.client() as client:
        answers = [
            _add(session, client, wanted, parcel, sha256, replace, dry_run, _signature(source, signature, wanted))
            for wanted, parcel in todo
        ]
    session.out.one(_people(answers[-1]) if session.out.for_people and not dry_run else answers[-1])


@connected
def pull_model(
    session: Session,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="hf://ORG/REPO/FILE[@REVISION], ollama://NAME[:TAG] or https://...")],
    as_name: Annotated[str | None, typer.Option("--name", help="The name on the gateway; default: the file's.")] = None,
    sha256: Annotated[str | None, typer.Option("--sha256", help="The checksum the file must have.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite a model of this name that no engine uses.")] = False,
    signature: Annotated[Path | None, typer.Option("--signature", exists=True, dir_okay=False, help="The signature file.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Downloads a model file to this machine and uploads it to the gateway, which checks it. Both steps resume after an interruption."""
    origin = pull.origin(source, os.environ)
    if sha256 is not None:
        if origin.sha256 not in (None, sha256.lower()):
            raise CommandError(f"{source}: the registry names the sha256 {origin.sha256}, not {sha256.lower()}")
        origin = changed(origin, sha256=sha256.lower())
    wanted = _checked(as_name or origin.name, "file")
    with session.client() as client:
        if not replace and not dry_run and upload.present(client, wanted) is not None and origin.sha256 is None:
            raise CommandError(f"{wanted} already exists on the gateway; give another name with --name, or --replace")
        with _progress(session) as progress:
            task = progress.add_task(f"download {wanted}", total=None)
            file = pull.fetch(origin, pull.folder(os.environ), lambda have, total: progress.update(task, completed=have, total=total))
        try:
            answer = _add(session, client, wanted, archive.of_file(file), origin.sha256, replace, dry_run, _read_signature(signature))
        except ApiError as error:
            if error.status == httpx.codes.UNPROCESSABLE_ENTITY:
                file.unlink()  # it is no model: another try would not make it one
            raise
    if not dry_run:
        file.unlink()
    session.out.one(_people(answer) if session.out.for_people and not dry_run else answer)


def _signature(source: Path, given: Path | None, name: str) -> str | None:
    """The signature that goes with a file: the one that was named, or what lies beside it."""
    if source.is_dir():
        return None
    sent = source.with_name(name) if split_of(name) is not None else source
    beside = sent.with_name(signature_of(sent.name))
    return _read_signature(given or (beside if beside.is_file() else None))


def _read_signature(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        if path.stat().st_size <= MAX_SIGNATURE:
            return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        pass
    raise CommandError(f"{path} is no signature: it is not text, or more than {MAX_SIGNATURE} bytes")


def _parcels(source: Path, as_name: str | None) -> list[tuple[str, archive.Parcel]]:
    """The files to send with their names: all parts of a split model."""
    if source.is_dir():
        return [(_checked(as_name or source.resolve().name, "folder"), archive.of_folder(source))]
    split = split_of(source.name)
    if split is None or split[2] == 1:
        return [(_checked(as_name or source.name, "file"), archive.of_file(source))]
    if as_name is not None:
        raise UsageError("the parts of a split model find each other by their names; leave --name out")
    names = [split_name(split[0], part, split[2]) for part in range(1, split[2] + 1)]
    return [(_checked(part, "file"), archive.of_file(source.with_name(part))) for part in names]


def _checked(wanted: str, kind: str) -> str:
    try:
        found = kind_of(wanted)
    except RequestError as error:
        raise CommandError(f"{wanted!r}: {error.message} Give another one with --name.") from None
    if found != kind:
        right = "end in .gguf or .onnx" if kind == "file" else "not end in .gguf or .onnx"
        raise CommandError(f"{wanted!r}: the name of a {kind} must {right}; give another one with --name")
    return wanted


def _add(
    session: Session,
    client: Client,
    wanted: str,
    parcel: archive.Parcel,
    expected: str | None,
    replace: bool,
    dry_run: bool,
    signature: str | None,
) -> dict[str, Any]:
    for reason in parcel.left_out:
        session.out.remark(f"left out: {reason}")
    with _progress(session) as progress:
        task = progress.add_task(f"checksum {wanted}", total=parcel.size)
        found = parcel.sha256(lambda count: progress.advance(task, count))
        if expected is not None and found != expected.lower():
            raise CommandError(f"{wanted}: the sha256 is {found}, not {expected.lower()}")
        settings = {"name": wanted, "size": parcel.size, "sha256": found, "replace": replace}
        if signature is not None:
            settings["signature"] = signature
        if dry_run:
            tried: dict[str, Any] = client.post("/model-uploads", settings, dry_run=True)
            return tried
        there = _there(client, wanted, found, signature)
        if there is not None:
            session.out.remark(f"{wanted} already exists")
            return there
        begun = upload.begin(client, settings)
        progress.reset(task, description=f"send {wanted}", total=parcel.size)
        patience = upload.Patience()
        upload.send(client, begun, parcel, lambda offset: progress.update(task, completed=offset), patience)
        progress.update(task, description=f"verify {wanted}")
        return upload.complete(client, begun, patience)


def _there(client: Client, wanted: str, sha256: str, signature: str | None) -> dict[str, Any] | None:
    """The model, if it already has this very file (a partly sent split model), with this signature if there is one to be sent."""
    model = upload.present(client, wanted)
    parts = {} if model is None else {part["name"]: part["sha256"] for part in model["parts"]}
    signed = signature is None or parts.get(signature_of(wanted)) == hashlib.sha256(signature.encode()).hexdigest()
    return model if signed and parts.get(wanted) == sha256 else None


def _progress(session: Session) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=session.out.remarks, transient=True, disable=not session.out.remarks.is_terminal)


@connected
def files(
    session: Session,
    model: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show one with its metadata and parts.", autocompletion=completion.model_files)
    ] = None,
    checksum: Annotated[bool, typer.Option("--checksum", help="Compute its checksums; reads all of it.")] = False,
    prefix: Annotated[str | None, typer.Option("--prefix", help="Only names with this prefix.")] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source", help="registry, directory or bundled.", autocompletion=completion.one_of("registry", "directory", "bundled")
        ),
    ] = None,
) -> None:
    """Lists the model files on the gateway's machine: their metadata, the engines that use them, any problems."""
    with session.client() as client:
        if model is None:
            if checksum:
                raise UsageError("name the model whose checksums you want")
            found = client.get("/model-files", prefix=prefix, source=source)
            for remark in found["remarks"]:
                session.out.remark(remark)
            items = found["items"]
            session.out.rows([_people(item) for item in items] if session.out.for_people else items, _COLUMNS)
        elif checksum:
            with session.out.remarks.status(f"checksum {model}"):
                session.out.one(client.post(f"/model-files/{name(model)}/checksum", timeout=LONG))
        else:
            session.out.one(client.get(f"/model-files/{name(model)}"))


@connected
def remove(session: Session, model: FileName, dry_run: DryRun = False) -> None:
    """Deletes a model file of the registry directory. Refused while an engine uses it."""
    with session.client() as client:
        session.out.one(client.json("DELETE", f"/model-files/{name(model)}", params={"dry_run": "true"} if dry_run else {}))


@connected
def uploads(
    session: Session,
    delete: Annotated[
        str | None, typer.Option("--delete", metavar="ID", help="Discard this upload.", autocompletion=completion.uploads)
    ] = None,
) -> None:
    """Lists incomplete uploads."""
    with session.client() as client:
        if delete is not None:
            client.request("DELETE", f"/model-uploads/{name(delete)}")
        found = client.get("/model-uploads")["items"]
        session.out.rows(found, ("id", "name", "offset", "size", "state", "created_by", "expires_at"))


@connected
def copies(session: Session) -> None:
    """Lists the model files that replicas share: which replica has them, and copies in progress."""
    with session.client() as client:
        answer = client.get("/model-copies")
        found = answer["items"]
        if (store := answer["store"]) is not None:
            session.out.remark(f"store {store['place']}: {'works' if store['up'] else store['problem']}")
        shown = [{**one, **{key: size(one[key]) for key in ("size", "fetched")}} for one in found] if session.out.for_people else found
        session.out.rows(shown, ("name", "state", "replicas", "away", "stored", "size", "fetched", "source", "problem"))


@connected
def forget(
    session: Session,
    replica: Annotated[str, typer.Argument(metavar="REPLICA", help="Its id, as `models copies` shows it.")],
    dry_run: DryRun = False,
) -> None:
    """Forgets the model files of a replica that has gone for good."""
    with session.client() as client:
        session.out.one(client.json("DELETE", f"/model-copies/{name(replica)}", params={"dry_run": "true"} if dry_run else {}))


def verify(
    source: Annotated[Path, typer.Argument(metavar="PATH", exists=True, help="A model file, or the folder of a model.")],
    public_key: Annotated[Path, typer.Option("--public-key", exists=True, dir_okay=False, help="The signer's key, PEM.")],
    signature: Annotated[
        Path | None, typer.Option("--signature", help="Default: model.sig in the folder, or beside the file PATH.sig.")
    ] = None,
) -> None:
    """Checks that a model on this machine is what the holder of a key signed (OpenSSF Model Signing). Needs no gateway."""
    place = signature or (source / SIGNATURE if source.is_dir() else source.with_name(signature_of(source.name)))
    try:
        count = model_signatures.verify(source, place, model_signatures.key_of(public_key.read_bytes()))
    except model_signatures.Unsigned as error:
        raise fail(CommandError(f"{source}: {error}")) from None
    except OSError as error:
        raise fail(CommandError(f"{error.filename}: {error.strerror}")) from None
    typer.echo(f"{source}: signed by this key, {count} file{'s' if count > 1 else ''}")


def _people(item: dict[str, Any]) -> dict[str, Any]:
    """Sizes and counts as people read them."""
    count = item.get("parameters")
    return {**item, "size": size(item["size"]), "parameters": None if count is None else short(count)}


def size(count: int) -> str:
    """`1.4 GiB`."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def short(count: int) -> str:
    """`7.2B`, `350M`."""
    for limit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= limit:
            return f"{count / limit:.3g}{letter}"
    return str(count)


def extend(group: typer.Typer) -> None:
    """Adds the commands to `gatehouse models`."""
    for command, run in (("add", add), ("pull", pull_model), ("files", files), ("remove", remove), ("uploads", uploads)):
        group.command(command)(run)
    group.command("copies")(copies)
    group.command("forget")(forget)
    group.command("verify")(verify)
