"""Asks the demo model questions with known answers and counts the right ones: `python -m engines.demo.evaluate FILE`.

It asks the questions in data/heldout.yaml, which are never trained on, and freshly drawn ones of the kind seen in training.
Needs llama_cpp.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import llama_cpp

from engines.demo.corpus import Corpus
from engines.demo.source import Source, load

ARTEFACT = Path(__file__).parent / "artefacts" / "demo-chat.gguf"
FRESH_SEED = 7
MAX_TOKENS = 160


@dataclass(frozen=True, slots=True)
class Result:
    """One question, the model's answer, whether it is the expected one, and whether the model ended it by itself."""

    topic: str
    question: str
    answer: str
    right: bool
    ended: bool


def open_model(path: Path, context: int = 2048) -> llama_cpp.Llama:
    """Loads the model on the CPU with one thread."""
    return llama_cpp.Llama(str(path), n_ctx=context, n_threads=1, n_threads_batch=1, n_gpu_layers=0, verbose=False)


def ask(model: llama_cpp.Llama, messages: list[dict[str, str]], max_tokens: int = MAX_TOKENS) -> tuple[str, str]:
    """The answer at temperature 0 and its finish reason."""
    reply = model.create_chat_completion(messages=messages, temperature=0.0, max_tokens=max_tokens)
    choice = reply["choices"][0]
    return str(choice["message"]["content"]), str(choice["finish_reason"])


def answers(source: Source) -> dict[str, str]:
    """Topic or talk id -> its expected answer."""
    known = {topic.id: topic.answer for topic in source.topics} | {talk.id: talk.answer for talk in source.talks}
    return known | {"outside": source.outside.answer}


def heldout(source: Source) -> Iterator[tuple[str, str]]:
    """(topic, question) pairs that training never saw."""
    for topic, questions in source.heldout.items():
        for question in questions:
            yield topic, question


def fresh(source: Source, each: int) -> Iterator[tuple[str, str]]:
    """(topic, question) pairs: `each` newly drawn questions per topic."""
    corpus = Corpus(source, FRESH_SEED)
    for topic in source.topics:
        questions = corpus.questions(topic)
        for _ in range(each):
            yield topic.id, next(questions)


def measure(model: llama_cpp.Llama, source: Source, questions: Iterator[tuple[str, str]]) -> list[Result]:
    """Asks each question in its own dialogue."""
    known = answers(source)
    results = []
    for topic, question in questions:
        answer, reason = ask(model, [{"role": "user", "content": question}])
        results.append(Result(topic, question, answer, answer.strip() == known[topic], reason == "stop"))
    return results


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure the demo chat model.")
    parser.add_argument("file", type=Path, nargs="?", default=ARTEFACT)
    parser.add_argument("--each", type=int, default=3, help="fresh questions for every topic (default 3)")
    parser.add_argument("--show", action="store_true", help="print what went wrong")
    arguments = parser.parse_args()
    source, model = load(), open_model(arguments.file)
    for name, questions in (("held out", heldout(source)), ("fresh", fresh(source, arguments.each))):
        results = measure(model, source, questions)
        right, ended = sum(result.right for result in results), sum(result.ended for result in results)
        print(f"{name}: {right}/{len(results)} right ({right / len(results):.0%}), {ended} ended by themselves")
        for result in results if arguments.show else ():
            if not result.right:
                print(f"  {result.topic}: {result.question}\n    -> {result.answer}")


if __name__ == "__main__":
    main()
