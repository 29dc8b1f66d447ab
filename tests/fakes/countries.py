"""Databases of countries for tests, in MaxMind's format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmdb_writer import MMDBWriter
from netaddr import IPSet


def write(path: Path, countries: dict[str, str], shape: str = "maxmind") -> None:
    """countries: network -> code. Takes the place of a file that is there at once, as tools that update databases do."""
    shapes: dict[str, Any] = {
        "maxmind": lambda code: {"country": {"iso_code": code}, "continent": {"code": "EU"}},
        "ipinfo": lambda code: {"country_code": code, "country": "somewhere"},
        "plain": lambda code: {"country": code},
        "empty": lambda code: {"registered_country": {"iso_code": code}},
    }
    writer = MMDBWriter(ip_version=6, ipv4_compatible=True, database_type="Test-Country")
    for network, code in countries.items():
        writer.insert_network(IPSet([network]), shapes[shape](code))
    made = path.with_suffix(".new")
    writer.to_db_file(str(made))
    made.replace(path)
