"""The countries of addresses, from a database in MaxMind's format (maxmind.github.io/MaxMind-DB), such as GeoLite2-Country, or those of
DB-IP and IPinfo.

The file is read into memory and not mapped: one that is overwritten in place would otherwise take the process down with it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import maxminddb

from gateway.core.errors import ConfigError

MAX_BYTES: Final = 1024**3
SETTING: Final = "network.countries"
State = tuple[int, int, int]
"""Inode, size and time of change of a file."""


class CountryDatabase:
    """One file as it was read. `lookup` is a gateway.core.network.Lookup."""

    def __init__(self, reader: Any, state: State) -> None:
        self._reader, self.state = reader, state
        self.built = int(reader.metadata().build_epoch)
        """Seconds since the epoch."""

    def lookup(self, address: str) -> str:
        try:
            record = self._reader.get(address)
        except (ValueError, TypeError, maxminddb.InvalidDatabaseError):  # IPv6 in a database of IPv4, or one that is damaged here
            return ""
        return _code(record)


def state_of(path: str) -> State | None:
    """None for a file that is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def read(path: str) -> CountryDatabase:
    """Blocks. Raises ConfigError."""
    state = state_of(path)
    if state is None:
        raise ConfigError(f"the database {path} cannot be read", path=SETTING)
    if state[1] > MAX_BYTES:
        raise ConfigError(f"the database {path} has {state[1]} bytes; at most {MAX_BYTES} are read", path=SETTING)
    try:
        reader = maxminddb.open_database(Path(path), maxminddb.MODE_MEMORY)
        found = CountryDatabase(reader, state)
        found.lookup("192.0.2.1")
    except OSError as error:
        raise ConfigError(f"the database {path} cannot be read: {error.strerror}", path=SETTING) from None
    except (maxminddb.InvalidDatabaseError, ValueError, KeyError, IndexError, UnicodeDecodeError):
        raise ConfigError(f"{path} is no database in MaxMind's format, or is damaged", path=SETTING) from None
    return found


def _code(record: Any) -> str:
    """The code in MaxMind's and DB-IP's `{country: {iso_code}}`, or IPinfo's `{country_code}` and `{country}`."""
    if not isinstance(record, dict):
        return ""
    country = record.get("country")
    found = country.get("iso_code") if isinstance(country, dict) else record.get("country_code", country)
    return found if isinstance(found, str) and len(found) == 2 else ""
