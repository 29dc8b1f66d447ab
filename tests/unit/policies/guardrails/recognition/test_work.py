"""What hostile texts cost, counted and not timed: validators see few characters, twice as many in a text twice as long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.core.slices import at_once
from gateway.core.types import Verdict
from loadtests.guardrails.hostile import PIECES, sized
from policies.guardrails.pii.table import RECOGNISERS as PII
from policies.guardrails.recognition.actions import Actions
from policies.guardrails.recognition.checks import Whole
from policies.guardrails.recognition.finder import Finder
from policies.guardrails.recognition.guardrail import EntityGuardrail
from policies.guardrails.recognition.recogniser import Recogniser
from policies.guardrails.secrets.guardrail import RECOGNISERS as SECRETS


class Counted:
    """Recognisers whose validators count the characters that they are asked about."""

    def __init__(self, recognisers: tuple[Recogniser, ...]) -> None:
        self.asked = 0
        made = [replace(one, valid=self._counted(one)) for one in recognisers]
        self.guardrail = EntityGuardrail(Actions("g", Finder(made), dict.fromkeys([one.entity for one in made], "mask"), b"k" * 32))

    def _counted(self, one: Recogniser) -> Callable[[str], int]:
        def valid(text: str) -> int:
            self.asked += len(text)
            return one.valid(text)

        def check(text: str) -> bool:
            return valid(text) > 0

        return Whole(check) if isinstance(one.valid, Whole) else valid

    def cost(self, text: str) -> int:
        self.asked = 0
        found = self.guardrail.check([text])
        assert isinstance(found if isinstance(found, Verdict) else at_once(found), Verdict)
        return self.asked


COUNTED = {"pii": Counted(PII), "secrets": Counted(SECRETS)}
MOST = {"pii": 12, "secrets": 2}
"""Characters for each character of the text. The worst are IBANs in a row and telephone numbers in pairs (8), and tokens in a row (1)."""


@pytest.mark.parametrize("name", PIECES)
def test_validators_see_few_characters_and_never_more_for_each_in_a_longer_text(name: str) -> None:
    short, long = sized(PIECES[name], 2048), sized(PIECES[name], 4096)
    for kind, counted in COUNTED.items():
        once, twice = counted.cost(short), counted.cost(long)
        assert once <= MOST[kind] * len(short), kind
        assert twice <= 2.2 * once + 2048, kind
