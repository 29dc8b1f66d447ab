"""The guardrail pii beside Presidio's pattern recognisers, on one corpus in one run: recall, precision, false positives, time.

    python -m venv /tmp/beside && /tmp/beside/bin/pip install presidio-analyzer google-re2 msgspec faker
    /tmp/beside/bin/python -m loadtests.guardrails.presidio [--seed 11] [--each 200] [--clean 60000] [--corpus apart|own]

Presidio runs with a blank spaCy pipeline (its language models find names and places, which the guardrail does not look for) and every
recogniser of patterns that it has, also those that it leaves out by default. Clean text is taken from what Python has installed: prose of
docstrings and documents, code, and generated logs. Nothing here is a dependency of the gateway.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import logging
import random
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import presidio_analyzer.predefined_recognizers as predefined
import spacy
from presidio_analyzer import AnalyzerEngine, PatternRecognizer, RecognizerRegistry
from presidio_analyzer.nlp_engine import SpacyNlpEngine

from loadtests.guardrails import apart, corpus
from loadtests.guardrails.corpus import CHECKED, ENTITIES, Sample, logs, near_misses
from loadtests.guardrails.pii import found
from policies.guardrails.pii.table import RECOGNISERS
from policies.guardrails.recognition.finder import Finder

Span = tuple[str, int, int]
KINDS = {
    "EMAIL_ADDRESS": "email",
    "PHONE_NUMBER": "phone",
    "CREDIT_CARD": "card",
    "IBAN_CODE": "iban",
    "US_SSN": "ssn",
    "US_ITIN": "ssn",
    "IP_ADDRESS": "ip",
    "MAC_ADDRESS": "mac",
    "CRYPTO": "crypto",
    "DATE_TIME": "birth_date",
}


def kind_of(entity: str) -> str:
    if entity in KINDS:
        return KINDS[entity]
    if "PASSPORT" in entity:
        return "passport"
    return "plate" if "VEHICLE" in entity or "LICENSE_PLATE" in entity else "national_id"


class Blank(SpacyNlpEngine):
    """Tokens only."""

    def __init__(self) -> None:
        super().__init__(models=[{"lang_code": "en", "model_name": "blank"}])
        self.nlp = {"en": spacy.blank("en")}

    def load(self) -> None:
        """There is nothing to load."""


def analyzer() -> AnalyzerEngine:
    registry = RecognizerRegistry(supported_languages=["en"])
    names = []
    for name, one in vars(predefined).items():
        patterned = inspect.isclass(one) and (issubclass(one, PatternRecognizer) or name == "PhoneRecognizer")
        if patterned and one is not PatternRecognizer:
            try:
                registry.add_recognizer(one(supported_language="en"))
                names.append(name)
            except TypeError:
                continue
    print(f"Presidio: {len(names)} recognisers of patterns\n")
    return AnalyzerEngine(registry=registry, nlp_engine=Blank(), supported_languages=["en"])


def by_presidio(engine: AnalyzerEngine, least: float) -> Callable[[str], list[Span]]:
    def run(text: str) -> list[Span]:
        spans = sorted(engine.analyze(text, "en", score_threshold=least), key=lambda one: (-one.score, one.start))
        taken: list[Span] = []
        for one in spans:
            if all(one.end <= low or one.start >= high for _, low, high in taken):
                taken.append((kind_of(one.entity_type), one.start, one.end))
        return taken

    return run


def prose(limit: int) -> Iterator[str]:
    """Paragraphs of docstrings."""
    words = 0
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and (text := ast.get_docstring(node)):
                for part in text.split("\n\n"):
                    words += len(part.split())
                    yield part
                    if words > limit:
                        return


def code(limit: int) -> Iterator[str]:
    words = 0
    for path in files():
        for line in path.read_text(errors="replace").splitlines():
            words += len(line.split())
            yield line
            if words > limit:
                return


def documents(limit: int) -> Iterator[str]:
    """Paragraphs of what packages and the system have to read."""
    words = 0
    places = (Path(sysconfig.get_paths()["purelib"]), Path("/usr/share/doc"), Path("/usr/lib/node_modules"))
    paths = sorted(path for place in places for ending in ("*.md", "*.rst", "README*", "NEWS*", "*.txt") for path in place.rglob(ending))
    random.Random(6).shuffle(paths)
    for path in paths:
        if path.is_file() and path.suffix != ".gz" and path.stat().st_size < 200_000:
            for part in path.read_text(errors="replace").split("\n\n"):
                words += len(part.split())
                yield part
                if words > limit:
                    return


def files() -> list[Path]:
    found = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    random.Random(5).shuffle(found)
    return found


def trees() -> Iterator[ast.Module]:
    for path in files():
        yield ast.parse(path.read_text(errors="replace"))


def quality(name: str, run: Callable[[str], list[Span]], samples: Iterable[Sample], show: bool) -> dict[str, tuple[float, float, float]]:
    total, right, covered, wrong = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for sample in samples:
        assert sample.entity is not None
        total[sample.entity] += 1
        spans = run(sample.text)
        exact = (sample.entity, sample.start, sample.end)
        right[sample.entity] += exact in spans
        if show and exact not in spans:
            print(name, "missed", sample.entity, repr(sample.text), spans)
        covered[sample.entity] += any(low <= sample.start and sample.end <= high for _, low, high in spans)
        wrong.update(entity for entity, low, high in spans if (entity, low, high) != exact)
    return {one: (right[one] / total[one], covered[one] / total[one], right[one] / max(1, right[one] + wrong[one])) for one in ENTITIES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--each", type=int, default=200)
    parser.add_argument("--clean", type=int, default=60_000)
    parser.add_argument("--corpus", choices=("apart", "own"), default="apart")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    finder, engine = Finder(RECOGNISERS), analyzer()
    runs: dict[str, Callable[[str], list[Span]]] = {"pii": lambda text: found(finder, text), "Presidio": by_presidio(engine, 0.35)}
    tables: dict[str, Any] = {}
    samples = list((apart if options.corpus == "apart" else corpus).samples(options.seed, options.each))
    for name, run in runs.items():
        began = time.process_time()
        tables[name] = quality(name, run, samples, options.show)
        spent = (time.process_time() - began) / (options.each * len(ENTITIES)) * 1e6
        print(f"{name}: {spent:.0f} us of CPU for each sentence")
    print("\n| entity | check digit | recall: pii | Presidio | covered: pii | Presidio | precision: pii | Presidio |")
    print("|---|---|---|---|---|---|---|---|")
    for entity in ENTITIES:
        pairs = zip(*(tables[name][entity] for name in runs), strict=True)
        cells = " | ".join(f"{one:.3f} | {other:.3f}" for one, other in pairs)
        print(f"| {entity} | {'yes' if entity in CHECKED else 'no'} | {cells} |")
    texts = {
        "near misses (an entity each at most)": [sample.text for sample in near_misses(options.seed + 1, options.each * 4)],
        "letters in 35 languages": list(apart.clean(options.seed, options.clean // 40)),
        "documents of packages": list(documents(options.clean)),
        "English of docstrings": list(prose(options.clean)),
        "code": list(code(options.clean)),
        "logs": list(logs(options.seed, options.clean // 8)),
    }
    print("\n| text without entities | words | found in 10,000 words: pii | Presidio | seconds: pii | Presidio |")
    print("|---|---|---|---|---|---|")
    for title, lines in texts.items():
        words = sum(len(line.split()) for line in lines)
        counts, seconds = [], []
        for name, run in runs.items():
            began = time.process_time()
            spans = [(line, span) for line in lines for span in run(line)]
            seconds.append(time.process_time() - began)
            counts.append(len(spans) / words * 10_000)
            for line, span in spans if options.show and name == "pii" else ():
                print("clean", span[0], repr(line[max(0, span[1] - 30) : span[2] + 10]))
        print(f"| {title} | {words} | {counts[0]:.2f} | {counts[1]:.2f} | {seconds[0]:.2f} | {seconds[1]:.2f} |")


if __name__ == "__main__":
    main()
