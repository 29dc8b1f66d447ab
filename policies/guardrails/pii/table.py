"""All recognisers. To add a family: a file with RECOGNISERS, and a line here."""

from __future__ import annotations

from typing import Final

from policies.guardrails.pii import birth, card, crypto, email, iban, national, network, passport, phone, plate, ssn
from policies.guardrails.recognition.recogniser import Recogniser

RECOGNISERS: Final[tuple[Recogniser, ...]] = (
    *email.RECOGNISERS,
    *iban.RECOGNISERS,
    *crypto.RECOGNISERS,
    *national.RECOGNISERS,
    *card.RECOGNISERS,
    *ssn.RECOGNISERS,
    *network.RECOGNISERS,
    *birth.RECOGNISERS,
    *passport.RECOGNISERS,
    *plate.RECOGNISERS,
    *phone.RECOGNISERS,
)
"""In order: of two matches with the same beginning and length, the one named first wins."""
ENTITIES: Final = tuple(dict.fromkeys(one.entity for one in RECOGNISERS))
