"""Tokens a second of eight streams over one, two and four LoRA adapters, and without any, in one process.

    python -m loadtests.llamacpp.adapters [--rounds 2] [--tokens 60] [--threads 2]

The model has 29M parameters in Q8_0 with random weights; the adapters have rank 8. Each measurement is made in turn, each round in another
order. Prints each as a line of JSON, then the medians, and processor milliseconds a token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from engines.chat.events import Mailbox
from engines.chat.sampling import SamplingParams
from engines.llamacpp.batcher import Batcher
from engines.llamacpp.jobs import SequenceJob
from engines.llamacpp.native import Context, LoraAdapter, Model, NativeLog
from engines.llamacpp.sampling import Sampler
from engines.llamacpp.scheduler import StepCosts
from loadtests.llamacpp.random_gguf import write, write_lora
from loadtests.llamacpp.speculation import SHAPE, measured

STREAMS = 8
KINDS: dict[str, tuple[str, ...]] = {
    "no adapter": ("",),
    "1 adapter": ("a",),
    "2 adapters": ("a", "b"),
    "4 adapters": ("a", "b", "c", "d"),
}


def jobs_of(model: Model, adapters: tuple[str, ...], tokens: int, seed: int) -> list[SequenceJob]:
    """Eight requests spread over these adapters."""
    jobs = []
    for number in range(STREAMS):
        prompt = [1, *range(300 + seed * 8 + number, 340 + seed * 8 + number)]
        jobs.append(
            SequenceJob(
                priority=1, arrival=0, prompt=len(prompt), tokens=prompt, sampler=Sampler(model, SamplingParams(temperature=0), prompt),
                max_tokens=tokens, mailbox=Mailbox(), ignore_eos=True, adapter=adapters[number % len(adapters)],
            )
        )  # fmt: skip
    return jobs


async def run(options: argparse.Namespace) -> None:
    """All measurements."""
    log = NativeLog()
    with tempfile.TemporaryDirectory(prefix="gh") as directory:
        folder = Path(directory)
        model = Model(str(write(folder / "m.gguf", SHAPE)), log, gpu_layers=0, use_mmap=True, use_mlock=False)
        adapters = {
            name: LoraAdapter(model, str(write_lora(folder / f"{name}.gguf", SHAPE, rank=8, seed=seed)), 1.0, log)
            for seed, name in enumerate("abcd")
        }
    context = Context(
        model, log, cells=STREAMS * 512, sequences=16, batch=512, micro_batch=512, threads=options.threads, threads_batch=options.threads
    )  # fmt: skip
    batcher = Batcher(model, context, slots=STREAMS, queue=8, batch=512, lines=16, costs=StepCosts(), adapters=adapters)
    batcher.warm_up()
    batcher.start()
    figures: dict[str, list[dict[str, Any]]] = {}
    for number in range(options.rounds):
        names = list(KINDS)[number % len(KINDS) :] + list(KINDS)[: number % len(KINDS)]
        for name in names:
            changes = batcher.stats.adapter_changes
            result = await measured(batcher, jobs_of(model, KINDS[name], options.tokens, number))
            result = {**result, "texts": None, "changes": batcher.stats.adapter_changes - changes}
            figures.setdefault(name, []).append(result)
            print(json.dumps({"round": number, "of": name, **result}), flush=True)
    for name in KINDS:
        medians = {key: round(statistics.median(item[key] for item in figures[name]), 3) for key in ("tok/s", "cpu ms/tok", "changes")}
        print(json.dumps({"median of": name, **medians}))
    batcher.close()
    context.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
