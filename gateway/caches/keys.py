"""The key of an answer: two requests have the same one only if the same engine would be asked the same, for the same isolation domain.

What is hashed is what would be sent, after aliases were resolved and guardrails have rewritten it: the path, the header lines about the
body, and each top-level field with the client's own bytes. Only the order of the top-level fields and space between JSON's tokens do not
count. Fields that this version does not know count like all others, and texts are not normalised: two spellings that an engine could tell
apart are two requests. The parser has refused bodies in which a key appears twice.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, Literal

import msgspec

from gateway.core.isolation import KEY, TENANT, domain
from gateway.core.types import InferenceRequest, Principal

KEY_BYTES: Final = 32
NESTED: Final = (b"{", b"[")
_PURPOSE: Final = b"gatehouse answer"
"""Personalises the hash (RFC 7693, 2.5)."""


def key_of(
    secret: bytes, principal: Principal, sharing: Literal["key", "tenant", "global"], version: bytes, request: InferenceRequest
) -> bytes:
    """KEY_BYTES bytes that reveal nothing without the secret, which has at most 64 bytes.

    sharing: the model's `prefix_sharing`; answers are shared within a tenant at most, also where prefixes are shared by all. version: of
    the model and of the guardrails that read the request, as whoever builds the snapshot names them.
    """
    hashed = blake2b(key=secret, digest_size=KEY_BYTES, person=_PURPOSE)
    parts = [
        (f"{domain(principal, KEY)}\0{principal.user}" if sharing == KEY else domain(principal, TENANT)).encode("utf-8", "surrogatepass"),
        request.model.encode(),
        version,
        request.path,
        request.content,
        b"stream" if request.stream else b"whole",
        "\0".join(sorted(request.labels)).encode(),
        request.raw,
    ]
    for name in sorted(request.fields):
        value = bytes(request.fields[name])
        if value.startswith(NESTED):
            value = bytes(msgspec.json.format(value, indent=-1))  # takes out space, and changes nothing else
        parts += (name.encode("utf-8", "surrogatepass"), value)
    hashed.update(b"".join([b"%d:%b" % (len(part), part) for part in parts]))
    return hashed.digest()
