"""Opens encrypted records without a running gateway: with the store's data keys and the configuration's master key. Blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gateway.app.audit.vault import TOMBSTONES, Tombstones
from gateway.app.configuration.plugins import installed
from gateway.audit.keyring import DataKey
from gateway.audit.masters import master_of, opened_by
from gateway.audit.opening import NO_SUCH_KEY, SHREDDED, Opener
from gateway.config.load import load
from gateway.core.errors import ConfigError, MasterUnavailable
from gateway.core.vault import DataKeyRow
from gateway.store.data_keys import read_data_keys
from gateway.store.database import FILE, make_engine

TIMEOUT: Final = 30.0
"""Seconds for the store."""


@contextmanager
def opener_of(file: Path, environ: Mapping[str, str]) -> Iterator[Opener]:
    """Opens records that the gateway of this configuration file encrypted, or a copy of its store and keys. Raises ConfigError,
    StoreUnavailable; the opener raises MasterUnavailable."""
    plugins = installed()
    spec = load(file, environ, plugins.schemas()).spec
    if spec.audit.encryption is None:
        raise ConfigError("nothing is encrypted by this configuration", path="audit.encryption")
    base, state_dir = file.resolve().parent, Path(spec.state_dir)
    if spec.store.url == "sqlite" and not (state_dir / FILE).exists():
        raise ConfigError(f"there is no store {state_dir / FILE}, which has the data keys", path="state_dir")
    engine = make_engine(spec.store.url, state_dir, TIMEOUT, plugins.stores)
    try:
        rows = {row.id: row for row in read_data_keys(engine)}
    finally:
        engine.dispose()
    masters = [master_of(one, base, environ) for one in (spec.audit.encryption.master, *spec.audit.encryption.former)]
    destroyed = Tombstones(state_dir / "keys" / TOMBSTONES)
    destroyed.read()

    def fetch(id: str) -> DataKey | str:
        row: DataKeyRow | None = rows.get(id)
        if id in destroyed or (row is not None and row.state == "shredded"):
            return SHREDDED
        if row is None:
            return NO_SUCH_KEY
        try:
            return DataKey(row.id, row.tenant, row.version, opened_by(masters, row))
        except ConfigError as error:
            raise MasterUnavailable(error.message) from None  # not for good: with the right master it opens

    opener = Opener(fetch, float("inf"))
    try:
        yield opener
    finally:
        opener.drop(None)
