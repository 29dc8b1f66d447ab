"""Routing keys: the same for all turns of a conversation, different for different ones, cheap and tolerant."""

from __future__ import annotations

from types import SimpleNamespace as View
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from gateway.core.types import InferenceRequest, Principal
from gateway.core.wire import WireApi
from gateway.routing.keys import KEPT, MESSAGES, PREFIX, Prefix, digest, key_function
from gateway.wire.openai import api as openai

APIS: dict[str, WireApi] = {
    "messages": openai.ChatApi(),
    "prompt": openai.CompletionsApi(),
    "query": openai.RerankApi(),
    "input": next(api for api in openai.APIS if api.operation == "embeddings"),
}
CALLER = Principal("ci", "acme", "api_key")
prefix, session, tenant, caller, header = (key_function(key) for key in ("prefix", "session", "tenant", "key", "header:x-conversation"))


def request(view: Any, raw: bytes = b"", **fields: bytes) -> InferenceRequest:
    api = next((api for name, api in APIS.items() if hasattr(view, name)), WireApi("other"))
    return InferenceRequest(api, b"/", "m", {name: Raw(value) for name, value in fields.items()}, view, raw=raw)


def turns(*contents: Any, system: str | None = "Be brief.", user: str | None = None) -> InferenceRequest:
    """A conversation: user, assistant, user, ..."""
    messages = [View(role=("user", "assistant")[number % 2], content=content) for number, content in enumerate(contents)]
    return request(View(messages=([View(role="system", content=system)] if system else []) + messages, user=user))


def key(of: InferenceRequest, function: Any = prefix, given_session: bytes | None = None) -> int:
    return int(function(of, CALLER, given_session))


def test_all_turns_of_a_conversation_meet():
    assert len({key(turns("Hi", "Hello!", "And then?", "Well.", "Thanks")), key(turns("Hi", "Hello!", "Other")), key(turns("Hi"))}) == 1


def test_other_conversations_and_other_system_prompts_do_not():
    assert len({key(turns("Hi")), key(turns("Ho")), key(turns("Hi", system="Be long.")), key(turns("Hi", system=None))}) == 4


def test_parts_count_as_their_texts():
    parts = [View(type="text", text="Hi"), View(type="image_url", image_url=View(url="x"))]
    assert key(turns(parts)) == key(turns([View(text="Hi"), View(text=None)]))


def test_no_more_than_the_prefix_is_read():
    long = "x" * PREFIX
    assert key(turns(long + "a")) == key(turns(long + "b"))
    assert key(turns("q", system=long + "a")) == key(turns("q", system=long + "b"))


def test_a_long_system_prompt_does_not_hide_the_users_message():
    long = "x" * 100_000
    assert key(turns("q", system=long)) != key(turns("other", system=long))


def test_many_messages_before_the_first_user_message_cost_no_more():
    many = [View(role="system", content=f"rule {number}") for number in range(1000)]
    one, other = ([*many, View(role="user", content=text)] for text in ("q", "other"))
    assert key(request(View(messages=one))) == key(request(View(messages=other)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (View(prompt="once upon"), View(prompt="once more")),
        (View(prompt=["a", "b"]), View(prompt=["a", "c"])),
        (View(prompt=[1, 2, 3]), View(prompt=[1, 2, 4])),
        (View(prompt=[[1, 2]]), View(prompt=[[1, 3]])),
        (View(input="one"), View(input="two")),
        (View(query="one", documents=["d"]), View(query="two", documents=["d"])),
    ],
)
def test_other_operations_have_keys_too(one: Any, other: Any):
    assert key(request(one)) == key(request(one))
    assert key(request(one)) != key(request(other))


def test_without_any_text_the_body_is_the_key():
    assert key(request(None, b"tensor-1")) != key(request(None, b"tensor-2"))
    assert key(request(None, inputs=b"[1]")) == key(request(None, inputs=b"[1]")) != key(request(None, inputs=b"[2]"))


def test_session_prefers_the_header_then_the_user_then_the_prefix():
    assert key(turns("Hi", user="ann"), session, b"s-1") == digest(b"s-1")
    assert key(turns("Hi", user="ann"), session) == key(turns("Ho", user="ann"), session) == digest(b"ann")
    assert key(turns("Hi"), session) == key(turns("Hi"))


def test_a_header_falls_back_to_the_prefix():
    assert key(turns("Hi"), header, b"c-1") == key(turns("Ho"), header, b"c-1") == digest(b"c-1")
    assert key(turns("Hi"), header) == key(turns("Hi"))


def test_tenant_and_caller():
    assert key(turns("Hi"), tenant) == key(turns("Ho"), tenant)
    other = Principal("cd", "acme", "api_key")
    assert tenant(turns("Hi"), other, None) == key(turns("Hi"), tenant)
    assert caller(turns("Hi"), other, None) != key(turns("Hi"), caller)


def test_the_same_in_every_process():
    assert digest(b"gatehouse") == 13856631241828708075
    assert key(turns("Hi", "Hello!")) == digest(b"system\0Be brief.\0user\0Hi")
    assert key(turns(None, "Hello!", system="Be")) == digest(b"system\0Be\0user\0")
    only = [View(role="system", content=str(number)) for number in range(MESSAGES + 1)]
    assert key(request(View(messages=only))) == digest(b"\0".join(b"system\0%d" % number for number in range(MESSAGES)))


def test_kept_hash_states_change_no_key_and_are_bounded():
    prefix = Prefix()
    requests = [turns("Hi", system=f"You are number {number % (2 * KEPT)}.") for number in range(5 * KEPT)]
    for _ in range(2):
        keys = [prefix.key(request, CALLER, None) for request in requests]
        assert keys == [Prefix().key(request, CALLER, None) for request in requests]
        assert len(prefix._states) == KEPT


def test_an_unknown_key_is_an_error():
    with pytest.raises(ValueError, match="moon"):
        key_function("moon")


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_has_a_key(system: str, user: str):
    assert 0 <= key(turns(user, system=system)) < 2**64
    assert key(turns("\ud800" + user)) >= 0


def test_domains_have_no_prefix_in_common():
    shared, apart, alone = (key_function("prefix", sharing) for sharing in ("global", "tenant", "key"))
    rival, colleague = Principal("ci", "rival", "api_key"), Principal("other", "acme", "api_key")
    for asked in (turns("Hi"), request(View(prompt="Hi"))):
        assert shared(asked, CALLER, None) == shared(asked, rival, None)
        assert apart(asked, CALLER, None) != apart(asked, rival, None)
        assert apart(asked, CALLER, None) == apart(asked, colleague, None)
        assert alone(asked, CALLER, None) != alone(asked, colleague, None)
