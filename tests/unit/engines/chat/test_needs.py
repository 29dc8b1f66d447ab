"""Templates that want something other than most get it."""

from typing import Any

from engines.chat.needs import Needs
from engines.chat.template import ChatTemplate

CALLS = [{"id": f"id{n}", "type": "function", "function": {"name": "f", "arguments": {"a": n}}} for n in (1, 2)]
ROUND: list[dict[str, Any]] = [
    {"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "id2", "content": "R2"}, {"role": "tool", "tool_call_id": "id1", "content": "R1"},
]  # fmt: skip
USUAL = "{% for m in messages %}{{ m.role }}={{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.arguments | tojson }}>{% endfor %};{% endfor %}"  # noqa: E501


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos="", eos="")


def test_most_need_nothing() -> None:
    usual = template(USUAL)
    assert usual.needs == Needs()
    assert usual.render(ROUND) == 'system=S;user=U;assistant=<{"a": 1}><{"a": 2}>;tool=R2;tool=R1;'


def test_no_tools_may_be_an_empty_list() -> None:
    wanted = template("{% for t in tools %}{{ t }}{% endfor %}" + USUAL)
    assert wanted.needs.no_tools and wanted.render(ROUND[:2]) == "system=S;user=U;"


def test_a_system_message_goes_to_the_user_where_the_template_knows_none() -> None:
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    assert template(refuses + USUAL).render(ROUND[:2]) == "user=S\n\nU;"


def test_one_call_a_message() -> None:
    refuses = "{% for m in messages %}{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one') }}{% endif %}{% endfor %}"
    text = template(refuses + USUAL).render(ROUND[1:])
    assert text == 'user=U;assistant=<{"a": 1}>;tool=R1;assistant=<{"a": 2}>;tool=R2;'


def test_arguments_as_text() -> None:
    source = USUAL.replace("c.function.arguments | tojson", "'' + c.function.arguments")
    wanted = template(source)
    assert wanted.needs.text_arguments and '<{"a": 1}>' in wanted.render(ROUND)


def test_null_content_beside_calls() -> None:
    source = "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls | tojson }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    wanted = template(source)
    assert wanted.needs.null_content and '"id1"' in wanted.render(ROUND)
