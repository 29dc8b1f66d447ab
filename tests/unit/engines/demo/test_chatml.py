"""The two forms of the chat format are one."""

from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engines.demo.chatml import CHAT_TEMPLATE, Message, pieces, prompt

MESSAGES = st.lists(st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), content=st.text()), max_size=6)


TEMPLATE = ImmutableSandboxedEnvironment(autoescape=False).from_string(CHAT_TEMPLATE)


def rendered(messages: list[dict[str, object]], add_generation_prompt: bool) -> str:
    return TEMPLATE.render(messages=messages, add_generation_prompt=add_generation_prompt)


@given(MESSAGES)
def test_template_and_training_text_are_the_same(messages: list[Message]) -> None:
    plain: list[dict[str, object]] = [{"role": message.role, "content": message.content} for message in messages]
    assert rendered(plain, add_generation_prompt=True) == prompt(tuple(messages))
    assert rendered(plain, add_generation_prompt=False) == "".join(piece.text for piece in pieces(tuple(messages)))


def test_only_the_assistant_and_the_end_of_its_turn_are_learned() -> None:
    dialogue = (Message("system", "Be kind."), Message("user", "Hi"), Message("assistant", "Hello!"))
    assert [piece.text for piece in pieces(dialogue) if piece.learned] == ["Hello!<|im_end|>"]


def test_template_joins_text_parts_and_leaves_out_others() -> None:
    parts = [{"type": "text", "text": "Hi "}, {"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "there"}]
    assert rendered([{"role": "user", "content": parts}], add_generation_prompt=False) == "<|im_start|>user\nHi there<|im_end|>\n"


def test_template_accepts_a_message_without_content() -> None:
    assert rendered([{"role": "assistant", "content": None}], add_generation_prompt=False) == "<|im_start|>assistant\n<|im_end|>\n"
