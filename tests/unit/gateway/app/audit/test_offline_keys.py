"""The keys that open a log without its gateway: from a store and a master key, and never one that was destroyed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from gateway.app.audit.offline_keys import opener_of
from gateway.app.main import app
from gateway.audit.keyring import DataKey, envelope_of
from gateway.audit.masters import bound_to, master_of, wrap_key
from gateway.core.errors import ConfigError, MasterUnavailable
from gateway.core.specs.audit import MasterSpec
from gateway.store.database import FILE, make_engine
from gateway.store.tables import audit_keys
from tests.unit.gateway.app.making import config

KEYS = {f"dk-{number}": os.urandom(32) for number in range(1, 5)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration, and its store with four keys: one is shredded, one another master wrapped, one is another tenant's."""
    for name in ("master.key", "other.key"):
        (tmp_path / name).write_bytes(os.urandom(32))
        (tmp_path / name).chmod(0o600)
    (tmp_path / "state" / "keys").mkdir(parents=True)
    engine = make_engine("sqlite", tmp_path / "state", 5.0)
    audit_keys.metadata.create_all(engine, tables=[audit_keys])
    with engine.begin() as connection:
        for number, (id, key) in enumerate(KEYS.items(), 1):
            master = master_of(MasterSpec(file="other.key" if id == "dk-3" else "master.key"), tmp_path, {})
            wrapped = wrap_key(master, key, bound_to("acme" if id != "dk-4" else "umbra", id, number))
            row = {"id": id, "tenant": "acme", "version": number, "wrapped": wrapped, "master": master.id(), "created": 1.0}
            row |= {"state": "retired"} if id != "dk-2" else {"state": "shredded", "wrapped": ""}
            connection.execute(sa.insert(audit_keys).values(**row))
    engine.dispose()
    written = tmp_path / "gatehouse.yaml"
    written.write_text(config(tmp_path, audit={"encryption": {"scope": "record", "master": {"file": "master.key"}}}))
    return written


def test_what_the_store_and_the_master_open(file: Path) -> None:
    with opener_of(file, {}) as opener:
        assert opener.fetch is not None
        key = opener.fetch("dk-1")
        assert isinstance(key, DataKey) and key.tenant == "acme"
        sealed = DataKey("dk-1", "acme", 1, KEYS["dk-1"]).seal(b"a text", b"bound")
        envelope = envelope_of(json.loads(sealed))
        assert envelope is not None and key.open(envelope, b"bound") == b"a text"
        assert opener.fetch("dk-2") == "shredded" and opener.fetch("dk-9") == "the store has no such key"
        with pytest.raises(MasterUnavailable, match=r"dk-3 is wrapped by local-[0-9a-f]+, which is not configured"):
            opener.fetch("dk-3")
        with pytest.raises(MasterUnavailable, match="belongs to another tenant or version"):
            opener.fetch("dk-4")


def test_a_key_that_was_destroyed_once_stays_so_in_an_older_store(file: Path) -> None:
    (file.parent / "state" / "keys" / "audit-shredded").write_text("dk-1\n")
    with opener_of(file, {}) as opener:
        assert opener.fetch is not None and opener.fetch("dk-1") == "shredded"


def test_without_a_store_none_is_made(file: Path) -> None:
    store = file.parent / "state" / FILE
    store.unlink()
    with pytest.raises(ConfigError, match=f"there is no store {store}"), opener_of(file, {}):
        pass
    assert not store.exists()


def test_without_encryption_there_are_no_keys(file: Path) -> None:
    file.write_text(config(file.parent))
    with pytest.raises(ConfigError, match="nothing is encrypted by this configuration"), opener_of(file, {}):
        pass


def test_the_option_needs_a_directory(file: Path) -> None:
    done = CliRunner().invoke(app, ["audit", "search", "--config", str(file)])
    assert done.exit_code == 2 and "--config goes with --dir" in done.stderr
