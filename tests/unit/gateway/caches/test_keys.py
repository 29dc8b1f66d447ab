"""Keys of answers: what differs for an engine, or belongs to another isolation domain, has another key."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.caches.keys import KEY_BYTES, PIECE, key_of, key_steps
from gateway.core.errors import RequestError
from gateway.core.types import InferenceRequest, Principal
from gateway.wire.table import parse

PATH = b"/v1/chat/completions"
SECRET = b"s" * 32
BASE: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0}


def key(body: bytes | dict[str, Any] = BASE, *, tenant: str = "t", id: str = "k", sharing: Any = "tenant", version: bytes = b"1") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    return key_of(SECRET, Principal(id, tenant, "api_key"), sharing, version, parse(PATH, raw, {}))


def test_the_order_of_fields_and_the_space_between_tokens_do_not_count() -> None:
    other = b'{ "temperature":0,\n"messages": [{"role":"user",\t"content" :"Hello"} ] ,"model": "m"}'
    assert key(other) == key()
    assert len(key()) == KEY_BYTES


def test_a_large_request_has_its_key_in_slices() -> None:
    def asked(text: str, **more: Any) -> InferenceRequest:
        body: dict[str, Any] = {**BASE, "messages": [{"role": "user", "content": text}], **more}
        return parse(PATH, json.dumps(body).encode(), {})

    def steps(request: InferenceRequest) -> tuple[int, bytes]:
        count, running = 0, key_steps(SECRET, Principal("k", "t", "api_key"), "tenant", b"1", request)
        while True:
            try:
                next(running)
            except StopIteration as done:
                return count, done.value
            count += 1

    text = "words " * 500_000
    count, found = steps(asked(text))
    assert count >= 3_000_000 // PIECE
    assert found == steps(asked(text))[1] == key_of(SECRET, Principal("k", "t", "api_key"), "tenant", b"1", asked(text))
    others = [asked(text[:-1] + "!"), asked("!" + text[1:]), asked(text, seed=1), asked(text, a_field_of_tomorrow="x" * 100_000)]
    assert len({found, *(steps(other)[1] for other in others)}) == 5


@pytest.mark.parametrize(
    "change",
    [
        {"user": "somebody"},
        {"seed": 1},
        {"seed": 2},
        {"temperature": 0.5},
        {"stream": True},
        {"model": "n"},
        {"max_tokens": 5},
        {"n": 2},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"a_field_of_tomorrow": 1},
        {"messages": [{"role": "system", "content": "Hello"}]},
        {"messages": [{"role": "user", "content": "hello"}]},
        {"messages": [{"role": "user", "content": "Hello "}]},
        {"messages": [{"role": "user", "content": "Caf\u00e9"}]},
        {"messages": [{"role": "user", "content": "Cafe\u0301"}]},
    ],
    ids=str,
)
def test_everything_that_an_engine_could_read_counts(change: dict[str, Any]) -> None:
    others: list[dict[str, Any]] = [{}, {"seed": 3}, {"messages": [{"role": "user", "content": "Cafe"}]}]
    assert all(key({**BASE, **change}) != key({**BASE, **other}) for other in others)


def test_two_normal_forms_of_one_text_are_two_requests() -> None:
    composed, decomposed = ({**BASE, "messages": [{"role": "user", "content": text}]} for text in ("Caf\u00e9", "Cafe\u0301"))
    assert key(composed) != key(decomposed)


def test_numbers_beyond_64_bits_stay_apart() -> None:
    assert key({**BASE, "a_field_of_tomorrow": 2**70}) != key({**BASE, "a_field_of_tomorrow": 2**70 + 1})


def test_a_body_in_which_a_key_appears_twice_has_no_key() -> None:
    with pytest.raises(RequestError):
        key(b'{"model": "m", "messages": [{"role": "user", "content": "Hello"}], "seed": 1, "seed": 2}')


def test_version_and_secret_count() -> None:
    assert key(version=b"2") != key()
    request = parse(PATH, json.dumps(BASE).encode(), {})
    assert key_of(b"another", Principal("k", "t", "api_key"), "tenant", b"1", request) != key()


def test_labels_count_because_they_choose_the_engine() -> None:
    request = parse(PATH, json.dumps(BASE).encode(), {})
    before = key_of(SECRET, Principal("k", "t", "api_key"), "tenant", b"1", request)
    request.labels = frozenset({"secret"})
    assert key_of(SECRET, Principal("k", "t", "api_key"), "tenant", b"1", request) != before


NAMES = st.text(st.characters(codec="utf-8"), max_size=12)


@given(one=NAMES, other=NAMES, id=NAMES, sharing=st.sampled_from(["key", "tenant", "global"]))
def test_no_two_tenants_have_a_key_in_common(one: str, other: str, id: str, sharing: str) -> None:
    same = key(tenant=one, id=id, sharing=sharing) == key(tenant=other, id=id, sharing=sharing)
    assert same == (one == other)


@given(one=NAMES, other=NAMES)
def test_callers_share_within_a_tenant_unless_each_is_a_domain_of_its_own(one: str, other: str) -> None:
    assert key(id=one) == key(id=other)
    assert (key(id=one, sharing="key") == key(id=other, sharing="key")) == (one == other)
