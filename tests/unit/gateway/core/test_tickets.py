"""The form of tickets and receipts: one text for each content, and nothing else is read."""

from __future__ import annotations

import msgspec
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.tickets import RECEIPT, TICKET, Receipt, Ticket, opened, sealed

KEY = Ed25519PrivateKey.generate()


def ticket(**fields: object) -> Ticket:
    made = Ticket(
        id="0" * 32,
        request="r",
        issuer="a/w1",
        tenant="t",
        machine="gpu-1",
        boot="b" * 32,
        engine="chat",
        path="/v1/chat/completions",
        head="content-type: application/json",
        sha256="",
        size=2,
        stream=False,
        prompt_tokens=3,
        max_tokens=8,
        issued=100.0,
        expires=130.0,
        seconds=60.0,
    )
    return msgspec.structs.replace(made, **fields)


def test_a_ticket_comes_back_as_it_was_with_what_is_signed() -> None:
    text = sealed(TICKET, ticket(), KEY.sign)
    found, signed, signature = opened(TICKET, text, Ticket)
    assert found == ticket()
    KEY.public_key().verify(signature, signed)
    assert signed.startswith(b"gatehouse ticket 1\n")


def test_a_ticket_is_no_receipt_and_neither_passes_for_the_other() -> None:
    receipt = Receipt(ticket="0" * 32, machine="gpu-1", outcome="ok", status=200)
    text = sealed(RECEIPT, receipt, KEY.sign)
    with pytest.raises(ValueError):
        opened(TICKET, text, Ticket)
    _, signed, signature = opened(RECEIPT, text, Receipt)
    with pytest.raises(InvalidSignature):
        KEY.public_key().verify(signature, signed.replace(b"receipt", b"ticket", 1))


@given(st.data())
def test_no_other_text_is_the_same_ticket(data: st.DataObject) -> None:
    """Of a text with one character changed, either the form, the content or the signature is another."""
    text = sealed(TICKET, ticket(), KEY.sign)
    place = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.sampled_from("ABCxyz019-_.=+/ \n~"))
    other = text[:place] + letter + text[place + 1 :]
    if other == text:
        return
    try:
        _, signed, signature = opened(TICKET, other, Ticket)
    except ValueError:
        return
    with pytest.raises(InvalidSignature):
        KEY.public_key().verify(signature, signed)


@pytest.mark.parametrize(
    "text", ["", "ght_", "ght_.", "ght_e30", "ght_e30." + "A" * 86, "ght_" + "A" * 5000, "ght_e30." + "A" * 85 + "B", "ghr_e30." + "A" * 86]
)
def test_what_has_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        opened(TICKET, text, Ticket)
