"""Bodies and queries with errors that help, differences, masks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from admin import values
from admin.resource import patch_of
from admin.resources.keys import KeyCreation
from gateway.core.errors import RequestError
from gateway.core.specs import EngineSpec, LimitSpec, ModelSpec, UploadsSpec


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    burst: int = 1


class Thing(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    count: int = 0
    inner: Inner | None = None
    many: list[Inner] = []


class Query(msgspec.Struct, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=9)] = 1
    text: str | None = None
    kind: Literal["a", "b"] | None = None
    on: bool = False
    since: float | None = None


@pytest.mark.parametrize(
    ("body", "code", "param", "words"),
    [
        (b'{"nam": "x"}', "invalid_value", "nam", "the nearest is 'name'"),
        (b'{"name": "x", "zzzz": 1}', "invalid_value", "zzzz", "known here: count, inner, many, name"),
        (b'{"name": "x", "inner": {"brust": 1}}', "invalid_value", "inner.brust", "the nearest is 'burst'"),
        (b'{"name": "x", "inner": {"name": 1}}', "invalid_value", "inner.name", "There is no field 'name'; known here: burst."),
        (b'{"burst": 1}', "invalid_value", "burst", "known here: count, inner, many, name"),
        (b'{"name": "x", "many": [{}, {"burst": "1"}]}', "invalid_value", "many[1].burst", "Expected `int`"),
        (b"{}", "missing_required_parameter", "name", "'name' is missing"),
        (b'{"name": 1}', "invalid_value", "name", "Expected `str`"),
        (b'{"name": "x", "count": 1.5}', "invalid_value", "count", "Expected `int`"),
        (b"", "invalid_json", None, "not JSON"),
        (b'{"name": "\xff"}', "invalid_json", None, "not JSON"),
        (b'{"name":' + b"[" * 100_000, "invalid_json", None, ""),
    ],
)
def test_errors_name_the_field_and_what_would_be_right(body: bytes, code: str, param: str | None, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        values.decode(body, Thing)
    assert (caught.value.code, caught.value.param) == (code, param) and words in caught.value.message


@pytest.mark.parametrize(
    ("settings", "body", "param", "words"),
    [
        (LimitSpec, {"name": "l", "per": "tenants"}, "per", "the nearest is 'tenant'"),
        (LimitSpec, {"name": "l", "per": "xyz"}, "per", "one of agent, global, group, key, key_model,"),
        (LimitSpec, {"name": "a b", "requests": {"rate": 1}}, "name", "It must be 1 to 128 letters"),
        (LimitSpec, {"name": "l", "requests": {"rate": 1, "per": "soon"}}, "requests.per", "a duration such as 50ms"),
        (LimitSpec, {"name": "l", "requests": {"rate": "1s"}}, "requests.rate", "Expected `float`, got `str`"),
        (EngineSpec, {"name": "e", "runtime": "external", "timeouts": {"connect": "x"}}, "timeouts.connect", "a duration such as"),
        (EngineSpec, {"name": "e", "runtime": "v llm"}, "runtime", "It must be 1 to 128 letters"),
        (EngineSpec, {"name": "e", "runtime": "onnx", "lifecycle": {"pinned": 1}}, "lifecycle.pinned", "It must be true or false"),
        (ModelSpec, {"name": "m", "pool": ["a"], "routing": {"key": "usr"}}, "routing.key", "prefix, session, tenant, key or header:NAME"),
        (KeyCreation, {"tenant": "t", "operations": ["chatt"]}, "operations[0]", "the nearest is 'chat'"),
    ],
)  # fmt: skip
def test_errors_say_what_would_be_right(settings: type, body: dict[str, Any], param: str, words: str) -> None:
    for kind in (settings, patch_of(settings)):
        with pytest.raises(RequestError) as caught:
            values.decode(msgspec.json.encode(body), kind)
        assert caught.value.param == param and words in caught.value.message


def test_durations_and_sizes_may_be_written_as_in_the_configuration() -> None:
    limit = values.decode(b'{"name": "l", "requests": {"rate": 5, "per": "1m30s"}}', LimitSpec)
    assert limit.requests is not None and limit.requests.per == 90.0
    body = {"name": "m", "pool": ["a", {"engine": "b", "weight": 2}], "routing": {"queue": {"timeout": "500ms"}}}
    assert values.decode(msgspec.json.encode(body), ModelSpec).routing.queue.timeout == 0.5
    engine = values.decode(b'{"name": "e", "runtime": "onnx", "model": "m", "lifecycle": {"idle_ttl": "10m"}}', EngineSpec)
    assert engine.lifecycle.idle_ttl == 600.0
    assert values.decode(b'{"max_bytes": "8MiB"}', UploadsSpec).max_bytes == 8 * 1024 * 1024


def test_a_whole_number_may_have_a_point() -> None:
    assert values.decode(b'{"name": "x", "count": 3.0, "inner": {"burst": 2.0}}', Thing) == Thing("x", 3, Inner(2))


def test_an_unknown_field_of_any_length_is_shown_short() -> None:
    with pytest.raises(RequestError) as caught:
        values.decode(b'{"' + b"x" * 10_000 + b'": 1}', Thing)
    assert len(caught.value.message) < 200


def test_query_parameters_have_their_types() -> None:
    given_ = {"limit": "3", "text": "7", "kind": "a", "on": "true", "since": "1.5"}
    assert values.convert(given_, Query) == Query(3, "7", "a", True, 1.5)
    assert values.convert({"text": "null"}, Query).text == "null"
    for wrong in (
        {"limit": "0"},
        {"limit": "x"},
        {"limit": "1.5"},
        {"limit": "null"},
        {"kind": "null"},
        {"on": "1"},
        {"since": "NaN"},
        {"no": "1"},
    ):
        with pytest.raises(RequestError):
            values.convert(wrong, Query)


def test_secrets_are_masked_by_name() -> None:
    found = values.mask({"api_key": "k", "headers": {"x": "y"}, "inner": [{"password": "p", "tokens": "n"}], "secret": "", "name": "n"})
    assert found == {
        "api_key": "********",
        "headers": {"x": "********"},
        "inner": [{"password": "********", "tokens": "n"}],
        "secret": "",
        "name": "n",
    }


def test_a_mask_that_is_sent_back_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        values.refuse_masks({"settings": {"list": ["x", "********"]}})
    assert caught.value.param == "settings.list"


def test_differences_of_secrets_are_seen_but_not_shown() -> None:
    assert values.diff({"password": "a"}, {"password": "b"}) == [{"path": "password", "from": "********", "to": "********"}]
    assert values.diff(None, {"a": {"b": 1}}) == [{"path": "a", "from": None, "to": {"b": 1}}]
    assert values.diff({"a": (1, 2)}, {"a": [1, 2]}) == []


TREES: Any = st.dictionaries(
    st.sampled_from("abcd"),
    st.recursive(st.integers(0, 3) | st.text("xy", max_size=2), lambda inner: st.dictionaries(st.sampled_from("ab"), inner, min_size=1)),
)


@given(TREES, TREES)
def test_a_difference_is_empty_exactly_when_there_is_none(before: dict[str, Any], after: dict[str, Any]) -> None:
    found = values.diff(before, after)
    assert (not found) == (before == after)
    assert len({entry["path"] for entry in found}) == len(found)


def test_members_with_names_of_their_own_are_compared_by_name() -> None:
    before = {"engines": [{"name": "a", "slots": 1}, {"name": "b", "slots": 1}], "order": ["x", "y"]}
    after = {"engines": [{"name": "b", "slots": 2}, {"name": "a", "slots": 1}], "order": ["x", "y"]}
    assert values.diff(values.named(before), values.named(after)) == [{"path": "engines.b.slots", "from": 1, "to": 2}]
    same = {"a": [{"name": "x"}, {"name": "x"}], "b": [{"name": ""}], "c": [1], "d": []}
    assert values.named(same) == same
