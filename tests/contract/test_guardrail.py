"""What every Guardrail and its StreamMatcher keep to: gateway.core.ports.Guardrail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from gateway.app.plugins import OURS
from gateway.core.errors import GuardrailViolation
from gateway.core.ports import Guardrail
from gateway.core.specs import GuardrailSpec
from gateway.core.types import Verdict


def unused(path: str) -> str:
    raise AssertionError(f"read {path}")


def guardrail(kind: str, **settings: object) -> Callable[[], Guardrail]:
    return lambda: OURS.guardrail(GuardrailSpec(name="the-name", type=kind, settings=settings), unused)


FORBIDDEN = "secret plan"
"""A text that every implementation below acts upon."""
IMPLEMENTATIONS: dict[str, Callable[[], Guardrail]] = {
    "denylist, block": guardrail("denylist", phrases=[FORBIDDEN]),
    "denylist, mask": guardrail("denylist", phrases=[FORBIDDEN], action="mask"),
}
HARMLESS = ["", "hello", "Grüße, 世界 👋🏽", "a\nb\tc\u200d", "secret", "plan secret", "x" * 5000, "\ud800"]


@pytest.fixture(params=IMPLEMENTATIONS)
def subject(request: pytest.FixtureRequest) -> Guardrail:
    return IMPLEMENTATIONS[request.param]()


async def check(guardrail: Guardrail, texts: list[str]) -> Verdict:
    found = guardrail.check(texts)
    return await found if isinstance(found, Awaitable) else found


def test_every_type_is_held_to_this_contract() -> None:
    assert {name.partition(",")[0] for name in IMPLEMENTATIONS} == {row.name for row in OURS.guardrails}


async def test_harmless_texts_are_allowed(subject: Guardrail) -> None:
    assert (await check(subject, HARMLESS)).action == "allow"
    assert (await check(subject, [])).action == "allow"


async def test_a_verdict_names_the_guardrail_and_not_what_it_looks_for(subject: Guardrail) -> None:
    verdict = await check(subject, ["fine", f"the {FORBIDDEN} is"])
    assert verdict.action in ("block", "rewrite")
    assert verdict.guardrail == subject.name == "the-name"
    assert verdict.reason and FORBIDDEN not in verdict.reason
    if verdict.action == "rewrite":
        assert len(verdict.texts) == 2 and verdict.texts[0] == "fine" and FORBIDDEN not in verdict.texts[1]


def test_a_stream_passes_harmless_text_unchanged(subject: Guardrail) -> None:
    for text in HARMLESS:
        for size in (1, 2, 7, 5000):
            matcher = subject.stream()
            assert matcher is not None
            out = "".join(matcher.feed(text[start : start + size]) for start in range(0, len(text), size))
            assert out + matcher.finish() == text


async def test_a_stream_and_a_whole_text_are_judged_alike(subject: Guardrail) -> None:
    text = f"before {FORBIDDEN} after"
    verdict = await check(subject, [text])
    for cut in range(len(text) + 1):
        matcher = subject.stream()
        assert matcher is not None
        out = ""
        try:
            out += matcher.feed(text[:cut])
            out += matcher.feed(text[cut:])
            out += matcher.finish()
        except GuardrailViolation as error:
            assert verdict.action == "block"
            assert error.code == subject.name
        else:
            assert verdict.texts == (out,)
        assert FORBIDDEN not in out


def test_streams_share_nothing(subject: Guardrail) -> None:
    one, other = subject.stream(), subject.stream()
    assert one is not None and other is not None
    one.feed("secret ")
    assert other.feed("plan for all") + other.finish() == "plan for all"
