"""Sealed secrets: opened by whoever has the pepper and asks for the same purpose, and by nobody else."""

from __future__ import annotations

import pytest

from gateway.core.clock import SystemEntropy
from gateway.core.errors import ConfigError
from gateway.core.secret import Secret
from gateway.store.seal import PREFIX, Sealer

SECRET = Secret("sk-0123456789 with spaces and ümlauts")


def sealer(pepper: bytes = b"p" * 32) -> Sealer:
    return Sealer(pepper, SystemEntropy())


def test_what_was_sealed_is_opened_by_every_holder_of_the_pepper() -> None:
    sealed = sealer().seal(SECRET, "engines/a")
    assert sealed.startswith(PREFIX) and SECRET.reveal() not in sealed
    assert sealer().unseal(sealed, "engines/a") == SECRET
    assert sealer().seal(SECRET, "engines/a") != sealed, "equal secrets must not look equal"


def test_it_opens_for_nothing_else() -> None:
    sealed = sealer().seal(SECRET, "engines/a")
    flipped = sealed[:-6] + ("A" if sealed[-6] != "A" else "B") + sealed[-5:]
    for wrong, purpose, by in (
        (sealed, "engines/b", sealer()),
        (sealed, "engines/a", sealer(b"q" * 32)),
        (flipped, "engines/a", sealer()),
        (PREFIX, "engines/a", sealer()),
        (PREFIX + "ü", "engines/a", sealer()),
        ("plain", "engines/a", sealer()),
    ):
        with pytest.raises(ConfigError) as caught:
            by.unseal(wrong, purpose)
        assert SECRET.reveal() not in str(caught.value)
