"""Texts that are not UTF-8: what is said of them."""

from __future__ import annotations


def fault(data: bytes) -> str:
    """What is wrong with a text, by the first byte that cannot stand where it does; "" for UTF-8. A decoder of JSON counts from the
    beginning of the string that the byte is in, which tells nobody where it is."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"the byte 0x{data[error.start]:02x} at offset {error.start} is not UTF-8"
    return ""
