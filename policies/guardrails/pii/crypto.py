"""Addresses of cryptocurrencies: Bitcoin's (base58check; bech32 and bech32m of BIP 173 and BIP 350) and Ethereum's."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from policies.guardrails.recognition.checks import has
from policies.guardrails.recognition.recogniser import Recogniser

_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BECH32: Final = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_GENERATOR: Final = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_BECH32M: Final = 0x2BC830A3


def _base58(text: str) -> bool:
    number = 0
    for character in text:
        value = _BASE58.find(character)
        if value < 0:
            return False
        number = number * 58 + value
    if number >= 1 << 200:
        return False
    data = number.to_bytes(25, "big")
    return data[0] in (0, 5) and sha256(sha256(data[:21]).digest()).digest()[:4] == data[21:]


def _bech32(text: str) -> bool:
    if text not in (text.lower(), text.upper()):
        return False
    prefix, _, data = text.lower().partition("1")
    values = [ord(one) >> 5 for one in prefix] + [0] + [ord(one) & 31 for one in prefix]
    for character in data:
        value = _BECH32.find(character)
        if value < 0:
            return False
        values.append(value)
    check = 1
    for value in values:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate(_GENERATOR):
            check ^= generator if top >> bit & 1 else 0
    return check in (1, _BECH32M)


def _ethereum(text: str) -> bool:
    return len(set(text[2:].lower())) > 4


RECOGNISERS: Final = (
    Recogniser("crypto", "[13][1-9a-z]{25,34}", has(_base58)),
    Recogniser("crypto", "(?:bc|tb)1[02-9ac-hj-np-z]{11,71}", has(_bech32)),
    Recogniser("crypto", "0x[0-9a-f]{40}", has(_ethereum)),
)
