"""Makes the demo chat model: `python -m engines.demo.train --minutes 25 --out demo-chat.gguf` (or `--steps N`, which is repeatable).

Needs torch, tokenizers, gguf and numpy; Gatehouse itself does not need them for this model. One core is enough. README.md has the figures.
"""

import argparse
import hashlib
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from engines.demo import tokenizer as bpe
from engines.demo import transformer
from engines.demo.chatml import SPECIAL_TOKENS
from engines.demo.corpus import Corpus, Example
from engines.demo.export import write
from engines.demo.source import load
from engines.demo.transformer import Shape

SEED = 20261120
TOKENIZER_EXAMPLES = 30000
LEARNING_RATE = 2e-3
WARM_UP = 0.04
"""Share of the run during which the learning rate rises."""
COOL_DOWN = 0.4
"""Share of the run, at its end, during which the learning rate falls."""
BATCH_TOKENS = 1536
SHUFFLE = 2048
"""Examples sorted by length together, to keep padding small."""
REPORT_EVERY = 100


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids and which of them are learned, both [examples, length]. Short examples are padded with id 0, which is not learned."""

    tokens: torch.Tensor
    learned: torch.Tensor


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to train: a number of steps, or a time if steps is None."""

    steps: int | None
    seconds: float

    def progress(self, step: int, elapsed: float) -> float:
        """Progress, from 0 at the start to 1 at the end."""
        return step / self.steps if self.steps is not None else elapsed / self.seconds


def encode(tokenizer: Tokenizer, example: Example, limit: int) -> tuple[list[int], list[bool]]:
    """The example's token ids and which of them are learned, both cut to `limit`."""
    ids: list[int] = []
    learned: list[bool] = []
    for piece in example.pieces:
        part = tokenizer.encode(piece.text).ids
        ids += part
        learned += [piece.learned] * len(part)
    return ids[:limit], learned[:limit]


def batches(tokenizer: Tokenizer, examples: Iterator[Example], limit: int, rng: random.Random) -> Iterator[Batch]:
    """An endless stream of batches of up to about BATCH_TOKENS tokens, padding included, from examples of similar length."""
    while True:
        encoded = [encode(tokenizer, example, limit) for example in itertools.islice(examples, SHUFFLE)]
        encoded.sort(key=lambda item: len(item[0]))
        groups: list[list[tuple[list[int], list[bool]]]] = [[]]
        for item in encoded:
            if groups[-1] and (len(groups[-1]) + 1) * len(item[0]) > BATCH_TOKENS:
                groups.append([])
            groups[-1].append(item)
        rng.shuffle(groups)
        for group in groups:
            yield _batch(group)


def _batch(group: list[tuple[list[int], list[bool]]]) -> Batch:
    length = max(len(ids) for ids, _ in group)
    tokens = torch.zeros(len(group), length, dtype=torch.long)
    learned = torch.zeros(len(group), length, dtype=torch.bool)
    for row, (ids, flags) in enumerate(group):
        tokens[row, : len(ids)] = torch.tensor(ids)
        learned[row, : len(ids)] = torch.tensor(flags)
    return Batch(tokens, learned)


def learning_rate(progress: float) -> float:
    """Rises linearly, stays constant, then falls linearly to zero."""
    return LEARNING_RATE * min(progress / WARM_UP, 1.0, (1 - progress) / COOL_DOWN)


def optimise(weights: transformer.Weights, shape: Shape, stream: Iterator[Batch], budget: Budget) -> tuple[int, int, float]:
    """Trains `weights` in place. Returns the steps, the tokens seen and the moving average of the loss."""
    decayed = [weight for weight in weights.values() if weight.ndim > 1]
    others = [weight for weight in weights.values() if weight.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
    begin, step, seen, recent = time.monotonic(), 0, 0, 0.0
    while (progress := budget.progress(step, time.monotonic() - begin)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(progress)
        batch = next(stream)
        value = transformer.loss(weights, shape, batch.tokens, batch.learned)
        value.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        step += 1
        seen += batch.tokens.numel()
        recent = value.item() if step == 1 else 0.98 * recent + 0.02 * value.item()
        if step % REPORT_EVERY == 0:
            print(f"step {step}  {progress:5.1%}  loss {recent:.3f}  {seen / (time.monotonic() - begin):.0f} tokens/s", flush=True)
    return step, seen, recent


def make(out: Path, budget: Budget, version: str) -> None:
    """Trains the tokenizer and the model, and writes the file with its checksum next to it."""
    shape = Shape()
    source = load()
    sample = itertools.islice(Corpus(source, SEED - 1).examples(), TOKENIZER_EXAMPLES)
    tokenizer = bpe.train((text for example in sample for text in plain_texts(example)), shape.vocabulary)
    weights = transformer.initial(shape, SEED)
    print(f"{transformer.parameters(weights)} parameters, {len(source.topics)} topics", flush=True)
    stream = batches(tokenizer, Corpus(source, SEED).examples(), shape.context, random.Random(SEED))
    begin = time.monotonic()
    steps, seen, last = optimise(weights, shape, stream, budget)
    print(f"{steps} steps, {seen} tokens, {time.monotonic() - begin:.0f} s, loss {last:.4f}")
    out.parent.mkdir(parents=True, exist_ok=True)
    write(out, {name: weight.detach().numpy() for name, weight in weights.items()}, shape, bpe.vocabulary(tokenizer), version)
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    out.with_name(out.name + ".sha256").write_text(f"{digest}  {out.name}\n", encoding="ascii")
    print(f"{out}: {out.stat().st_size} bytes, sha256 {digest}")


def plain_texts(example: Example) -> Iterator[str]:
    """The example's texts without special tokens, for training the tokenizer."""
    for piece in example.pieces:
        text = piece.text
        for token in SPECIAL_TOKENS:
            text = text.replace(token, "")
        yield text


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train the demo chat model and write it as a GGUF file.")
    parser.add_argument("--out", type=Path, required=True, help="the file to write; its .sha256 is written beside it")
    parser.add_argument("--minutes", type=float, default=25.0, help="how long to train (default 25)")
    parser.add_argument("--steps", type=int, default=None, help="train exactly this many steps instead, which is repeatable")
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default 1)")
    parser.add_argument("--version", default="1", help="general.version of the file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(SEED)
    make(arguments.out, Budget(steps=arguments.steps, seconds=60 * arguments.minutes), arguments.version)


if __name__ == "__main__":
    main()
