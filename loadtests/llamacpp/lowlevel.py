"""The low-level loop: one batch for all sequences, greedy, nothing else; what Python over llama.cpp's functions can reach at most.

    python -m loadtests.llamacpp.lowlevel MODEL SLOTS CONTEXT THREADS

Reads lines `SEQUENCES TOKENS` from standard input, generates so many tokens in each of so many sequences, and answers each line with one:
the seconds that it took, reading prompts of 16 tokens included.
"""

from __future__ import annotations

import ctypes
import random
import sys
import time
from typing import Any

import llama_cpp

PROMPT = 16


def load(path: str, slots: int, context: int, threads: int) -> tuple[Any, int]:
    """A context over the model, and the size of its vocabulary."""
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.n_batch, params.kv_unified = slots * context, slots, 512, True
    params.n_threads = params.n_threads_batch = threads
    globals()["_keep"] = silent
    return llama_cpp.llama_init_from_model(model, params), llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))


def fill(batch: Any, items: list[tuple[int, int, int, bool]]) -> None:
    """Token, position, sequence and whether logits are wanted, for each token of a step."""
    batch.n_tokens = len(items)
    for at, (token, position, sequence, wanted) in enumerate(items):
        batch.token[at], batch.pos[at], batch.logits[at] = token, position, wanted
        batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence


def generate(context: Any, batch: Any, sampler: Any, vocabulary: int, sequences: int, tokens: int, seed: int) -> float:
    """Seconds for one run."""
    generator = random.Random(seed)
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    started = time.perf_counter()
    prompts = [[generator.randrange(400, vocabulary) for _ in range(PROMPT)] for _ in range(sequences)]
    items = [(token, at, number, at == PROMPT - 1) for number, prompt in enumerate(prompts) for at, token in enumerate(prompt)]
    for step in range(tokens):
        fill(batch, items)
        if llama_cpp.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        wanted = [at for at, item in enumerate(items) if item[3]]
        news = [llama_cpp.llama_sampler_sample(sampler, context, at) for at in wanted]
        items = [(token, PROMPT + step, number, True) for number, token in enumerate(news)]
    return time.perf_counter() - started


def main() -> None:
    """Answer lines until the input ends."""
    path, slots, size, threads = sys.argv[1], *map(int, sys.argv[2:5])
    context, vocabulary = load(path, slots, size, threads)
    batch = llama_cpp.llama_batch_init(512, 0, 1)
    sampler = llama_cpp.llama_sampler_init_greedy()
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin):
        sequences, tokens = map(int, line.split())
        print(generate(context, batch, sampler, vocabulary, sequences, tokens, number), flush=True)


if __name__ == "__main__":
    main()
