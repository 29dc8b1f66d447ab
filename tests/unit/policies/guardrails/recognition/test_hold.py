"""What a stream holds: never more than the guardrail says, and only text that is the beginning of a candidate. Judged by RE2 with the
patterns of all beginnings, which the guardrail does not use."""

from __future__ import annotations

import random
from typing import Any

import pytest
import re2

from policies.guardrails.pii.table import RECOGNISERS as PII
from policies.guardrails.recognition.actions import Actions
from policies.guardrails.recognition.finder import Finder
from policies.guardrails.recognition.guardrail import EntityGuardrail
from policies.guardrails.recognition.normal import as_bytes, escapes, fold
from policies.guardrails.recognition.recogniser import Recogniser
from policies.guardrails.secrets.guardrail import RECOGNISERS as SECRETS

WITHOUT_MAIL = tuple(one for one in PII if one.entity != "email")
CHAINS = {"pii": PII, "pii without email": WITHOUT_MAIL, "secrets": SECRETS, "both": (*PII, *SECRETS)}
PIECES = (
    *(
        "the ",
        "word ",
        "a",
        "B",
        "7",
        "42",
        " ",
        ", ",
        ".",
        "-",
        "(",
        ")",
        "+49 ",
        "4111 ",
        "1111",
        "@",
        "x@y",
        ".org ",
        "\n",
        '"',
        "DE89",
        "0x",
    ),
    *(
        "born ",
        "plate ",
        "call me ",
        "passport ",
        "AKIA",
        "sk-",
        "ghp_",
        "password=",
        "://",
        "Bearer ",
        "é",
        "\uff11",
        "\u200b",
        "中",
        "AB-12 ",
    ),
)


def beginnings(recognisers: tuple[Recogniser, ...]) -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.case_sensitive = False
    options.never_capture = True
    options.max_mem = 256 * 1024 * 1024
    return re2._re2.RE2("|".join(one.bounded.start for one in recognisers).encode("latin-1"), options)


@pytest.mark.parametrize("chain", CHAINS)
def test_only_what_may_become_an_entity_is_held_and_never_more_than_is_said(chain: str) -> None:
    recognisers = CHAINS[chain]
    guardrail = EntityGuardrail(Actions("g", Finder(recognisers), dict.fromkeys([one.entity for one in recognisers], "mask"), b"k" * 32))
    begins, both = beginnings(recognisers), re2._re2.RE2.Anchor.ANCHOR_BOTH
    draw = random.Random(chain)
    held = 0
    for _ in range(30):
        stream = guardrail.stream()
        for _ in range(40):
            stream.feed("".join(draw.choices(PIECES, k=draw.randint(1, 3))))
            if not (waits := stream.held):
                continue
            held += 1
            folded = fold(waits)
            data = escapes(as_bytes(folded))
            assert len(folded) <= guardrail.longest
            assert begins.Match(both, data, 0, len(data))[0][0] == 0, waits
    assert held > 50


@pytest.mark.parametrize("chain", CHAINS)
def test_text_that_cannot_begin_an_entity_passes_at_once(chain: str) -> None:
    recognisers = CHAINS[chain]
    guardrail = EntityGuardrail(Actions("g", Finder(recognisers), dict.fromkeys([one.entity for one in recognisers], "mask"), b"k" * 32))
    stream = guardrail.stream()
    for text in ("Nobody waits ", "for this, ", "or (again) ", "for that; ", "it begins: ", "«so» ", "\n\n", "中文。 "):
        assert stream.feed(text) == text
        assert not stream.held
