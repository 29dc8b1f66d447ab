"""Addresses of machines are what the standard library says they are, less those that are nobody's."""

from __future__ import annotations

import random
import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from policies.guardrails.pii.network import RECOGNISERS

V4, V6 = RECOGNISERS[0].valid, RECOGNISERS[1].valid
SHAPE = re.compile(r"[0-9a-f]{1,4}:(?:[0-9a-f]{0,4}:){1,6}(?:[0-9a-f]{1,4}|\d{1,3}(?:\.\d{1,3}){3}|:)")


def test_ipv4_addresses() -> None:
    draw = random.Random(1)
    parts = ("0", "1", "10", "127", "223", "224", "255", "256", "999", "01", "000")
    for _ in range(3000):
        text = ".".join(draw.choices(parts, k=draw.choice((4, 4, 5))))
        assert V4(text) == (len(text) if somebodys(text, IPv4Address) else 0), text


def test_ipv6_addresses() -> None:
    draw = random.Random(2)
    tried = 0
    for _ in range(60_000):
        text = "".join(draw.choices((":", "::", "f", "ff02", "1", "0", "12ab", "1.2.3.4"), k=draw.randint(5, 17)))
        if SHAPE.fullmatch(text):
            tried += 1
            whole = text if text.endswith("::") else text.rstrip(":.")
            named = len([group for group in whole.split(":") if group]) >= 3 and any(sign.isdigit() for sign in whole)
            assert V6(text) == (len(whole) if named and somebodys(whole, IPv6Address) else 0), text
    assert tried > 1000


def somebodys(text: str, kind: type[IPv4Address] | type[IPv6Address]) -> bool:
    try:
        address = kind(text)
    except AddressValueError:
        return False
    if isinstance(address, IPv4Address):
        return 0 < address.packed[0] < 224 and address.packed[0] != 127
    return not (address.is_loopback or address.is_unspecified or address.is_multicast)
