"""Rules on where callers may come from: lists of networks and countries that allow or deny.

An entry is a network (`10.0.0.0/8`, `2001:db8::/32`), an address, or a country (`country:DE`, ISO 3166-1); with `deny:` before it, it
denies.
Whoever is denied is out, in whatever order the entries stand. Of a list that allows something, others are out too; a list that only denies
admits everybody else. An address whose country is not known is in none: allowing countries keeps it out. Where a rule names countries and
there is nothing that knows them, it admits nobody.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Lookup = Callable[[str], str]
"""An address -> the code of its country, or "" if that is not known."""

DENY: Final = "deny:"
COUNTRY: Final = "country:"
REMEMBERED: Final = 4096
"""Addresses whose decision a list remembers, and lists that are kept."""
COUNTRIES: Final = 16384
"""Addresses whose country is remembered."""


@dataclass(frozen=True)
class Entry:
    """Exactly one of network and country."""

    deny: bool
    network: Network | None
    country: str

    def __str__(self) -> str:
        what = str(self.network) if self.network is not None else f"{COUNTRY}{self.country}"
        return f"{DENY if self.deny else ''}{what}"


def parse(text: str) -> Entry:
    """Raises ValueError with what is wrong and what would be right."""
    deny = text.startswith(DENY)
    what = text.removeprefix(DENY).strip()
    if what.startswith(COUNTRY):
        code = what.removeprefix(COUNTRY)
        if len(code) != 2 or not code.isascii() or not code.isalpha() or not code.isupper():
            raise ValueError(f"{what[:64]!r} is not a country; write two capital letters (ISO 3166-1), such as country:DE")
        return Entry(deny, None, code)
    try:
        return Entry(deny, ipaddress.ip_network(what), "")
    except ValueError as error:
        try:
            meant = f"did you mean {ipaddress.ip_network(what, strict=False)}?"
        except ValueError:
            meant = "write an address or a network, such as 192.0.2.7 or 10.0.0.0/8, or a country, such as country:DE"
        raise ValueError(f"{str(error)[:200]}; {meant}") from None


class Networks:
    """What rules share in a process: who knows countries, and the lists themselves, so that equal ones are one object. One thread."""

    def __init__(self) -> None:
        self._lookup: Lookup | None = None
        self.generation = 0
        """Grows whenever countries may have changed."""
        self._countries: OrderedDict[str, str] = OrderedDict()
        self._rules: OrderedDict[tuple[str, ...], Rules] = OrderedDict()

    @property
    def knows_countries(self) -> bool:
        return self._lookup is not None

    def use(self, lookup: Lookup | None) -> None:
        """From now on countries are known from there; None: not at all."""
        self._lookup = lookup
        self._countries.clear()
        self.generation += 1

    def country(self, address: str) -> str:
        """The code of an address's country, or "" if that is not known; remembered, in a bounded table."""
        found = self._countries.get(address)
        if found is None:
            found = "" if self._lookup is None else self._lookup(address)
            self._countries[address] = found
            if len(self._countries) > COUNTRIES:
                self._countries.popitem(last=False)
        return found

    def rules(self, entries: Sequence[str]) -> Rules | None:
        """The list with these entries; None if there are none. Raises ValueError."""
        if not entries:
            return None
        key = tuple(entries)
        found = self._rules.get(key)
        if found is None:
            found = self._rules[key] = Rules(self, [parse(entry) for entry in key])
            if len(self._rules) > REMEMBERED:
                self._rules.popitem(last=False)
        return found


class Rules:
    """One list."""

    def __init__(self, shared: Networks, entries: Sequence[Entry]) -> None:
        self._shared = shared
        self._denied = tuple(entry.network for entry in entries if entry.deny and entry.network is not None)
        self._allowed = tuple(entry.network for entry in entries if not entry.deny and entry.network is not None)
        self._denied_countries = frozenset(entry.country for entry in entries if entry.deny and entry.country)
        self._allowed_countries = frozenset(entry.country for entry in entries if not entry.deny and entry.country)
        self._selects = any(not entry.deny for entry in entries)
        self._generation = -1
        self._admitted: dict[str, bool] = {}
        self._denies: dict[str, bool] = {}

    def admits(self, address: str) -> bool:
        """Whether whoever has this address is let in. Anything but an address (a Unix socket) is in no network and no country."""
        if self._generation != self._shared.generation:
            self._forget()
        found = self._admitted.get(address)
        if found is None:
            found = _remember(self._admitted, address, not self.denies(address) and self._allows(address))
        return found

    def denies(self, address: str) -> bool:
        """Whether an entry denies the address; a denial precedes what others allow."""
        if self._generation != self._shared.generation:
            self._forget()
        found = self._denies.get(address)
        if found is None:
            found = _remember(self._denies, address, self._is_in(address, self._denied, self._denied_countries, unknown=True))
        return found

    def _allows(self, address: str) -> bool:
        return not self._selects or self._is_in(address, self._allowed, self._allowed_countries, unknown=False)

    def _is_in(self, address: str, networks: tuple[Network, ...], countries: frozenset[str], *, unknown: bool) -> bool:
        """unknown: the answer where countries count and nothing knows them."""
        try:
            parsed = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        if any(parsed.version == network.version and parsed in network for network in networks):
            return True
        if not countries:
            return False
        return unknown if not self._shared.knows_countries else self._shared.country(str(parsed)) in countries

    def _forget(self) -> None:
        self._generation = self._shared.generation
        self._admitted.clear()
        self._denies.clear()


def _remember(table: dict[str, bool], address: str, found: bool) -> bool:
    if len(table) >= REMEMBERED:
        del table[next(iter(table))]
    table[address] = found
    return found
