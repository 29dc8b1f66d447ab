"""Addresses of machines: IPv4, IPv6 (RFC 4291) and MAC."""

from __future__ import annotations

from ipaddress import AddressValueError, IPv6Address
from typing import Final

from policies.guardrails.recognition.checks import has
from policies.guardrails.recognition.recogniser import Recogniser


def _v4(text: str) -> int:
    """Not loopback, unspecified, broadcast, multicast and netmasks, which are nobody's; nor a version of more than four numbers."""
    parts = text.split(".")
    if len(parts) != 4:
        return 0
    for part in parts:
        if (len(part) > 1 and part[0] == "0") or (len(part) == 3 and part > "255"):
            return 0
    first = int(parts[0])
    return len(text) if 0 < first < 224 and first != 127 else 0


def _v6(text: str) -> int:
    """Something with a digit and three groups, so that names in code such as `a::b` are none."""
    text = text.rstrip(":.") if not text.endswith("::") else text
    groups = [group for group in text.split(":") if group]
    if len(groups) < 3 or not any(character.isdigit() for character in text):
        return 0
    if "." in text:
        return len(text) if _is_v6(text) else 0
    skips = text.count("::")
    if skips > 1 or ":::" in text or (len(groups) > 7 if skips else len(groups) != 8):
        return 0
    number = int("".join(groups), 16)
    nobodys = number == 0 or (number == 1 and text[-1] == "1")
    return 0 if nobodys or (len(groups[0]) == 4 and groups[0][:2].lower() == "ff") else len(text)


def _is_v6(text: str) -> bool:
    """Whether a text that ends with an IPv4 address is an address of a machine."""
    try:
        address = IPv6Address(text)
    except AddressValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or address.is_multicast)


def _mac(text: str) -> bool:
    found = text.replace("-", "").replace(":", "").replace(".", "").lower()
    separators = {character for character in text if character in ":-."}
    return len(separators) == 1 and len(found) == 12 and found not in ("0" * 12, "f" * 12)


RECOGNISERS: Final = (
    Recogniser("ip", r"\d{1,3}(?:\.\d{1,3}){3,4}", _v4, not_after=".-"),
    Recogniser("ip", r"[0-9a-f]{1,4}:(?:[0-9a-f]{0,4}:){1,6}(?:[0-9a-f]{1,4}|\d{1,3}(?:\.\d{1,3}){3}|:)", _v6, not_after=":."),
    Recogniser("mac", r"[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}", has(_mac), not_after=":-"),
    Recogniser("mac", r"[0-9a-f]{4}\.[0-9a-f]{4}\.[0-9a-f]{4}(?:\.[0-9a-f])?", has(_mac), not_after="."),
)
