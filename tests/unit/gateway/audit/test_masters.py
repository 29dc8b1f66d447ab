"""Master keys: each way to have one, what is wrong with each, and that wrapped keys do not pass for others."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.audit.masters import Master, bound_to, key_of, master_of, unwrap_key, wrap_key
from gateway.core.errors import ConfigError, MasterUnavailable
from gateway.core.secret import Secret
from gateway.core.specs.audit import MasterSpec, TransitSpec
from tests.fakes.transit import Transit

KEY = bytes(range(32))
TEXT = base64.b64encode(KEY).decode()


@pytest.fixture
def transit() -> Iterator[Transit]:
    server = Transit()
    yield server
    server.close()


def local(tmp_path: Path, data: bytes = KEY, mode: int = 0o600) -> Master:
    (tmp_path / "master.key").write_bytes(data)
    os.chmod(tmp_path / "master.key", mode)
    return master_of(MasterSpec(file="master.key"), tmp_path, {})


def remote(server: Transit, tmp_path: Path, token: str = "s.right", file: str | None = None) -> Master:
    spec = TransitSpec(url=server.url, key="gatehouse", token=Secret(token) if token else None, token_file=file)
    return master_of(MasterSpec(transit=spec, timeout=120.0), tmp_path, {})


@pytest.mark.parametrize("given", [KEY, KEY.hex().encode(), TEXT.encode(), f" {TEXT}\n".encode()])
def test_a_key_is_bytes_or_their_hex_or_base64(given: bytes) -> None:
    assert key_of(given) == KEY


@pytest.mark.parametrize("given", [b"", b"short", b"x" * 33, TEXT[:-4].encode(), b"\xff" * 64])
def test_anything_else_is_no_key(given: bytes) -> None:
    assert key_of(given) is None


def test_file_environment_and_command_hold_the_same_master(tmp_path: Path) -> None:
    script = f"import sys; sys.stdout.write({TEXT!r})"
    found = [
        local(tmp_path),
        master_of(MasterSpec(environment="M"), tmp_path, {"M": TEXT}),
        master_of(MasterSpec(command=(sys.executable, "-c", script), timeout=120.0), tmp_path, {}),
    ]
    assert len({one.id() for one in found}) == 1 and TEXT not in found[0].id()
    wrapped = wrap_key(found[0], b"k" * 32, bound_to("acme", "dk-1", 1))
    for one in found:
        assert unwrap_key(one, wrapped, bound_to("acme", "dk-1", 1)) == b"k" * 32


@pytest.mark.parametrize("belongs", [bound_to("globex", "dk-1", 1), bound_to("acme", "dk-2", 1), bound_to("acme", "dk-1", 2)])
def test_a_wrapped_key_that_was_moved_does_not_open(tmp_path: Path, belongs: bytes) -> None:
    master = local(tmp_path)
    wrapped = wrap_key(master, b"k" * 32, bound_to("acme", "dk-1", 1))
    with pytest.raises(ConfigError, match="belongs to another tenant or version"):
        unwrap_key(master, wrapped, belongs)


def test_another_master_does_not_open_it(tmp_path: Path) -> None:
    wrapped = local(tmp_path).wrap(b"data")
    with pytest.raises(ConfigError, match="not wrapped by this master key"):
        local(tmp_path, bytes(32)).unwrap(wrapped)
    with pytest.raises(ConfigError, match="not wrapped by this master key"):
        local(tmp_path).unwrap("not base64")


def test_a_file_that_others_can_read_is_refused_whenever_it_is_used(tmp_path: Path) -> None:
    master = local(tmp_path)
    master.wrap(b"x")
    os.chmod(tmp_path / "master.key", 0o640)
    with pytest.raises(MasterUnavailable, match="chmod 600"):
        master.wrap(b"x")
    (tmp_path / "master.key").unlink()
    with pytest.raises(MasterUnavailable, match="cannot be read: No such file"):
        master.id()


def test_what_is_wrong_with_a_variable_or_a_command_is_said_without_its_content(tmp_path: Path) -> None:
    with pytest.raises(MasterUnavailable, match="no variable M"):
        master_of(MasterSpec(environment="M"), tmp_path, {}).id()
    with pytest.raises(MasterUnavailable, match="does not hold 32 bytes") as caught:
        master_of(MasterSpec(environment="M"), tmp_path, {"M": "hunter2"}).id()
    assert "hunter2" not in str(caught.value)
    failing = "import sys; print('hunter2'); print('hunter2', file=sys.stderr); sys.exit(3)"
    with pytest.raises(MasterUnavailable, match="failed with the exit code 3") as caught:
        master_of(MasterSpec(command=(sys.executable, "-c", failing), timeout=120.0), tmp_path, {}).id()
    assert "hunter2" not in str(caught.value)
    with pytest.raises(MasterUnavailable, match="cannot be run"):
        master_of(MasterSpec(command=("/nonexistent/kms",)), tmp_path, {}).id()
    slow = MasterSpec(command=(sys.executable, "-c", "import time; time.sleep(60)"), timeout=0.05)
    with pytest.raises(MasterUnavailable, match=r"within 0\.05 s"):
        master_of(slow, tmp_path, {}).id()


def test_transit_wraps_and_opens_across_its_rotation(transit: Transit, tmp_path: Path) -> None:
    master = remote(transit, tmp_path)
    wrapped = wrap_key(master, b"k" * 32, bound_to("acme", "dk-1", 1))
    assert wrapped.startswith("vault:v1:")
    transit.versions.append(os.urandom(32))
    assert unwrap_key(master, wrapped, bound_to("acme", "dk-1", 1)) == b"k" * 32
    assert master.wrap(b"x").startswith("vault:v2:")
    with pytest.raises(ConfigError, match=r"not wrapped by this master key \(transit\)"):
        master.unwrap("vault:v1:" + base64.b64encode(bytes(60)).decode())


def test_transit_away_or_without_permission_is_unavailable(transit: Transit, tmp_path: Path) -> None:
    with pytest.raises(MasterUnavailable, match="answered 403"):
        remote(transit, tmp_path, token="s.wrong").wrap(b"x")
    (tmp_path / "token").write_text("s.right\n")
    os.chmod(tmp_path / "token", 0o600)
    master = remote(transit, tmp_path, "", "token")
    assert master.unwrap(master.wrap(b"x")) == b"x"
    os.chmod(tmp_path / "token", 0o640)  # as Vault Agent makes it unless told otherwise
    with pytest.raises(MasterUnavailable, match=r"^Vault's token .* chmod 600"):
        master.wrap(b"x")
    os.chmod(tmp_path / "token", 0o600)
    transit.status = 503
    with pytest.raises(MasterUnavailable, match="answered 503"):
        master.unwrap("vault:v1:AAAA")
    transit.close()
    with pytest.raises(MasterUnavailable, match="cannot be asked") as caught:
        master.wrap(b"x")
    assert "s.right" not in str(caught.value)
