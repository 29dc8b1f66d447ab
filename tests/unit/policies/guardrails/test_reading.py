"""What guardrails share of texts changes no verdict."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.plugins import Context
from gateway.core.slices import at_once
from gateway.core.types import Verdict
from policies.guardrails import denylist, pii, secrets
from policies.guardrails.denylist import DenyList
from policies.guardrails.prefilter import Prefilter
from policies.guardrails.reading import MOST, Reading, data_of_all
from policies.guardrails.recognition.guardrail import EntityGuardrail

HERE = Context(name="g")
GUARDRAILS = (
    pii.build(pii.PiiSettings(), HERE),
    secrets.build(secrets.SecretsSettings(action="mask"), HERE),
    denylist.build(denylist.DenyListSettings(phrases=("red falcon", "c++"), action="mask"), HERE),
    denylist.build(denylist.DenyListSettings(phrases=("red falcon",)), HERE),
)
FILTER = Prefilter([guardrail.trigger for guardrail in GUARDRAILS])
HIDDEN = ("red\x01 falcon", "b\x7fob@example.com")
FOUND = (
    "red falcon",
    "RED\tFalcon",
    "bob@example.com",
    "AKIAZ7Q3XW5T2VN4RKPM",
    "4111 1111 1111 1111",
    "red\x01 falcon",
    "b\x7fob@example.com",
)
FRAGMENTS = (*FOUND, " ", "12", "\x00", "\x08", "\\n", "\\", "\u00e9", "\u200b", "tel 2125550123", "x" * 300, ". ")


def verdict(guardrail: EntityGuardrail | DenyList, texts: Sequence[str]) -> tuple[object, ...]:
    """The action, the texts and what was found, where."""
    found = guardrail.check(texts)
    made = found if isinstance(found, Verdict) else at_once(found)
    return made.action, made.texts, [(one.text, one.start, one.end, one.entity, one.value) for one in made.findings]


@given(st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join), min_size=1, max_size=4))
def test_verdicts_on_shared_texts_are_those_on_the_texts(texts: list[str]) -> None:
    shared = FILTER.shared(texts)
    assert list(shared) == texts
    for guardrail in GUARDRAILS:
        assert verdict(guardrail, shared) == verdict(guardrail, texts)


@pytest.mark.parametrize("found", FOUND)
@pytest.mark.parametrize("place", [0, 2040, 32 * 1024 - 9, 32 * 1024, 64 * 1024 - 5, 64 * 1024 - 1, 100_000])
def test_what_stands_anywhere_in_long_shared_texts_is_found(found: str, place: int) -> None:
    text = "word " * (place // 5) + " " * (place % 5) + found + " end" * 2000
    texts = ["first 12", text, "last 34"]
    verdicts = [verdict(guardrail, Reading(texts)) for guardrail in GUARDRAILS]
    assert verdicts == [verdict(guardrail, texts) for guardrail in GUARDRAILS]
    assert "rewrite" in [action for action, _, _ in verdicts]


@pytest.mark.parametrize("hidden", ["\x00", *map(chr, (*range(1, 9), *range(14, 28), 127)), "\u00e9"])
@pytest.mark.parametrize("size", [10, 5000])
def test_only_plain_texts_are_shared(hidden: str, size: int) -> None:
    plain = "word\t12\n" * (size // 8)
    assert data_of_all(Reading([plain, plain])) == f"{plain}\x00{plain}".encode()
    assert data_of_all([plain]) is None
    assert data_of_all(Reading([plain, plain + hidden])) is None
    assert data_of_all(Reading([hidden + plain])) is None


def test_longer_texts_are_left_to_the_guardrails() -> None:
    assert data_of_all(Reading(["x" * MOST])) is not None
    assert data_of_all(Reading(["x" * MOST, ""])) is None
