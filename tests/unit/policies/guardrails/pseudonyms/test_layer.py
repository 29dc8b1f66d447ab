"""Requests get pseudonyms and answers get the values back, whatever else looks like one."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import ConfigError, GuardrailViolation
from gateway.core.plugins import Context, built
from gateway.core.slices import at_once
from gateway.core.types import Principal, Verdict
from policies.guardrails.pii.guardrail import PiiSettings
from policies.guardrails.pii.guardrail import build as build_pii
from policies.guardrails.pseudonyms import vault
from policies.guardrails.pseudonyms.guardrail import PseudonymGuardrail
from policies.guardrails.pseudonyms.layer import MOST_RESERVED, MOST_RESTORED, PseudonymLayer
from policies.guardrails.pseudonyms.restoring import WINDOW
from policies.guardrails.secrets.guardrail import SecretsSettings
from policies.guardrails.secrets.guardrail import build as build_secrets
from tests.steady import at_most, longest_step, uncollected

KEY = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj\n" * 40 + "-----END PRIVATE KEY-----\n"
ALICE = Principal("alice", "acme", "oidc", session="s1")


def secret(name: str) -> bytes:
    return name.encode().ljust(32, b"s")


def guardrail(**pseudonyms: Any) -> PseudonymGuardrail:
    fields = {
        "entities": {"email": "pseudonym", "card": "pseudonym", "phone": "mask", "iban": "block", "odd": "pseudonym"},
        "custom": {"odd": {"pattern": r'ODD["\\]{1,20}\d{3}'}},
        "pseudonyms": pseudonyms,
    }
    made = built(build_pii, PiiSettings, fields, Context(name="the-name"))
    assert isinstance(made, PseudonymGuardrail)
    return made


def sent(layer: PseudonymLayer, *texts: str) -> list[str]:
    """What the engine gets."""
    found = layer.check(texts)
    verdict = found if isinstance(found, Verdict) else at_once(found)
    return list(verdict.texts) if verdict.action == "rewrite" else list(texts)


def layer(made: PseudonymGuardrail | None = None, caller: Principal = ALICE, now: float = 0.0) -> PseudonymLayer:
    return (made or guardrail()).layer(caller, secret, now)


def test_a_value_has_one_pseudonym_in_all_texts_of_a_request() -> None:
    one = layer()
    assert sent(one, "bob@example.com and eve@example.com", "card 4111 1111 1111 1111, Bob@Example.com, 4111111111111111") == [
        "<EMAIL_1> and <EMAIL_2>",
        "card <CARD_1>, <EMAIL_1>, <CARD_1>",
    ]
    assert one.whole("Ask <EMAIL_2>, not <EMAIL_1>; <CARD_1>") == "Ask eve@example.com, not bob@example.com; 4111 1111 1111 1111"
    assert (one.replaced, one.restored, one.active) == (3, 3, True)


def test_other_actions_are_as_ever() -> None:
    one = layer()
    assert sent(one, "call +1 415 555 2671 or bob@example.com") == ["call [PHONE] or <EMAIL_1>"]
    found = layer().check(["DE89 3704 0044 0532 0130 00"])
    assert (found if isinstance(found, Verdict) else at_once(found)).action == "block"


def test_the_next_request_begins_anew() -> None:
    made = guardrail()
    assert sent(layer(made), "bob@example.com") == sent(layer(made), "eve@example.com") == ["<EMAIL_1>"]
    assert layer(made).whole("<EMAIL_1>") == "<EMAIL_1>" and not layer(made).active


def test_in_answers_what_would_get_a_pseudonym_is_masked() -> None:
    found = guardrail().check(["bob@example.com"])
    assert (found if isinstance(found, Verdict) else at_once(found)).texts == ("[EMAIL]",)


def test_text_that_looks_like_a_pseudonym_is_not_taken_for_one() -> None:
    one = layer()
    assert sent(one, "<EMAIL_1> and <EMAIL_3> are literal; bob@example.com, eve@example.com") == [
        "<EMAIL_1> and <EMAIL_3> are literal; <EMAIL_2>, <EMAIL_4>"
    ]
    assert one.whole("<EMAIL_1> <EMAIL_2> <EMAIL_3> <EMAIL_4>") == "<EMAIL_1> bob@example.com <EMAIL_3> eve@example.com"


def test_a_literal_in_a_later_text_counts_for_the_first() -> None:
    one = layer()
    assert sent(one, "bob@example.com", "say <EMAIL_1>") == ["<EMAIL_2>", "say <EMAIL_1>"]


class TestSessions:
    def test_a_session_remembers(self) -> None:
        made = guardrail(scope="session")
        [first] = sent(layer(made), "bob@example.com")
        assert re.fullmatch(r"<EMAIL_\d{1,6}>", first)
        again = layer(made, now=60.0)
        assert sent(again, "eve@example.com, bob@example.com")[0].endswith(first)
        later = layer(made)
        assert sent(later, "who was it?") == ["who was it?"]
        assert later.active and later.whole(f"It was {first}.") == "It was bob@example.com."

    def test_literals_do_not_read_the_session(self) -> None:
        made = guardrail(scope="session")
        [first] = sent(layer(made), "bob@example.com")
        attack = layer(made)
        [renamed] = sent(attack, f"a<b repeat {first}")
        assert first not in renamed
        assert attack.whole(renamed) == f"a<b repeat {first}"
        [twice] = sent(layer(made), f"repeat {first} to bob@example.com")
        assert first in twice and layer(made).whole(twice) == f"repeat {first} to bob@example.com"

    @pytest.mark.parametrize(
        "other",
        [
            Principal("alice", "other", "oidc", session="s1"),
            Principal("bob", "acme", "oidc", session="s1"),
            Principal("alice", "acme", "api_key", session="s1"),
            Principal("alice", "acme", "oidc", session="s2"),
            Principal("alice", "acme", "oidc"),
        ],
    )
    def test_nobody_else_reads_it(self, other: Principal) -> None:
        made = guardrail(scope="session")
        [first] = sent(layer(made), "bob@example.com")
        theirs = layer(made, other)
        assert theirs.whole(first) == first
        assert first not in sent(theirs, "bob@example.com")[0]

    def test_another_worker_gives_the_same_pseudonyms(self) -> None:
        here, there = guardrail(scope="session"), guardrail(scope="session")
        texts = [f"user{number}@example.com" for number in range(40)]
        assert sent(layer(here), *texts) == sent(layer(there), *reversed(texts))[::-1]

    def test_a_request_keeps_its_values_when_the_session_is_dropped(self) -> None:
        made = guardrail(scope="session", values=2, sessions=1)
        one = layer(made)
        passed = sent(one, " ".join(f"user{number}@example.com" for number in range(9)))[0]
        layer(made, Principal("eve", "acme", "oidc", session="s"))
        assert "EMAIL" not in one.whole(passed)

    async def test_nothing_is_left_when_it_is_closed(self) -> None:
        made = guardrail(scope="session", ttl=60.0)
        [first] = sent(layer(made), "bob@example.com")
        made.sweep(59.0)
        assert len(made.vault) == 1
        made.sweep(61.0)
        assert len(made.vault) == 0 and layer(made, now=62.0).whole(first) == first
        sent(layer(made, now=62.0), "bob@example.com")
        await made.aclose()
        assert len(made.vault) == 0


@pytest.mark.parametrize("scope", ["request", "session"])
def test_values_are_escaped_where_json_needs_it(scope: str) -> None:
    value = 'ODD"\\"123'
    one = layer(guardrail(scope=scope))
    text = json.dumps({"a": value, "inner": json.dumps({"b": value})})
    [passed] = sent(one, text)
    found = json.loads(passed)
    assert found["a"] == json.loads(found["inner"])["b"] and found["a"].startswith("<ODD_")
    answer = json.dumps({"x": json.dumps({"y": found["a"]}), "z": found["a"]})
    restored = json.loads(one.whole(answer))
    assert restored["z"] == json.loads(restored["x"])["y"] == value
    assert one.whole(f"it is {found['a']}") == f"it is {value}"


@pytest.mark.parametrize("scope", ["request", "session"])
def test_values_in_an_answer_are_hidden_again(scope: str) -> None:
    value = 'ODD"123'
    one = layer(guardrail(scope=scope))
    [mail, odd] = sent(one, "bob@example.com", value)
    answer = [f"To bob@example.com, Xbob@example.com and eve@example.com: {value}", json.dumps({"x": json.dumps({"y": value})}), "none"]
    there = at_once(one.hiding(answer))
    assert there[0] == f"To {mail}, Xbob@example.com and eve@example.com: {odd}" and there[2] == "none", "whole words, known values"
    assert json.loads(json.loads(there[1])["x"]) == {"y": odd}
    assert [one.whole(text) for text in there] == answer
    assert at_once(layer(guardrail(scope=scope)).hiding(answer)) == answer


def test_of_values_that_overlap_the_leftmost_and_longest_is_hidden() -> None:
    one = layer()
    short, long, other = sent(one, "b@example.com", "b@example.com.au", "x.b@example.com")
    texts = ["x.b@example.com.au b@example.com, b@example.com.au b@example.community", "x" * WINDOW + " b@example.com " * 3000]
    assert at_once(one.hiding(texts)) == [
        f"{other}.au {short}, {long} b@example.community",
        "x" * WINDOW + f" {short} " * 3000,
    ]


def test_thousands_of_values_are_hidden_in_short_steps() -> None:
    one = layer()
    mails = [f"user{number}@example.com" for number in range(4000)]
    [passed] = sent(one, " ".join(mails))
    text = " ".join(mails)
    assert at_once(one.hiding([text])) == [passed]
    at_most(0.02, lambda: longest_step(one.hiding([text])))


def test_numbers_become_strings_so_that_arguments_stay_readable() -> None:
    one = layer()
    [passed] = sent(one, '{"card": 4111111111111111}')
    assert json.loads(passed) == {"card": "<CARD_1>"}
    assert json.loads(one.whole(passed)) == {"card": "4111111111111111"}


def test_a_private_key_that_is_too_long_to_keep_is_masked() -> None:
    long = KEY.replace("MIIEvQ", "MIIEvQ" + "A" * 100_000, 1)
    made = built(build_secrets, SecretsSettings, {"action": "pseudonym"}, Context(name="s"))
    assert isinstance(made, PseudonymGuardrail)
    one = layer(made)
    assert sent(one, f"this: {long} and {KEY}") == ["this: [PRIVATE_KEY]\n and <PRIVATE_KEY_1>\n"]


def test_a_private_key_comes_back_whole() -> None:
    made = built(build_secrets, SecretsSettings, {"action": "pseudonym"}, Context(name="s"))
    assert isinstance(made, PseudonymGuardrail)
    one = made.layer(ALICE, secret, 0.0)
    [passed] = sent(one, f"key:\n{KEY}end")
    assert "MII" not in passed and passed.count("<PRIVATE_KEY_1>") == 1
    assert one.whole(passed) == f"key:\n{KEY}end"
    assert json.loads(one.whole(json.dumps({"k": "<PRIVATE_KEY_1>"})))["k"].startswith("-----BEGIN")


def test_passwords_that_differ_in_case_are_two() -> None:
    made = built(build_secrets, SecretsSettings, {"action": "pseudonym"}, Context(name="s"))
    assert isinstance(made, PseudonymGuardrail)
    one = made.layer(ALICE, secret, 0.0)
    text = "password=Xk9#mQ2vLp7z password=xK9#mQ2vLp7z"
    [passed] = sent(one, text)
    assert "_1>" in passed and "_2>" in passed and one.whole(passed) == text


def test_a_layer_over_another_unwinds() -> None:
    below, above = layer(), layer()
    text = "<EMAIL_1> bob@example.com"
    passed = sent(above, *sent(below, text))
    assert below.whole(above.whole(passed[0])) == text


def test_pseudonyms_that_are_not_restored() -> None:
    one = layer(guardrail(restore="never"))
    assert sent(one, "bob@example.com") == ["<EMAIL_1>"] and not one.active


@pytest.mark.parametrize("scope", ["request", "session"])
def test_more_texts_in_the_form_of_pseudonyms_than_anybody_writes_are_refused(scope: str) -> None:
    made = guardrail(scope=scope)
    many = " ".join(f"<EMAIL_{number}>" for number in range(1, MOST_RESERVED + 1))
    one = layer(made)
    assert one.whole(sent(one, f"bob@example.com {many}")[0]) == f"bob@example.com {many}"
    steps = layer(made).check([f"bob@example.com {many} <EMAIL_{MOST_RESERVED + 1}>"])
    verdict = steps if isinstance(steps, Verdict) else at_once(steps)
    assert verdict.action == "block" and "in the form of a pseudonym" in verdict.reason


def test_a_session_without_a_free_number_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vault, "HIGHEST", 3)
    one = layer(guardrail(scope="session"))
    found = one.check(["a@example.com b@example.com c@example.com d@example.com"])
    verdict = found if isinstance(found, Verdict) else at_once(found)
    assert verdict.action == "block" and "more values than a session has pseudonyms" in verdict.reason


@pytest.mark.parametrize("text", ["<EMAIL_1>" * 400_000, "<" * 2_000_000, "<EMAIL_" * 300_000, "a <EMAIL_12> b" * 100_000])
def test_no_step_of_a_long_text_is_long(text: str) -> None:
    def longest() -> float:
        """Of what the longest step may take."""
        steps, took = layer().check([text]), list[float]()
        assert not isinstance(steps, Verdict)
        done = False
        with uncollected():
            while not done:
                began = time.thread_time()
                done = next(steps, "done") is not None
                took.append(time.thread_time() - began)
        return max(took) / max(0.06, 0.1 * sum(took))

    at_most(1.0, longest)


def test_an_answer_does_not_grow_without_end() -> None:
    made = built(build_secrets, SecretsSettings, {"action": "pseudonym"}, Context(name="keys"))
    assert isinstance(made, PseudonymGuardrail)
    one = made.layer(ALICE, secret, 0.0)
    long = KEY.replace("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj\n" * 40, "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj\n" * 1000)
    [label] = [text.strip() for text in sent(one, long)]
    size = len(one.whole(label))
    assert size > 40_000
    stream = one.stream()
    for _ in range(MOST_RESTORED // size - 1):
        stream.feed(label)
    with pytest.raises(GuardrailViolation, match="more text than may be put back"):
        stream.feed(label * 2)


VALUES = ["bob@example.com", "eve@example.org", "4111 1111 1111 1111", 'ODD"123', "ODD\\\\123", "text"]
LITERALS = ["<EMAIL_1>", "<EMAIL_2>", "<CARD_1>", "<", ">", '"', "\\", "{", " ", "é", "\n", '{"a": "', '"}', "\u200b"]
PIECES = [*(f" {value} " for value in VALUES), *LITERALS]


def stripped(text: str) -> str:
    """Without invisible characters, the quotes that numbers in JSON get, and what is escaped where JSON is broken."""
    return text.replace("\u200b", "").replace('"', "").replace("\\", "")


@given(
    st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), min_size=1, max_size=3), st.sampled_from(["request", "session"])
)
@settings(max_examples=200, deadline=None)
def test_an_echo_gives_back_what_was_sent(texts: list[str], scope: str) -> None:
    made = guardrail(scope=scope)
    sent(layer(made), "bob@example.com 4111 1111 1111 1111")
    one = layer(made)
    passed = sent(one, *texts)
    for text, there in zip(texts, passed, strict=True):
        assert "bob@example.com" not in there
        assert stripped(one.whole(there)) == stripped(text)
        stream = one.stream()
        assert "".join(map(stream.feed, there)) + stream.finish() == one.whole(there)


@pytest.mark.parametrize("fields", [{"scope": "tenant"}, {"ttl": 0}, {"bytes": 1}, {"sessions": 0}, {"extra": 1}])
def test_settings_that_it_refuses(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        guardrail(**fields)
