"""The lists of fields, and what an error says of one that is in none."""

from __future__ import annotations

import pytest

from engines.chat import params
from gateway.core.errors import RequestError
from gateway.wire.openai.fields import KNOWN, MEDIA, MESSAGE, NEVER, PART, forbidden, refused, wrong_case


def test_names_are_lower_case_and_never_both_known_and_forbidden() -> None:
    for known in (*KNOWN.values(), MESSAGE, PART, *MEDIA.values()):
        assert known == {name.casefold() for name in known}
        assert not known & NEVER


@pytest.mark.parametrize(
    ("operation", "view"),
    [("chat", params.ChatRequest), ("completions", params.CompletionRequest), ("embeddings", params.EmbeddingRequest)],
)
def test_every_parameter_of_our_own_engines_is_known(operation: str, view: type[params.Common]) -> None:
    assert set(view.__struct_fields__) <= KNOWN[operation]


def test_an_error_tells_the_client_what_is_right_and_nothing_of_the_operators_settings() -> None:
    error = refused("messages[0].contnt", MESSAGE)
    assert error.message == "messages[0].contnt: this field is not known here; did you mean 'content'?"
    assert refused("messages[0].xyzzy", MESSAGE).message == "messages[0].xyzzy: this field is not known here; leave it out."
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", "messages[0].contnt")
    assert "never reaches an engine" in refused("priority", KNOWN["chat"]).message
    assert "never reaches an engine" in refused("stream_interval", KNOWN["chat"]).message, "by which a stream that is cut would cost less"


def test_only_another_case_of_a_known_name_is_wrong() -> None:
    wrong_case("odd", MESSAGE, "messages[0].")
    wrong_case("Odd", MESSAGE, "messages[0].")
    with pytest.raises(RequestError) as caught:
        wrong_case("CONTENT", MESSAGE, "messages[0].")
    assert caught.value.param == "messages[0].CONTENT"


def test_forbidden_names_are_found_at_any_depth() -> None:
    assert forbidden({"a": [{"b": {"Bootstrap_Host": 1}}]}) == "Bootstrap_Host"
    assert forbidden({"a": [1, "priority"]}) is None
