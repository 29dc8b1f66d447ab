"""Secrets that are known by what is around them: private keys, JSON Web Tokens, passwords in addresses and behind a word that says so."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from typing import Any, Final

from policies.guardrails.recognition.checks import has
from policies.guardrails.recognition.recogniser import Recogniser
from policies.guardrails.secrets.randomness import drawn, entropy, password, stands_in


def _pem(text: str) -> bool:
    return "PRIVATE KEY" in text and text.startswith("-----BEGIN ")


def _jwt(text: str) -> bool:
    """Whether the header is JSON that names an algorithm (RFC 7519, RFC 7516)."""
    header = text.partition(".")[0]
    try:
        found: Any = json.loads(urlsafe_b64decode(header + "=" * (-len(header) % 4)))
    except ValueError:
        return False
    return isinstance(found, dict) and ("alg" in found or "enc" in found)


def _in_address(text: str) -> int:
    """Without the @ behind it."""
    secret = text[:-1]
    return len(secret) if not stands_in(secret) and secret.lower() not in ("password", "pass", "pwd", "secret") else 0


def _behind_word(text: str) -> int:
    """Without signs that end a sentence."""
    end = len(text)
    while end and text[end - 1] in ".,;:!?)":
        end -= 1
    return end if password(text[:end]) else 0


def _bearer(text: str) -> bool:
    return drawn(text, 3.3)


def _basic(text: str) -> bool:
    return entropy(text) >= 2.5 and not stands_in(text)


_WORDS: Final = (
    "passwords?|passwd|passphrase|pwd|secrets?|secret_key|secretkey|tokens?|api[_-]?keys?|access[_-]?keys?|access[_-]?tokens?|auth[_-]?tokens?"
    "|account[_-]?key|private[_-]?key|signing[_-]?key|encryption[_-]?key|credentials?|passwort|kennwort|contrasen\\la|mot de passe"
)
_IS: Final = r"""\\?["']?[ \t]{0,4}(?:=>|:=|=|:| is )[ \t]{0,4}\\?["'`]?"""
RECOGNISERS: Final = (
    Recogniser(
        "private_key",
        "-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----[^a-z0-9+/=]{0,12}(?:[a-z0-9+/]{12}|Proc-T|Version|Comment|Charset)",
        has(_pem),
        tail=r"A-Za-z0-9+/=\s\\\x81:,.()\-",
        stop="-----END [A-Z0-9 ]{1,40}-----",
    ),
    Recogniser("jwt", r"eyJ[A-Za-z0-9_-]{8,400}\.\.?[A-Za-z0-9_-]{8}", has(_jwt), tail=r"A-Za-z0-9_\-.="),
    Recogniser("connection_string", r"[^\s/@\"'<>\{\}]{1,128}@", _in_address, behind=r"://[^\s:/@\"'<>]{0,40}:"),
    Recogniser("connection_string", r"[A-Za-z0-9+/]{43,88}={0,2}", has(_bearer), behind=r"(?:AccountKey|SharedAccessKey|[?&]sig)="),
    Recogniser("authorization", r"[A-Za-z0-9_.~+/=-]{20,512}", has(_bearer), behind=r"bearer[ \t]{1,4}"),
    Recogniser("authorization", r"[A-Za-z0-9+/]{8,256}={0,2}", has(_basic), behind=r"authorization[\"']?:[ \t]{0,4}[\"']?basic[ \t]{1,4}"),
    Recogniser("password", r"[^\s\"'`<>(){}\\\[\],;]{8,128}", _behind_word, behind=f"(?:{_WORDS}){_IS}", trims=True),
)
