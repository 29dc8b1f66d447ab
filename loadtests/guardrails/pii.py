"""How well and how fast the guardrail pii finds personal data, on a generated corpus (loadtests.guardrails.corpus).

    python -m loadtests.guardrails.pii [--seed 7] [--each 500] [--clean DIRECTORY ...] [--show]

Prints precision and recall for each entity, false positives in near misses and per 10,000 words of clean text (generated logs, and the
.py and .md files of the given directories), and microseconds of CPU time per request and per chunk of a stream, for pii alone and for pii,
secrets and a deny list of 1,000 phrases as the pipeline asks them. --show prints what was missed, and what was found in clean text. It
measures the compiled modules where there is a build of these sources; GATEHOUSE_COMPILED=0 measures the sources.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gateway.app.compiled import activate

REASON = activate()

from gateway.core.plugins import Context  # noqa: E402 - after the compiled modules are in place
from gateway.core.slices import at_once  # noqa: E402
from gateway.core.types import Verdict  # noqa: E402
from loadtests.guardrails.corpus import CHECKED, ENTITIES, logs, near_misses, samples  # noqa: E402
from policies.guardrails import denylist  # noqa: E402
from policies.guardrails.pii.guardrail import PiiSettings, build  # noqa: E402
from policies.guardrails.pii.table import RECOGNISERS  # noqa: E402
from policies.guardrails.prefilter import prefilter  # noqa: E402
from policies.guardrails.recognition.finder import Finder  # noqa: E402
from policies.guardrails.recognition.normal import as_bytes, fold, places  # noqa: E402
from policies.guardrails.secrets import guardrail as secrets  # noqa: E402

SIZES = (100, 1024, 10 * 1024, 100 * 1024)
PROSE = "The scheduler reads the oldest requests first and moves each of them to a free slot before the next one ends. "
PLAIN = "The scheduler reads 24 requests and moves them to slot 3 before version 2.1 ends; nobody waits. "


def found(finder: Finder, text: str) -> list[tuple[str, int, int]]:
    """Entities with their places in the original."""
    folded, where = fold(text), places(text)
    data, place, matches = as_bytes(folded), 0, []
    while (match := finder.next(data, folded, place, len(data), lambda _: True)) is not None:
        matches.append((match.entity, where[match.start], where[match.end - 1] + 1))
        place = match.end
    return matches


def quality(finder: Finder, seed: int, each: int, show: bool) -> None:
    total: Counter[str] = Counter()
    right: Counter[str] = Counter()
    covered: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for sample in samples(seed, each):
        assert sample.entity is not None
        total[sample.entity] += 1
        spans = found(finder, sample.text)
        if (sample.entity, sample.start, sample.end) in spans:
            right[sample.entity] += 1
        elif show:
            print("missed", sample.entity, repr(sample.text), spans)
        covered[sample.entity] += any(low <= sample.start and sample.end <= high for _, low, high in spans)
        wrong.update(entity for entity, low, high in spans if (entity, low, high) != (sample.entity, sample.start, sample.end))
    print("| entity | check digit | recall (exact span) | covered by any entity | precision |\n|---|---|---|---|---|")
    for entity in ENTITIES:
        precision = right[entity] / max(1, right[entity] + wrong[entity])
        checked = "yes" if entity in CHECKED else "no"
        print(f"| {entity} | {checked} | {right[entity] / total[entity]:.3f} | {covered[entity] / total[entity]:.3f} | {precision:.3f} |")
    misses = list(near_misses(seed + 1, each * 4))
    taken = [(sample.text, spans) for sample in misses if (spans := found(finder, sample.text))]
    print(f"\nnear misses taken for an entity: {len(taken)} of {len(misses)}")
    for text, spans in taken if show else ():
        print("near miss", repr(text), spans)


def clean(finder: Finder, texts: dict[str, list[str]], show: bool) -> None:
    print("\n| clean text | words | found | per 10,000 words | which |\n|---|---|---|---|---|")
    for name, lines in texts.items():
        words, which = sum(len(line.split()) for line in lines), Counter[str]()
        for line in lines:
            for entity, low, high in found(finder, line):
                which[entity] += 1
                if show:
                    print("clean", entity, repr(line[max(0, low - 20) : high + 10]))
        count = which.total()
        print(f"| {name} | {words} | {count} | {count / max(1, words) * 10_000:.2f} | {dict(which)} |")


def best(work: Callable[[], object], rounds: int) -> float:
    """Microseconds of CPU time, of the best of seven runs."""
    times = []
    for _ in range(7):
        started = time.process_time_ns()
        for _ in range(rounds):
            work()
        times.append((time.process_time_ns() - started) / rounds / 1e3)
    return min(times)


def speed() -> None:
    phrases = tuple(f"{one} n{number:03}ight" for one in ("project", "operation", "team", "code", "plan") for number in range(200))
    alone = build(PiiSettings(), Context(name="pii"))
    all_of_them = (
        alone,
        secrets.build(secrets.SecretsSettings(action="mask"), Context(name="secrets")),
        denylist.build(denylist.DenyListSettings(phrases=phrases, action="mask"), Context(name="denylist")),
    )
    scan = prefilter([one.trigger for one in all_of_them])
    assert scan is not None

    def check(text: str) -> None:
        verdict = alone.check([text])
        if not isinstance(verdict, Verdict):
            at_once(verdict)

    def check_all(text: str) -> None:
        """As gateway.pipeline.inspect does."""
        if scan.clear([text]):
            return
        texts: Sequence[str] = scan.shared([text])
        for one in all_of_them:
            verdict = one.check(texts)
            if not isinstance(verdict, Verdict):
                verdict = at_once(verdict)
            if verdict.action == "rewrite":
                if scan.clear(verdict.texts):
                    return
                texts = scan.shared(verdict.texts)

    print("\ncompiled" if REASON is None else f"\nsources: {REASON}")
    head = " | ".join(
        f"{who}, {what}" for who in ("pii", "all three") for what in ("prose", "prose with numbers", "an address in 1,000 bytes")
    )
    print(f"| us of CPU a request | {head} |\n|---|---|---|---|---|---|---|")
    for size in SIZES:
        plain, prose = ((text * (size // len(text) + 1))[:size] for text in (PLAIN, PROSE))
        mixed = "".join(plain[at : at + 960] + " bob@example.com, " for at in range(0, size, 980))[:size]
        rounds = max(3, 300_000 // size)
        figures = [best(lambda how=how, text=text: how(text), rounds) for how in (check, check_all) for text in (prose, plain, mixed)]
        print(f"| {size} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |")
    tokens = [" the", " quick", " brown", " fox", ",", " 17", " jumps"] * 50
    for name, guardrails in (("pii", all_of_them[:1]), ("all three", all_of_them)):
        streams = [guardrail.stream() for guardrail in guardrails]

        def feed(streams: list[Any] = streams) -> None:
            for token in tokens:
                text = token
                for stream in streams:
                    text = stream.feed(text)

        print(f"us of CPU per chunk of a stream, {name}: {best(feed, 5) / len(tokens):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--each", type=int, default=500)
    parser.add_argument("--clean", type=Path, nargs="*", default=[])
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    finder = Finder(RECOGNISERS)
    print(f"longest hold-back: {finder.longest} characters\n")
    quality(finder, options.seed, options.each, options.show)
    texts = {"generated logs": list(logs(options.seed, 3000))}
    for directory in options.clean:
        files = sorted([*directory.rglob("*.py"), *directory.rglob("*.md")])
        texts[directory.name] = [line for file in files for line in file.read_text(errors="replace").splitlines()]
    clean(finder, texts, options.show)
    speed()


if __name__ == "__main__":
    main()
