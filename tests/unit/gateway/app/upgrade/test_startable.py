"""What a start needs besides a good configuration, asked without changing anything."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.app.configuration.plugins import OURS
from gateway.app.upgrade.startable import ROOM, could_start, writable
from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec, StoreSpec
from gateway.identity import keys
from gateway.store.pepper import FILE
from gateway.store.store import Store
from tests.integration.disk import disk_of

PEPPER = {"GATEHOUSE_PEPPER": "p" * 32}


def spec(tmp_path: Path) -> ConfigSpec:
    return ConfigSpec(version=1, state_dir=str(tmp_path / "state"), store=StoreSpec(url="sqlite"))


async def test_a_first_start_needs_nothing_that_is_there(tmp_path: Path) -> None:
    await could_start(spec(tmp_path), {}, OURS)
    assert list(tmp_path.iterdir()) == []


async def test_the_store_that_is_there_must_open(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    store = Store("sqlite", state, keys, given_pepper=PEPPER["GATEHOUSE_PEPPER"])
    await store.start()
    await store.aclose()
    await could_start(spec(tmp_path), PEPPER, OURS)
    for environ in ({"GATEHOUSE_PEPPER": "q" * 32}, {}):
        with pytest.raises(ConfigError, match="another pepper"):
            await could_start(spec(tmp_path), environ, OURS)
    assert not (state / FILE).exists(), "no pepper is made"


async def test_the_directories_must_be_there_or_makeable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"cannot be made: .*file is a file"):
            writable(path, "state_dir")
    writable(tmp_path / "new" / "below", "state_dir")
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everything
    with pytest.raises(ConfigError, match=r"state_dir: .* cannot be written: Permission denied"):
        await could_start(msgspec.structs.replace(spec(tmp_path), state_dir=str(tmp_path)), {}, OURS)
    with pytest.raises(ConfigError, match="cannot be made: Permission denied"):
        writable(tmp_path / "new", "state_dir")


async def test_a_disk_that_is_full_is_found_out_before_the_start(tmp_path: Path) -> None:
    """The program that runs may outlast it; one that starts would not."""
    with disk_of(tmp_path / "disk", 64 * 1024, 8 * ROOM) as (place, enlarge):
        (place / "rest").write_bytes(b"x" * 32 * 1024)
        full = msgspec.structs.replace(spec(tmp_path), state_dir=str(place))
        with pytest.raises(ConfigError, match=r"state_dir: .*disk cannot be written: (No space left|File too large)"):
            await could_start(full, {}, OURS)
        with pytest.raises(ConfigError, match=r"cannot be made: (No space left|File too large)"):
            writable(place / "new", "audit.sinks")
        enlarge()
        await could_start(full, {}, OURS)
        assert [file.name for file in place.iterdir()] == ["rest"]
