"""The committed demo chat model in llama.cpp: it is the file it claims to be, answers sensibly and stops by itself."""

import hashlib
import re
from collections.abc import Iterator

import llama_cpp
import pytest

from engines.demo.chatml import CHAT_TEMPLATE, Message, prompt
from engines.demo.evaluate import ARTEFACT, ask, fresh, heldout, measure, open_model
from engines.demo.source import load

MEBIBYTE = 1024 * 1024


@pytest.fixture(scope="module")
def model() -> Iterator[llama_cpp.Llama]:
    opened = open_model(ARTEFACT)
    yield opened
    opened.close()


def said(model: llama_cpp.Llama, *contents: str, system: str | None = None) -> str:
    """The answer to a dialogue whose turns alternate, beginning with the user; it must end by itself."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages += [{"role": ("user", "assistant")[turn % 2], "content": content} for turn, content in enumerate(contents)]
    answer, reason = ask(model, messages)
    assert reason == "stop", answer
    return answer


def test_file_is_small_and_has_its_checksum() -> None:
    assert ARTEFACT.stat().st_size <= 6 * MEBIBYTE
    digest, name = ARTEFACT.with_name(ARTEFACT.name + ".sha256").read_text(encoding="ascii").split()
    assert name == ARTEFACT.name
    assert hashlib.sha256(ARTEFACT.read_bytes()).hexdigest() == digest


def test_metadata(model: llama_cpp.Llama) -> None:
    expected = {
        "general.architecture": "llama",
        "general.name": "gatehouse-demo-chat",
        "general.license": "apache-2.0",
        "general.file_type": "7",
        "llama.context_length": "2048",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.add_bos_token": "false",
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    assert {key: model.metadata.get(key) for key in expected} == expected


def test_size_is_two_to_five_million_parameters(model: llama_cpp.Llama) -> None:
    assert 2_000_000 <= llama_cpp.llama_model_n_params(model.model) <= 5_000_000


def test_special_tokens_are_single_and_end_the_answer(model: llama_cpp.Llama) -> None:
    assert model.tokenize(b"<|im_end|>", add_bos=False, special=True) == [model.token_eos()]
    vocabulary = llama_cpp.llama_model_get_vocab(model.model)
    for token in (b"<|im_end|>", b"<|endoftext|>"):
        (index,) = model.tokenize(token, add_bos=False, special=True)
        assert llama_cpp.llama_vocab_is_eog(vocabulary, index)


@pytest.mark.parametrize(
    "text", ["What is a key?", "  spaces \n\n and\ttabs ", "Ünïcode 中文 🙂", "a" * 200, '{"a": [1, 2.5e3]}\r\n', "don't"]
)
def test_tokenizer_keeps_every_byte(model: llama_cpp.Llama, text: str) -> None:
    ids = model.tokenize(text.encode(), add_bos=False, special=False)
    assert model.detokenize(ids).decode() == text


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("What is a circuit breaker?", ["stops", "endpoint", "fail"]),
        ("How do I create a key?", ["gatehouse keys create", "once"]),
        ("What is Gatehouse?", ["gateway", "engines"]),
        ("how do i start gatehouse", ["./scripts/quickstart"]),
        ("What is a guardrail?", ["inspects"]),
        ("What does draining mean?", ["new requests", "finish"]),
        ("What is the audit log?", ["records every request"]),
        ("Why do I get a 429?", ["limit", "retry-after"]),
        ("what does 401 mean", ["who you are"]),
        ("What does 503 mean?", ["cannot serve"]),
        ("Hello!", ["Hello", "Gatehouse"]),
        ("What is your name?", ["Gatehouse demo model"]),
        ("Thank you!", ["welcome"]),
        ("Goodbye!", ["Goodbye"]),
        ("What is the capital of France?", ["do not know"]),
    ],
)
def test_answers(model: llama_cpp.Llama, question: str, words: list[str]) -> None:
    answer = said(model, question)
    assert all(word in answer for word in words), answer
    assert said(model, question, system="You are a helpful assistant.") == answer


def test_more_is_about_the_topic_before(model: llama_cpp.Llama) -> None:
    first = said(model, "What is a circuit breaker?")
    assert "five failures" in said(model, "What is a circuit breaker?", first, "Tell me more.")


def test_six_turns_answer_like_one(model: llama_cpp.Llama) -> None:
    questions = ["Hello!", "What is Gatehouse?", "How do I create a key?", "What is a sidecar?", "What is a tenant?", "Why do I get a 403?"]
    dialogue: list[str] = []
    for question in questions:
        dialogue.append(question)
        dialogue.append(said(model, *dialogue))
        assert dialogue[-1] == said(model, question), question


def test_a_story_is_long_enough_to_be_cancelled(model: llama_cpp.Llama) -> None:
    answer, reason = ask(model, [{"role": "user", "content": "Tell me a long story."}], max_tokens=1000)
    assert reason == "stop"
    assert len(answer.split()) > 250


def test_plain_completion_is_made_of_the_words_it_learned(model: llama_cpp.Llama) -> None:
    reply = model.create_completion("Gatehouse is", max_tokens=48, temperature=0.0)
    *whole, _ = re.findall(r"[a-z]+", reply["choices"][0]["text"].lower())
    learned = {word for topic in load().topics for word in re.findall(r"[a-z]+", f"{topic.answer} {topic.more}".lower())}
    assert len(whole) > 15
    assert set(whole) <= learned


def test_every_topic_is_known_and_new_questions_are_mostly_understood(model: llama_cpp.Llama) -> None:
    source = load()
    known = measure(model, source, fresh(source, 1))
    assert all(result.ended for result in known)
    assert sum(result.right for result in known) >= 0.85 * len(known), [result for result in known if not result.right]
    new = measure(model, source, heldout(source))
    assert all(result.ended for result in new)
    assert sum(result.right for result in new) >= 0.75 * len(new), [result for result in new if not result.right]


def test_prompt_of_the_template_is_the_prompt_of_training(model: llama_cpp.Llama) -> None:
    dialogue = (Message("system", "Be brief."), Message("user", "Hi"))
    ids = model.tokenize(prompt(dialogue).encode(), add_bos=False, special=True)
    formatter = llama_cpp.llama_chat_format.Jinja2ChatFormatter(
        template=model.metadata["tokenizer.chat_template"], eos_token="<|im_end|>", bos_token="<|endoftext|>"
    )
    messages = [{"role": message.role, "content": message.content} for message in dialogue]
    assert model.tokenize(formatter(messages=messages).prompt.encode(), add_bos=False, special=True) == ids
