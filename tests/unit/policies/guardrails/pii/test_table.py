"""The families that have no suite of their own, and what the table must keep to."""

from __future__ import annotations

import pytest

from policies.guardrails.pii.table import ENTITIES, RECOGNISERS
from tests.unit.policies.guardrails.pii.finding import found


def test_every_entity_has_a_recogniser_of_bounded_length() -> None:
    assert set(ENTITIES) == {
        *("email", "phone", "card", "iban", "ssn", "national_id", "passport", "ip", "mac", "birth_date", "crypto", "plate"),
    }
    assert max(one.bounded.longest for one in RECOGNISERS) < 400


@pytest.mark.parametrize(
    ("text", "entity", "match"),
    [
        ("Write to bob.o'neil+x@mail.example.co.uk.", "email", "bob.o'neil+x@mail.example.co.uk"),
        ("почта иван@пример.рф тут", "email", None),
        ("(bob@example.com)", "email", "bob@example.com"),
        ("4111 1111 1111 1111 12/27", "card", "4111 1111 1111 1111"),
        ("378282246310005", "card", "378282246310005"),
        ("4111 - 1111 - 1111 - 1111", "card", "4111 - 1111 - 1111 - 1111"),
        ("4111  1111  1111  1111", "card", "4111  1111  1111  1111"),
        ("5555-5555-5555-4444", "card", "5555-5555-5555-4444"),
        ("４１１１１１１１\u200b１１１１１１１１", "card", "4111111111111111"),
        ("DE89 3704 0044 0532 0130 00 or so", "iban", "DE89 3704 0044 0532 0130 00"),
        ("gb29nwbk60161331926819", "iban", "gb29nwbk60161331926819"),
        ("536-22-1234", "ssn", "536-22-1234"),
        ("SSN 536221234", "ssn", "536221234"),
        ("ITIN: 912-70-1234", "ssn", "912-70-1234"),
        ("Passport no. 123456789", "passport", "123456789"),
        ("Reisepass C01X00T47", "passport", "C01X00T47"),
        ("numéro de passeport : 12AB34567", "passport", "12AB34567"),
        ("from 203.0.113.9:8080", "ip", "203.0.113.9"),
        ("2001:db8::8a2e:370:7334", "ip", "2001:db8::8a2e:370:7334"),
        ("00:1B:44:11:3A:B7", "mac", "00:1B:44:11:3A:B7"),
        ("001b.4411.3ab7", "mac", "001b.4411.3ab7"),
        ("born on 12 March 1984", "birth_date", "12 March 1984"),
        ("Date of birth: March 12, 1984", "birth_date", "March 12, 1984"),
        ("geboren am 12.3.1984", "birth_date", "12.3.1984"),
        ("né le 01/02/1999", "birth_date", "01/02/1999"),
        ("ne\u0301e le 01/02/1999", "birth_date", "01/02/1999"),
        ("生日1999-02-01", "birth_date", "1999-02-01"),
        ("1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2", "crypto", "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2"),
        ("bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq", "crypto", "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq"),
        ("0x52908400098527886E0F7030069857D2E4169EE7", "crypto", "0x52908400098527886E0F7030069857D2E4169EE7"),
        ("Kennzeichen B-MW 1234", "plate", "B-MW 1234"),
        ("license plate 7ABC123", "plate", "7ABC123"),
    ],
)
def test_it_is_found(text: str, entity: str, match: str | None) -> None:
    entities = found(text)
    assert [name for name, _ in entities] == [entity]
    assert match is None or entities[0][1] == match


@pytest.mark.parametrize(
    "text",
    [
        *(
            "logo@2x.png",
            "@decorator",
            "user@localhost",
            ".@example.com",
            "4111 1111 1111 1112",
            "1234 5678 9012 3456",
            "4967737821450 200",
        ),
        *(
            "DE89 3704 0044 0532 0130 01",
            "DE00636353661972606970",
            "000-12-3456",
            "666-12-3456",
            "536-00-1234",
            "123456789",
            "version 1.2.3.4.5",
            "127.0.0.1",
        ),
        *("256.1.1.1", "255.255.255.0", "std::vector", "dead::beef", "12:34:56", "2024-01-31", "12 March 1984", "MW 1234", "C01X00T47"),
        *("1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN3", "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdp", "0x0000000000000000000000000000000000000000"),
    ],
)
def test_near_misses_are_not(text: str) -> None:
    assert found(f"see {text} there") == []
