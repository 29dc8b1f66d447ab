"""The guardrail content: lengths, and addresses that may not stand in a text, whole and cut anywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.app.configuration.plugins import OURS
from gateway.core.errors import ConfigError, GuardrailViolation
from gateway.core.ports import Guardrail
from gateway.core.slices import at_once
from gateway.core.specs import GuardrailSpec
from gateway.core.types import ALLOW, Verdict
from policies.guardrails.content import _LEAD, _LINKS, _SCHEMES, Hosts, UrlSettings, recognisers
from policies.guardrails.recognition.actions import Actions
from policies.guardrails.recognition.finder import Finder
from policies.guardrails.recognition.guardrail import EntityGuardrail


def made(**fields: Any) -> Guardrail:
    return OURS.guardrail(GuardrailSpec(name="g", type="content", settings=fields), lambda _: "")


LISTED = made(urls={"allow": ["example.com", "*.example.com"]}, action="mask")
ANY = made(urls={"deny": ["evil.com", "*.evil.com"]}, action="mask")
LOOSE = made(urls={"userinfo": True, "international": True, "numeric": True, "images": "any"}, action="mask")


def check(text: str, guardrail: Guardrail = LISTED) -> Verdict:
    found = guardrail.check([text])
    assert not isinstance(found, Awaitable)
    return at_once(found) if isinstance(found, Generator) else found


def streamed(*pieces: str, guardrail: Guardrail = LISTED) -> str:
    stream = guardrail.stream()
    assert stream is not None
    return "".join([stream.feed(piece) for piece in pieces]) + stream.finish()


REFUSED = [
    ("see https://evil.com/x?q=1 end", "see https://[URL] end"),
    ("(https://sub.evil.com:8443)", "(https://[URL])"),
    ("HTTPS://EVIL.COM./", "HTTPS://[URL]"),
    ("https://example.com@evil.com/", "https://[URL]"),
    ("ws://joe:pw@example.com/ x", "ws://[URL] x"),
    ("http://127.0.0.1:80/x", "http://[URL]"),
    ("http://2130706433/ http://0x7f.1", "http://[URL] http://[URL]"),
    ("http://[::1]:8/x", "http://[URL]"),
    ("https://xn--e1awd7f.com", "https://[URL]"),
    ("https://\u0435xample.com/", "https://[URL]"),
    (r'{"u": "https:\/\/evil.com\/x"}', r'{"u": "https:\/\/[URL]\/x"}'),
    ("[a](javascript:alert)", "[a](javascript:[URL])"),
    ("[a](//evil.com/x)", "[a](//[URL])"),
    ("![a](https://evil.com/p?d=secret) t", "[IMAGE]) t"),
    ("<img width=1 src='//evil.com/x'>", "[IMAGE]'>"),
    ("ｈttps://evil.com/", "ｈttps://[URL]"),
    ("ht\u200btps://ev\u200bil.com/", "ht\u200btps://[URL]"),
]
AS_BROWSERS_READ = [
    ("https://example.com,@evil.com/x y", "https://[URL] y"),
    ("https://example.com;x@evil.com", "https://[URL]"),
    ("https://example.com'.evil.com/ y", "https://[URL] y"),
    ("![a](https://example.com(@evil.com/p?d=secret)", "[IMAGE])"),
    ("[a](https:///evil.com/x)", "[a](https:///[URL])"),
    ("[a](http:evil.com/x) [a](http:/evil.com)", "[a](http:[URL]) [a](http:/[URL])"),
    (r"http:\\evil.com\x", r"http:\\[URL]\x"),
    ("[a](<https://example.com x@evil.com/>)", "[a](<https://[URL]>)"),
    (r"<img src='/\evil.com/x'>", "[IMAGE]'>"),
    ("<img src='//evil.com/x' data-src='//x.example.com'>", "[IMAGE]'>"),
    ('<img src="https://example.com x@evil.com/">', '[IMAGE]">'),
]
AS_MARKDOWN_READS = [
    (r"![a](https\://evil.com/p?d=secret)", "[IMAGE])"),
    (r"![a](https://example.com\.evil.com/p)", "[IMAGE])"),
    (r"[a](https://example.com\@evil.com/x)", "[a](https://[URL])"),
    ("[a](https://example.com&#46;evil.com/x)", "[a](https://[URL])"),
    ("[a](https://example.com&#44;&#64;evil.com/x)", "[a](https://[URL])"),
    ("[a](https://example.com&period;evil.com)", "[a](https://[URL])"),
    ("![a](&#104;ttps://evil.com/p?d=secret)", "![a](&[URL])"),
    ("[a](https&colon;//evil.com) [a](&#x2f;/evil.com)", "[a](https&[URL]) [a](&[URL])"),
    ("![a][b]\n\n[b]: //evil.com/p?d=secret", "![a][b]\n\n[b]: //[URL]"),
    ("[a](\n //evil.com/x)", "[a](\n //[URL])"),
    ("![a\nb](         //evil.com/x)", "![a\nb](         //[URL])"),
    ("<img src='&#104;ttps://evil.com/x'>", "[IMAGE]'>"),
]
PASSING = [
    "https://example.com/a and https://www.example.com.",
    "a//b http: x :// ://",
    "![a](https://example.com/p.png)",
    "a@b.c",
    "https://",
    "(https://example.com), [a](https://example.com); `https://example.com` |https://example.com|",
    "https://example.com,https://www.example.com 'https://example.com'",
    r'{"a": "https:\/\/example.com\nb.c.d"}',
    "x=&#39;https://example.com&#39; [a](b&amp;c)",
    r"[0-9](\\d+) [0-9](\.[0-9]+) vec![1, 2](x) file:///etc/x",
    "case [x]: //done",
    "<img src='//example.com' data-src='//x.example.com'>",
    "![a](<https://example.com/a b>)",
]


@pytest.mark.parametrize(("text", "masked"), [*REFUSED, *AS_BROWSERS_READ, *AS_MARKDOWN_READS])
def test_what_may_not_be_named_goes_however_it_is_cut(text: str, masked: str) -> None:
    assert check(text).texts == (masked,)
    for cut in range(len(text) + 1):
        assert streamed(text[:cut], text[cut:]) == masked
    assert streamed(*text) == masked


@pytest.mark.parametrize("text", PASSING)
def test_what_may_be_named_passes(text: str) -> None:
    assert check(text) is ALLOW and streamed(*text) == text


def test_a_list_of_what_may_not_be_named() -> None:
    assert check("https://other.org/x", ANY) is ALLOW
    assert check("https://a.evil.com", ANY).action == "rewrite"
    assert check("https://notevil.com", ANY) is ALLOW
    assert check("![a](https://other.org/x)", ANY).texts == ("[IMAGE])",), "a client loads it by itself"
    for text in ("https://evil&period;com", r"https://evil\.com/", "https://x,.evil.com", "https://other.org,@evil.com"):
        assert check(text, ANY).texts == ("https://[URL]",), text


@pytest.mark.parametrize("text", ["http://127.0.0.1/", "http://joe@example.com", "https://xn--e1awd7f.com", "![a](https://other.org/x)"])
def test_each_rule_can_be_switched_off(text: str) -> None:
    assert check(text, LOOSE) is ALLOW


def test_a_bound_on_the_length() -> None:
    block, mask, note = (made(max_length=10, action=action) for action in ("block", "mask", "annotate"))
    assert check("x" * 10, block) is ALLOW and check("x" * 11, block).action == "block"
    assert check("0123456789abc", mask).texts == ("0123456789",) and streamed("01234", "56789ab", "c", guardrail=mask) == "0123456789"
    verdict = check("0123456789abc", note)
    assert verdict.action == "annotate" and (verdict.findings[0].start, verdict.findings[0].end) == (10, 13)
    with pytest.raises(GuardrailViolation, match="longer"):
        streamed("01234", "567890", guardrail=block)
    both = made(max_length=40, urls={"deny": ["evil.com"]}, action="mask")
    assert check("https://evil.com/ " + "x" * 40, both).texts == ("https://[URL] " + "x" * 22,)


def test_ordinary_text_is_not_held() -> None:
    stream = LISTED.stream()
    assert stream is not None
    for token in ("The", " https", " prefix", " is", ": ", "http", "://"):
        assert stream.feed(token) == token
    assert stream.feed("evil.c") == "" and stream.feed("om/long") == "" and stream.feed("/path x") == "[URL] x"


MASKED = [*REFUSED, *AS_BROWSERS_READ, *AS_MARKDOWN_READS]
PARTS = ["https://", "![", "](", "//", "@", "evil.com", " ", "/", ".", "[", "é", "&#46;", "\\", "'", ",", "<", "http:"]
PIECES = [*(text for text, _ in MASKED), *PASSING, *PARTS]


@given(st.lists(st.sampled_from(PIECES), max_size=6).map("".join), st.data())
@settings(max_examples=100, deadline=None)
def test_the_output_does_not_depend_on_the_cuts(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    whole = streamed(text)
    assert streamed(*(text[low:high] for low, high in zip([0, *cuts], [*cuts, len(text)], strict=True))) == whole
    verdict = check(text)
    assert (verdict.texts[0] if verdict.action == "rewrite" else text) == whole


def apart(**fields: Any) -> EntityGuardrail:
    """The guardrail with a recogniser for each kind of lead."""
    made = recognisers(Hosts(msgspec.convert(fields, UrlSettings)))
    (both,) = [one for one in made if one.behind == _LEAD]
    place = made.index(both)
    made[place : place + 1] = [replace(both, behind=_SCHEMES), replace(both, behind=_LINKS)]
    return EntityGuardrail(Actions("g", Finder(made), dict.fromkeys(("image", "url"), "mask"), b"", (), "addresses"))


def places(verdict: Verdict) -> list[tuple[str, int, int, str]]:
    return [(one.entity, one.start, one.end, one.value) for one in verdict.findings]


APART = [
    (LISTED, apart(allow=["example.com", "*.example.com"])),
    (ANY, apart(deny=["evil.com", "*.evil.com"])),
    (LOOSE, apart(userinfo=True, international=True, numeric=True, images="any")),
]
CLOSE = st.sampled_from(
    [*PIECES, "](//x ", "](https://x ", "](  <//x", "](\\/\\/x", "](//x/y](//z", "](http:](//q ", "![](//a)", "javascript:", "x" * 30]
)


@given(st.lists(CLOSE, max_size=40).map("".join), st.integers(0, 8))
@settings(max_examples=200, deadline=None)
def test_one_recogniser_for_both_leads_finds_what_two_would(text: str, copies: int) -> None:
    text += text[:60] * copies
    for guardrail, other in APART:
        found, expected = check(text, guardrail), check(text, other)
        assert (found.action, found.texts, places(found)) == (expected.action, expected.texts, places(expected))
        assert streamed(*text, guardrail=guardrail) == (found.texts[0] if found.texts else text), "one by one nothing is read ahead"


class CountedLead:
    """A lead that counts how often it is looked for."""

    def __init__(self, lead: Any) -> None:
        self._lead, self.count = lead, 0

    def Match(self, *arguments: Any) -> Any:
        self.count += 1
        return self._lead.Match(*arguments)


@pytest.mark.parametrize("unit", ["](//x ", "](//evil.com/x?y ", "see https://evil.com/x?y "])
def test_addresses_in_a_row_are_not_looked_for_again_behind_each(unit: str) -> None:
    """Behind each of them 48 characters were searched, with eight of the next ones in them."""
    guardrail = made(urls={"deny": ["x", "evil.com"]}, action="mask")
    behind: Any = guardrail._inner._actions.finder._behind  # type: ignore[attr-defined]
    for one in behind:
        one.lead = CountedLead(one.lead)
    assert check(unit * 200, guardrail).texts == (unit.replace(unit[unit.index("//") + 2 :].rstrip(), "[URL]") * 200,)
    assert max(one.lead.count for one in behind) <= 4 * 200


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "it has no rule; set max_length or urls"),
        ({"urls": {"allow": ["https://example.com"]}}, "allow"),
        ({"urls": {"allow": ["EXAMPLE.com"]}}, "allow"),
        ({"max_length": 0}, "max_length"),
        ({"urls": {"images": "none"}}, "images"),
    ],
)
def test_settings_that_it_refuses(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        made(**fields)
