"""Databases of countries: of several makers, damaged ones, none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.errors import ConfigError
from gateway.identity.countries import read, state_of
from tests.fakes.countries import write

PLACES = {"192.0.2.0/24": "DE", "2001:db8::/32": "FR"}


@pytest.mark.parametrize("shape", ["maxmind", "ipinfo", "plain"])
def test_countries_of_several_makers(tmp_path: Path, shape: str) -> None:
    write(tmp_path / "c.mmdb", PLACES, shape)
    found = read(str(tmp_path / "c.mmdb"))
    assert [found.lookup(address) for address in ("192.0.2.7", "2001:db8::7", "198.51.100.1", "::1", "local", "")] == [
        "DE",
        "FR",
        "",
        "",
        "",
        "",
    ]
    assert found.built > 1.6e9 and found.state == state_of(str(tmp_path / "c.mmdb"))


def test_where_an_address_is_registered_is_not_where_it_is(tmp_path: Path) -> None:
    write(tmp_path / "c.mmdb", PLACES, "empty")
    assert read(str(tmp_path / "c.mmdb")).lookup("192.0.2.7") == ""


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "c.mmdb"
    with pytest.raises(ConfigError, match="cannot be read"):
        read(str(path))
    write(path, PLACES)
    whole = path.read_bytes()
    for damaged in (b"", b"x" * 4096, whole[:-200], whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match="no database in MaxMind's format") as caught:
            read(str(path))
        assert caught.value.path == "network.countries"
    with pytest.raises(ConfigError, match="cannot be read"):
        read(str(tmp_path))


def test_a_database_that_is_damaged_inside_knows_nothing_of_what_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "c.mmdb"
    write(path, {f"10.{number}.0.0/16": "DE" for number in range(64)})
    whole = bytearray(path.read_bytes())
    for place in range(0, len(whole) // 2, 7):
        whole[place] ^= 0x5A
    path.write_bytes(bytes(whole))
    try:
        found = read(str(path))
    except ConfigError:
        return
    for number in range(64):
        assert found.lookup(f"10.{number}.1.1") in ("", "DE")
