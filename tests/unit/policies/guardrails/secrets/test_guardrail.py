"""The guardrail secrets: what is found, what is not, and streams that are cut anywhere."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Awaitable, Generator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.app.configuration.plugins import OURS
from gateway.core.errors import ConfigError, GuardrailViolation
from gateway.core.ports import Guardrail
from gateway.core.slices import at_once
from gateway.core.specs import GuardrailSpec
from gateway.core.types import ALLOW, Verdict
from policies.guardrails.secrets.guardrail import MOST
from tests.steady import at_most, longest_step
from tests.unit.policies.guardrails.secrets.samples import CLEAN, samples

SAMPLES = list(samples(1))
JWT = next(secret for entity, _, secret, _ in SAMPLES if entity == "jwt")
PEM = next(secret for entity, _, secret, _ in SAMPLES if entity == "private_key")


def made(**fields: Any) -> Guardrail:
    return OURS.guardrail(GuardrailSpec(name="g", type="secrets", settings=fields), lambda _: "")


MASK = made(action="mask")


def check(text: str, guardrail: Guardrail = MASK) -> Verdict:
    found = guardrail.check([text])
    assert not isinstance(found, Awaitable)
    return at_once(found) if isinstance(found, Generator) else found


def streamed(*pieces: str, guardrail: Guardrail = MASK) -> str:
    stream = guardrail.stream()
    assert stream is not None
    return "".join([stream.feed(piece) for piece in pieces]) + stream.finish()


@pytest.mark.parametrize("seed", range(2, 7))
def test_every_kind_is_found_whole(seed: int) -> None:
    for entity, before, secret, behind in samples(seed):
        verdict = check(before + secret + behind)
        found = [one.entity for one in verdict.findings]
        assert verdict.action == "rewrite" and entity in found, (entity, secret)
        assert verdict.texts[0].startswith(f"{before}[{entity.upper()}]"), verdict.texts
        assert secret[8:24] not in verdict.texts[0]


@pytest.mark.parametrize("text", CLEAN)
def test_what_only_looks_like_one_passes(text: str) -> None:
    assert check(text) is ALLOW and streamed(*text) == text


@pytest.mark.parametrize(("entity", "before", "secret", "behind"), SAMPLES)
def test_a_secret_cut_anywhere_never_leaves_in_part(entity: str, before: str, secret: str, behind: str) -> None:
    text = f"{before}{secret}{behind}"
    whole = check(text).texts[0]
    for cut in range(0, len(text) + 1, max(1, len(text) // 60)):
        assert streamed(text[:cut], text[cut:]) == whole
        first = MASK.stream()
        assert first is not None
        sent = first.feed(text[:cut])
        assert whole.startswith(sent), sent
    assert streamed(*text) == whole
    wide = f"\u00e9 {text}\n" * 3  # beyond ASCII, what follows a secret is read in pieces
    assert streamed(*wide) == streamed(wide)


PIECES = [
    *(before + secret + behind for _, before, secret, behind in SAMPLES if len(secret) < 300),
    *(secret[: len(secret) // 2] for _, _, secret, _ in SAMPLES),
    *("password", "=", ": ", '"', " ", "\n", "sk-", "eyJ", ".", "-----BEGIN ", "PRIVATE KEY-----\n", "-----END PRIVATE KEY-----", "://a:"),
    *("é", "\u200b", "ｓｋ", "\\n", "a", "7", "@"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@given(TEXTS, st.data())
@settings(max_examples=150, deadline=None)
def test_the_output_does_not_depend_on_the_cuts(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    whole = streamed(text)
    assert streamed(*(text[low:high] for low, high in zip([0, *cuts], [*cuts, len(text)], strict=True))) == whole
    verdict = check(text)
    assert (verdict.texts[0] if verdict.action == "rewrite" else text) == whole


def test_words_that_name_a_secret_are_not_held() -> None:
    stream = MASK.stream()
    assert stream is not None
    for token in ("The", " password", " was", " set", " in", " the", " config", " file", " token", "=", ' "'):
        assert stream.feed(token) == token
    assert stream.feed("Zx81") == "" and stream.feed("Qp!") == ""
    assert stream.feed('9vT"') == '[PASSWORD]"'


LONG = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj\n" * 5000 + "-----END PRIVATE KEY-----"


@pytest.mark.parametrize("action", ["mask", "hash", "pseudonym"])
def test_of_a_long_private_key_nothing_passes(action: str) -> None:
    assert len(LONG) > 3 * 64 * 1024
    guardrail = made(entities={"private_key": action}, **({"hash_key": "0123456789abcdef"} if action == "hash" else {}))
    text = f"see {LONG} end"
    (passed,) = check(text, guardrail).texts
    assert re.fullmatch(r"see \[PRIVATE_KEY(:[0-9a-f]{16})?\] end", passed)
    for size in (100, 10_000):
        pieces = [text[place : place + size] for place in range(0, len(text), size)]
        assert streamed(*pieces, guardrail=guardrail) == passed


def test_the_rest_of_a_private_key_is_dropped_as_it_comes() -> None:
    stream = MASK.stream()
    assert stream is not None
    held = 0
    out = []
    for character in f"see {PEM} end":
        out.append(stream.feed(character))
        held = max(held, len(stream.held))
    assert "".join(out) + stream.finish() == "see [PRIVATE_KEY] end" and held < 100


def test_a_finding_of_unknown_length_has_its_whole_place() -> None:
    (finding,) = check(f"see {PEM} end").findings
    assert (finding.start, finding.end) == (4, 4 + len(PEM)) and len(finding.value) == 64
    other = check(f"see {PEM.replace('k', 'j')} end").findings[0]
    assert other.value != finding.value


def test_each_kind_has_its_action() -> None:
    guardrail = made(action="annotate", entities={"jwt": "block", "aws": "allow"})
    assert check(f"a {JWT} b", guardrail).action == "block"
    aws = next(secret for entity, _, secret, _ in SAMPLES if entity == "aws")
    assert check(f"a {aws} b", guardrail) is ALLOW
    verdict = check("password: 'Tr0ub4dor&3'", guardrail)
    assert verdict.action == "annotate" and "password" in verdict.reason and not verdict.texts
    assert streamed("password: 'Tr0ub4", "dor&3' " + PEM, guardrail=guardrail) == "password: 'Tr0ub4dor&3' " + PEM
    with pytest.raises(GuardrailViolation, match="secrets that must not pass here: jwt"):
        streamed(*f"a {JWT} b", guardrail=guardrail)


def test_hashes_and_the_allow_list() -> None:
    guardrail = made(action="hash", hash_key="0123456789abcdef", allow=["Tr0ub4dor&3"])
    first, second = (check(text, guardrail).texts[0] for text in (f"a {JWT} b", f"{JWT}"))
    assert first == f"a {second} b" and second.startswith("[JWT:")
    assert check("password: 'Tr0ub4dor&3'", guardrail) is ALLOW


def test_what_takes_the_place_of_a_number_in_json_is_a_string() -> None:
    pii = OURS.guardrail(GuardrailSpec(name="p", type="pii"), lambda _: "")
    for text in ('{"card": 4111111111111111, "name": "x 4111111111111111"}', '{"a\\"": [4111111111111111]}'):
        out = check(text, pii).texts[0]
        assert "4111" not in out
        assert json.loads(out)
        for cut in range(len(text)):
            assert streamed(text[:cut], text[cut:], guardrail=pii) == out
    assert check("{4111111111111111}", pii).texts[0] == "{[CARD]}"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"entities": {"amazon": "mask"}}, "entities.amazon: there is no such kind of secret; known: gatehouse, "),
        (
            {"entities": {"aws": "delete"}},
            "entities.aws: there is no action 'delete'; use one of block, mask, hash, pseudonym, annotate, label, allow",
        ),
        ({"action": "hash"}, "hash_key: the action hash needs one"),
        ({"allow": ["* "]}, "would let everything pass"),
        ({"action": "delete"}, "delete"),
    ],
)
def test_settings_that_it_refuses(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        made(**fields)


@pytest.mark.parametrize("unit", ["password=", "eyJ.", "://a:", "sk-", "-----BEGIN ", "token: a1"])
def test_hostile_texts_take_short_steps(unit: str) -> None:
    def step() -> float:
        found = MASK.check([unit * (65536 // len(unit))])
        assert not isinstance(found, Awaitable)
        return 0.0 if isinstance(found, Verdict) else longest_step(found)

    at_most(0.3, step)


@pytest.mark.parametrize(("before", "longest"), [("password=", 128), ("token: ", 128), ("Authorization: Bearer ", 512)])
def test_a_jwt_is_found_whole_where_what_a_word_announces_would_end_inside_of_it(before: str, longest: int) -> None:
    """A password or a bearer token may be found up to the length of its kind, where a sign follows."""
    head = "eyJhbGciOiJSUzI1NiJ9."
    for sign in ".-":
        jwt = head + "QWx0aG91Z2ggc28x"[:16] * 40
        jwt = jwt[: longest - 1] + "x" + sign + "c2lnbmF0dXJl" * 20
        wanted = f"{before}[JWT] behind"
        assert check(f"{before}{jwt} behind").texts == (wanted,)
        text = f"{before}{jwt} behind"
        assert streamed(*[text[place : place + 7] for place in range(0, len(text), 7)]) == streamed(*text) == wanted


@pytest.mark.parametrize("action", ["mask", "annotate"])
def test_more_secrets_than_a_request_may_have_are_refused(action: str) -> None:
    guard = made(action=action)
    one = "password=Tr0ub4dor&3x "

    def verdict(texts: list[str]) -> Verdict:
        found = guard.check(texts)
        return found if isinstance(found, Verdict) else at_once(found)

    assert verdict([one * MOST]).action == ("rewrite" if action == "mask" else "annotate")
    assert verdict([one * (MOST // 2), one * (MOST // 2 + 1)]).action == "block"
    assert verdict([one] * MOST + ["nothing", one]).action == "block"
    stream = guard.stream()
    assert stream is not None
    stream.feed(one * MOST)
    with pytest.raises(GuardrailViolation, match="1000 are the most"):
        stream.feed(one)


def test_its_patterns_take_little_memory() -> None:
    """Each process has them, and they have thousands of places, of which each takes one of a few sets of characters."""
    tracemalloc.start()
    try:
        guardrail = made()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert check("nothing", guardrail) == ALLOW
    assert taken < 8 * 2**20, f"{taken} bytes"
