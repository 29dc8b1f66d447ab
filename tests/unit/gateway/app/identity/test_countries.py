"""The database of countries that a process uses: with the configuration, and when its file changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.app.identity.countries import Countries
from gateway.core.errors import ConfigError
from gateway.core.network import Networks
from gateway.core.specs import ConfigSpec, NetworkSpec
from tests.fakes.countries import write


class Site:
    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path / "c.mmdb"
        self.events: list[str] = []
        self.countries = Countries(Networks(), self._record)
        self.spec = ConfigSpec(version=1, network=NetworkSpec(countries=str(self.path)))

    def _record(self, event: str, target: str, detail: dict[str, Any], **named: Any) -> None:
        self.events.append(event)

    def country(self) -> str:
        return self.countries.networks.country("192.0.2.1")

    async def load(self) -> None:
        self.countries.use(self.spec, await self.countries.read(self.spec))

    async def looks(self) -> None:
        for _ in range(3):
            await self.countries.look()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_configuration_brings_its_database_and_takes_it_away(site: Site) -> None:
    with pytest.raises(ConfigError):
        await site.countries.read(site.spec)
    write(site.path, {"192.0.2.0/24": "DE"})
    await site.load()
    assert site.country() == "DE" and site.countries.networks.knows_countries
    before = site.countries.networks.generation
    await site.load()
    assert site.countries.networks.generation == before
    none = ConfigSpec(version=1)
    site.countries.use(none, await site.countries.read(none))
    assert site.country() == "" and not site.countries.networks.knows_countries
    await site.looks()


async def test_a_file_that_changes_is_read_again(site: Site) -> None:
    write(site.path, {"192.0.2.0/24": "DE"})
    await site.load()
    await site.looks()
    assert site.events == []
    write(site.path, {"192.0.2.0/24": "FR"})
    await site.countries.look()
    assert site.country() == "DE"  # not while it may still be written
    await site.looks()
    assert site.country() == "FR" and site.events == ["countries_changed"]


async def test_one_that_cannot_be_used_changes_nothing_until_the_next(site: Site) -> None:
    write(site.path, {"192.0.2.0/24": "DE"})
    await site.load()
    site.path.write_bytes(b"nothing")
    await site.looks()
    await site.looks()
    assert site.country() == "DE" and site.events == ["countries_refused"]
    site.path.unlink()
    await site.looks()
    assert site.country() == "DE"
    write(site.path, {"192.0.2.0/24": "FR"})
    await site.looks()
    assert site.country() == "FR" and site.events[-1] == "countries_changed"
