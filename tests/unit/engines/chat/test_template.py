"""Templates render in a sandbox; messages are checked before."""

from typing import Any

import pytest

from engines.chat.template import ChatTemplate, normalise
from engines.sidecar.shell import ApiError

USER = [{"role": "user", "content": "hi"}]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos="<s>", eos="</s>")


def refused(action: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        action()
    assert caught.value.status == 400
    return caught.value


def test_a_template_gets_what_templates_expect() -> None:
    source = "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}>{% endif %}{{ tools | tojson }}{{ flag }}"  # noqa: E501
    text = template(source).render(USER, tools=[{"a": "<é>"}], extra={"flag": 1, "messages": "cannot be replaced"})
    assert text == '<s>user:hi</s>>[{"a": "<é>"}]1'


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}", "{{ undefined.attribute }}", "{{ 1 / 0 }}", "{% for", "{{ ''.__class__.__mro__ }}",
        "{{ messages.clear() }}", "{% for i in range(10**9) %}x{% endfor %}", "{{ 'x' * (2 * 10**7) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)  # fmt: skip
def test_templates_that_fail_or_reach_out_fail_their_request_only(source: str) -> None:
    assert refused(lambda: template(source).render(USER)).code in ("chat_template_failed", "context_length_exceeded")


@pytest.mark.parametrize(
    "source",
    [
        "{% set r = range(100000) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        "{% set r = range(100000) %}{% for a in r %}{% for b in r if false %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ ([range(100000)] * 60000) | map('sum') | sum }}",
    ],
)  # fmt: skip
def test_a_template_that_takes_too_long_fails_its_request_and_says_so(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.chat.template.PROBE_SECONDS", 0.01)
    error = refused(lambda: template(source)._render(USER, None, seconds=0.05))
    assert error.code == "chat_template_failed"
    assert str(error) == "the model's chat template takes more than 0.05 s of processor time for these messages"


def test_what_repeats_and_powers_make_is_bounded_and_there_is_no_text_by_chance() -> None:
    for source in ("{{ 'x' * n }}", "{{ n * [1] }}", "{{ n ** n }}", "{{ lipsum(1) }}"):
        assert refused(lambda source=source: template(source).render(USER, extra={"n": 10**9})).code == "chat_template_failed"  # type: ignore[misc]
    assert template("{{ 'ab' * 2 }}{{ 2 ** 3 }}{{ 2.5 * 2 }}{{ [1] * 2 }}").render(USER) == "abab85.0[1, 1]"


def test_messages_as_templates_expect_them() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = normalise(
        [
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": "r", "tool_call_id": "c"},
        ]
    )
    assert messages[0] == {"role": "system", "content": "a\nb"}
    assert messages[1]["content"] == "" and messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert messages[2] == {"role": "tool", "content": "r", "tool_call_id": "c"}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "x"}, "messages[0].role"), ({"role": "function", "content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"), ({"role": {}, "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"), ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[0].content[0].text"),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
         "messages[0].tool_calls[0].function.arguments"),
        ({"role": "tool", "content": "x", "tool_call_id": 3}, "messages[0].tool_call_id"),
    ],
)  # fmt: skip
def test_messages_are_checked_and_the_place_is_named(message: dict[str, Any], param: str) -> None:
    assert refused(lambda: normalise([message])).param == param


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "content": "x", "function_call": {"name": "f", "arguments": "{}"}}, "messages[0].function_call"),
        ({"role": "user", "content": "x", "weight": 0}, "messages[0].weight"),
        ({"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
         "messages[0].content[0].cache_control"),
    ],
)  # fmt: skip
def test_a_field_of_a_message_that_no_one_reads_is_named(message: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        normalise([message])
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", param)


def test_what_clients_send_back_of_an_answer_is_taken_and_so_is_what_the_template_names() -> None:
    answer = {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None, "reasoning_content": "r", "name": "n"}
    assert normalise([answer])[0]["content"] == "x"
    assert normalise([{"role": "user", "content": "x", "prefix": True}], "{% if message.prefix %}")[0]["prefix"] is True


def test_templates_written_for_training_and_those_that_collect_lists_render() -> None:
    source = "{% set l = [] %}{% for m in messages %}{{ l.append(m.content) or '' }}{% endfor %}{% generation %}{{ l | join }}{% endgeneration %}"  # noqa: E501
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert template(source).render(messages) == "ab"
    template("{{ messages.append(1) or '' }}").render(messages)
    assert len(messages) == 2  # what a template adds, it alone sees
