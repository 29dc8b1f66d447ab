"""Commands that work on files without a running gateway: checking a configuration, verifying an audit log."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from errno import ENOENT
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from gateway.app.audit.keeping import archive_of
from gateway.app.audit.offline_keys import opener_of
from gateway.app.certificates import check_files
from gateway.app.clients.work import checked as check_batches
from gateway.app.configuration.plugins import Plugins, at, installed
from gateway.app.engines import model_files
from gateway.app.sockets import shared_by_workers
from gateway.app.telemetry.observing import check as check_telemetry
from gateway.audit.crypto import CheckpointVerifier, load_verifier
from gateway.audit.formats import rfc3339
from gateway.audit.index import FILE as INDEX
from gateway.audit.index import Index
from gateway.audit.indexer import Indexer
from gateway.audit.lines import lines_at
from gateway.audit.opened_index import search_opened
from gateway.audit.opening import CLOSED
from gateway.audit.sinks import local_sink, other_sinks
from gateway.audit.sinks.file import list_segments
from gateway.audit.verify import cores, verify_log
from gateway.config.load import load
from gateway.config.unmatched import unmatched
from gateway.core.asking import NobodyToAsk
from gateway.core.audit_questions import AuditScope, AuditSearch, Unopened
from gateway.core.clock import SystemClock
from gateway.core.errors import ConfigError, one_line
from gateway.core.plugins import AuthenticatorContext
from gateway.core.specs import ConfigSpec
from gateway.identity.countries import read as read_countries
from gateway.store.database import make_engine
from gateway.transport.address import tls_context as client_tls
from gateway.transport.redis.address import target as redis_target
from gateway.wire.table import OPERATIONS

NO_LOG: Final = "there is no audit log here"
OFFLINE_SECONDS: Final = 600.0
"""The deadline of one search, once the log is indexed."""


def check(file: Path, environ: Mapping[str, str], *, workers: bool = False) -> tuple[int, str]:
    """The exit code and the text of `gatehouse check-config`: one line, and one for each warning. workers: whether it is for `serve
    --workers`."""
    try:
        plugins = installed()
        loaded = load(file, environ, plugins.schemas())
    except ConfigError as error:
        return 1, _errors(error)
    try:
        check_parts(loaded.spec, file.resolve().parent, plugins, workers=workers)
    except ConfigError as error:
        for one in (error, *error.others):
            loaded.place(one)
        return 1, _errors(error)
    warnings = []
    for path, message in unmatched(loaded.spec, OPERATIONS):
        loaded.place(warning := ConfigError(message, path=path))
        warnings.append(f"\nwarning: {one_line(str(warning))}")
    engines, models = len(loaded.spec.engines), len(loaded.spec.models)
    return 0, f"{file}: ok ({engines} engine{'' if engines == 1 else 's'}, {models} model{'' if models == 1 else 's'}){''.join(warnings)}"


def _errors(error: ConfigError) -> str:
    """A line for each."""
    return "\n".join([f"error: {one_line(str(one))}" for one in (error, *error.others)])


def check_parts(spec: ConfigSpec, base: Path, plugins: Plugins, *, workers: bool = False) -> None:
    """Raises ConfigError for what `serve` would refuse, as far as that shows without writing, connecting or starting anything."""
    model_files.resolve(spec, base)
    local_sink(spec.audit, spec.state_dir, "0")
    archive_of(spec.audit, SystemClock())
    list(other_sinks(spec.audit, spec.state_dir, "0", plugins.sinks))
    if spec.store.url != "sqlite":
        make_engine(spec.store.url, Path(spec.state_dir), 1.0, plugins.stores)
    if spec.redis is not None:
        redis_target(spec.redis)
    check_batches(spec, workers)
    if workers:
        shared_by_workers(spec.listen)
    check_files(spec)
    check_telemetry(spec.telemetry)
    if spec.network.countries is not None:
        read_countries(spec.network.countries)
    for number, engine in enumerate(spec.engines):
        if engine.tls is not None:
            try:
                client_tls(engine.tls)
            except ConfigError as error:
                raise ConfigError(error.message, path=f"engines[{number}].tls") from None

    def read(name: str) -> str:
        return (base / name).read_text(encoding="utf-8")

    for path, row, settings in plugins.logins(spec.identity):
        plugins.authenticator(path, row, settings, AuthenticatorContext(name=row.name, read=read))
    for number, exporter in enumerate(spec.telemetry.exporters):
        with at(f"telemetry.exporters[{number}].settings"):
            plugins.exporter(exporter, read, lambda: b"")
    for number, hook in enumerate(spec.hooks):
        with at(f"hooks[{number}].settings"):
            plugins.hook(hook, read)
    for number, guardrail in enumerate(spec.guardrails):
        try:
            plugins.guardrail(guardrail, read, asker=NobodyToAsk())
        except ConfigError as error:
            raise ConfigError(f"the guardrail {guardrail.name!r}: {error.message}", path=f"guardrails[{number}].settings") from None


def verify_audit_log(
    directory: Path, public_key: Path, scope: AuditScope, progress: Callable[[int, int], None] = lambda read, total: None
) -> dict[str, Any]:
    """Verifies an audit log from its files and the public key alone. Raises ConfigError, OSError; the latter also where there is no log,
    because a wrong directory, or one from which all was deleted, must not pass for a log in order."""
    verifier: CheckpointVerifier = load_verifier(public_key)
    report = verify_log(directory, verifier, scope=scope, processes=cores(), progress=progress)
    if not report.writers:
        raise FileNotFoundError(ENOENT, NO_LOG, str(directory))
    return report.as_dict()


def search_audit_log(directory: Path, asked: AuditSearch, keys: Path | None, *, records: bool) -> tuple[list[dict[str, Any]], Unopened]:
    """Searches a log in its directory, with an index that is made for this question. keys: the configuration file of the gateway whose
    store and master key open what is encrypted. The entries; and how many are encrypted, so that it cannot be told whether they are
    wanted. Raises OSError, GatehouseError."""
    if not list_segments(directory):
        raise FileNotFoundError(ENOENT, NO_LOG, str(directory))
    with TemporaryDirectory(prefix="gatehouse-") as place, nullcontext(CLOSED) if keys is None else opener_of(keys, os.environ) as opener:
        path = Path(place) / INDEX
        index = Index(path)
        try:
            Indexer(directory, index).update(lambda: True)
        finally:
            index.close()
        found, unopened = search_opened(path, asked, directory, opener, OFFLINE_SECONDS, sys.maxsize)
        for entry in found:
            places = entry.pop("place")
            if records:
                entry["records"] = lines_at(directory, entry["writer"], places, opener)
            entry["time"] = rfc3339(entry["time"])
            del entry["id"]
        return found, unopened
