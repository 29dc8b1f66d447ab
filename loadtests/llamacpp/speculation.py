"""Speculation on and off, by turns, in one process: tokens a second over texts that repeat themselves and over texts that do not.

    python -m loadtests.llamacpp.speculation [--rounds 3] [--tokens 200] [--counts 1,8] [--threads 2] [--kinds repeating,mixed,...]
                                             [--draft 0.2] [--circle 24] [--large]

The model has 29M parameters in Q8_0 and runs in circles of 24 tokens, the more loosely the higher the temperature: *repeating* never
leaves its circle, *mixed* leaves it now and then, *misleading* so often that few guesses are right, *varied* at once. With `--draft` a
draft model of 1.2M parameters guesses as well, which is wrong after that share of the tokens; `--circle 4000` makes texts in which nothing
repeats itself; `--large` takes a model of 142M parameters. Prints each
measurement as a line of JSON, then for each the medians, and the median, least and greatest ratio of on to off of the same round, in time,
in processor time and in steps, which no other process disturbs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from engines.chat.events import Mailbox
from engines.chat.sampling import SamplingParams
from engines.llamacpp.batcher import Batcher
from engines.llamacpp.drafting import Drafter
from engines.llamacpp.jobs import SequenceJob
from engines.llamacpp.native import Context, Model, NativeLog
from engines.llamacpp.sampling import Sampler
from engines.llamacpp.scheduler import StepCosts
from engines.llamacpp.speculation import Guesser, Trust
from loadtests.llamacpp.random_gguf import Shape, write_circles

MATCH, MOST, CONTEXT = 3, 16, 1024
SHAPE = Shape(layers=8, width=512, heads=8, kv_heads=4, feed_forward=1408, extra_words=4000)
LARGE = Shape(layers=12, width=1024, heads=16, kv_heads=8, feed_forward=2816, extra_words=4000)
SMALL = Shape(layers=1, width=128, heads=4, kv_heads=2, feed_forward=256, extra_words=4000)
KINDS = {"repeating": 1.0, "mixed": 1.75, "misleading": 2.0, "varied": 20.0}
"""Temperatures."""


def jobs_of(kind: str, model: Model, count: int, tokens: int, seed: int, guesses: bool, drafts: bool) -> list[SequenceJob]:
    """So many requests of a kind; equal for equal seeds."""
    generator = random.Random(seed)
    jobs = []
    for _ in range(count):
        prompt = [1, *(generator.randrange(300, model.n_vocab) for _ in range(40))]
        params = SamplingParams(temperature=KINDS[kind], seed=generator.randrange(2**31))
        guesser = Guesser(prompt, MATCH) if guesses else None
        jobs.append(
            SequenceJob(
                priority=1, arrival=0, prompt=len(prompt), tokens=prompt, sampler=Sampler(model, params, prompt), max_tokens=tokens,
                mailbox=Mailbox(), ignore_eos=True, guesser=guesser, trust=Trust() if guesses and drafts else None,
            )
        )  # fmt: skip
    return jobs


async def measured(batcher: Batcher, jobs: list[SequenceJob]) -> dict[str, Any]:
    """Tokens a second and processor milliseconds a token, from the first token of the last stream on; and the tokens."""
    drafted, accepted, by_model = batcher.stats.drafted, batcher.stats.accepted, batcher.stats.model_accepted
    steps = batcher.stats.steps
    texts: dict[int, list[int]] = {id(job): [] for job in jobs}

    async def follow(job: SequenceJob) -> None:
        done = False
        while not done:
            for _job, event in await job.mailbox.get():
                if event.error is not None:
                    raise event.error
                if event.token is not None:
                    texts[id(job)].append(event.token)
                done = event.finish is not None
            if job.paused:
                batcher.resume(job)

    began, used = time.monotonic(), time.process_time()
    batcher.submit(jobs)
    await asyncio.gather(*map(follow, jobs))
    seconds, used = time.monotonic() - began, time.process_time() - used
    made = sum(map(len, texts.values()))
    return {
        "tok/s": round(made / seconds, 2), "cpu ms/tok": round(1000 * used / made, 3), "drafted": batcher.stats.drafted - drafted,
        "steps": batcher.stats.steps - steps, "accepted": batcher.stats.accepted - accepted,
        "of a draft model": batcher.stats.model_accepted - by_model, "texts": list(texts.values()),
    }  # fmt: skip


async def run(options: argparse.Namespace) -> None:
    """All measurements."""
    log = NativeLog()
    batchers: dict[str, Batcher] = {}
    contexts: list[Context] = []
    with tempfile.TemporaryDirectory(prefix="gh") as directory:
        path = write_circles(Path(directory) / "circles.gguf", LARGE if options.large else SHAPE, circle=options.circle)
        model = Model(str(path), log, gpu_layers=0, use_mmap=True, use_mlock=False)
        drafter = None
        if options.draft is not None:
            path = write_circles(Path(directory) / "draft.gguf", SMALL, circle=options.circle, wrong=options.draft)
            small = Model(str(path), log, gpu_layers=0, use_mmap=True, use_mlock=False)
            context = Context(small, log, cells=8 * CONTEXT, sequences=16, batch=512, micro_batch=512, threads=1, threads_batch=1)
            contexts.append(context)
            drafter = Drafter(small, context, batch=512, lines=16, vocabulary=model.n_vocab, longest=0)
    for name, drafts in (("off", 0), ("on", MOST)):
        context = Context(
            model, log, cells=8 * CONTEXT, sequences=16, batch=512, micro_batch=512, threads=options.threads, threads_batch=options.threads
        )  # fmt: skip
        batcher = Batcher(
            model, context, slots=8, queue=8, batch=512, lines=16, costs=StepCosts(), drafts=drafts, drafter=drafter if drafts else None
        )
        batcher.warm_up()
        batcher.start()
        batchers[name] = batcher
        contexts.append(context)
    figures: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for number in range(options.rounds):
        for kind in options.kinds.split(","):
            for count in map(int, options.counts.split(",")):
                for name in ("off", "on") if number % 2 else ("on", "off"):
                    jobs = jobs_of(kind, model, count, options.tokens, number * 1000 + count, name == "on", drafter is not None)
                    result = await measured(batchers[name], jobs)
                    figures.setdefault(f"{kind} x{count}", {}).setdefault(name, []).append(result)
                    print(json.dumps({"round": number, "of": f"{kind} x{count}", "speculation": name, **result, "texts": None}), flush=True)
    for what, both in figures.items():
        print(json.dumps({"summary": what, **summary(both)}))
    for batcher in batchers.values():
        batcher.close()
    for context in contexts:
        context.close()


def summary(both: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians, and ratios within a round: median, least, greatest."""
    pairs = list(zip(both["on"], both["off"], strict=True))
    speed = sorted(on["tok/s"] / off["tok/s"] for on, off in pairs)
    work = sorted(off["cpu ms/tok"] / on["cpu ms/tok"] for on, off in pairs)
    drafted = sum(on["drafted"] for on, _off in pairs)
    steps = sorted(off["steps"] / on["steps"] for on, off in pairs)
    same = sum(left == right for on, off in pairs for left, right in zip(on["texts"], off["texts"], strict=True))
    return {
        "tok/s off": statistics.median(off["tok/s"] for _on, off in pairs),
        "tok/s on": statistics.median(on["tok/s"] for on, _off in pairs),
        "ratio": [round(value, 3) for value in (statistics.median(speed), speed[0], speed[-1])],
        "ratio of processor time": [round(value, 3) for value in (statistics.median(work), work[0], work[-1])],
        "ratio of steps": [round(value, 3) for value in (statistics.median(steps), steps[0], steps[-1])],
        "drafted a token": round(drafted / sum(len(text) for on, _off in pairs for text in on["texts"]), 3),
        "accepted share": round(sum(on["accepted"] for on, _off in pairs) / drafted, 3) if drafted else None,
        "same texts": f"{same} of {sum(len(on['texts']) for on, _off in pairs)}",
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--counts", default="1,8")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--draft", type=float, help="with a draft model that is wrong after this share of the tokens")
    parser.add_argument("--large", action="store_true", help="a model of 142M parameters")
    parser.add_argument("--circle", type=int, default=24, help="tokens after which a text repeats itself")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
