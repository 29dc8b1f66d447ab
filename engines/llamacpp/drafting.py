"""A draft model: a small model of the same vocabulary that guesses a larger one's next tokens. Its file and its vocabulary are checked
before it is used; its context belongs to the decode thread.

Its KV memory has the same lines as the model's, and each holds a beginning of what the model's line holds (`held`): whatever is cut, copied
or forgotten there is cut, copied or forgotten here. So nothing is reused across isolation domains here that is not reused there. What a
line lacks is read when guesses are wanted: after a step the one or two tokens that were not guessed, at first the prompt.

It fails alone: where its context refuses a step, this step has no guesses of it, and after some such steps no other has.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import llama_cpp
import numpy
from numpy.typing import NDArray

from engines.llamacpp.cursor import GgufError
from engines.llamacpp.gguf import Metadata, describe, files_of, read_model
from engines.llamacpp.native import Batch, Context, Model
from engines.llamacpp.options import Draft
from engines.llamacpp.speculation import Prices, Trust
from engines.sidecar.loading import LoadError, verify_sha256

PADDING: Final = 128
"""Tokens by which the vocabularies' sizes may differ: models of one family pad theirs differently. llama.cpp allows as many."""
MAX_FAULTS: Final = 3
READY: Final = 32
"""Tokens of a line that a step of guesses reads before it; more are read apart."""
_CHUNKS: Final = (512, 256, 128, 64, 32, 16)


@dataclass(slots=True)
class Stream:
    """What is guessed for one stream. depth: most tokens. last: its newest token, which is not in `tokens`, its line's, yet."""

    seq: int
    tokens: array[int]
    last: int
    trust: Trust
    depth: int
    guesses: list[int] = field(default_factory=list)
    sure: list[float] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    output: int = 0


class Drafter:
    """Guesses by a draft model. lines: of the KV memory. vocabulary: tokens of the model that checks. longest: positions that the draft
    model was trained for."""

    def __init__(self, model: Model, context: Context, *, batch: int, lines: int, vocabulary: int, longest: int) -> None:
        self.prices = Prices()
        self.longest = longest
        self.broken = False
        self._context = context
        self._known = model.n_vocab
        self._common = min(model.n_vocab, vocabulary)
        self._is_end = model.is_end
        self._bos = max(model.bos, 0)
        self._batch = Batch(batch)
        self._held = [0] * lines
        self._faults = 0

    def warm_up(self, tokens: int) -> None:
        """Read a few tokens and forget them: this loads the weights and measures. Raises RuntimeError if llama.cpp cannot run the model."""
        measured: dict[int, float] = {}
        for count in (1, tokens) * 4:
            self._batch.clear()
            last = self._batch.add(0, 0, [self._bos] * count, output_last=True)
            started = time.monotonic()
            if self._context.decode(self._batch) != 0:
                raise RuntimeError("llama.cpp cannot run the draft model")
            self._best(last)
            seconds = time.monotonic() - started
            self._context.clear()
            measured[count] = min(measured.get(count, seconds), seconds)  # the first pays for one-time setup
        for count, seconds in measured.items():
            self.prices.observe(count, seconds)

    # -- what the model's memory does, done here as well ----------------------------------------------------------------

    def place(self, seq: int, keep: int, source: int | None) -> None:
        """The line begins a request with its first `keep` tokens, or with those of another line."""
        if source is None:
            self.cut(seq, keep)
            return
        self.cut(seq, 0)
        shared = min(self._held[source], keep)
        if shared > 0:
            self._context.copy(source, seq, shared)
            self._held[seq] = shared

    def cut(self, seq: int, keep: int) -> None:
        """Shortens the line to its first `keep` tokens."""
        if self._held[seq] > keep:
            self._context.trim(seq, keep)
            self._held[seq] = keep

    def clear(self) -> None:
        """Every line is forgotten."""
        self._context.clear()
        self._held = [0] * len(self._held)

    # -- reading and guessing -------------------------------------------------------------------------------------------

    def lacks(self, seq: int, tokens: array[int]) -> int:
        """Tokens of a line that are to be read before its stream's newest one."""
        return len(tokens) - self._held[seq]

    def chunk(self, lacking: int, most: float) -> int:
        """How many of so many tokens to read at once, in at most so many seconds; 0: none."""
        for size in _CHUNKS:
            count = min(size, lacking, self._batch.capacity)
            if self.prices.now(count) <= most:
                return count
        return 0

    def read(self, seq: int, tokens: Sequence[int], count: int) -> float:
        """Read the next `count` tokens of a line; the seconds it took."""
        start = self._held[seq]
        self._batch.clear()
        piece = tokens[start : start + count]
        if not self._readable(piece):
            return 0.0
        last = self._batch.add(seq, start, piece, output_last=True)
        started = time.monotonic()
        if self._decode(last):
            self._held[seq] = start + count
            self.prices.observe(count, time.monotonic() - started)
        return time.monotonic() - started

    def read_whole(self, seq: int, tokens: Sequence[int]) -> None:
        """Read a line to its end: a pinned prompt, once."""
        while not self.broken and (lacking := len(tokens) - self._held[seq]) > 0:
            before = self._held[seq]
            self.read(seq, tokens, min(lacking, self._batch.capacity))
            if self._held[seq] == before:
                return

    def guess(self, streams: Sequence[Stream], worth: float) -> float:
        """Guess for each stream, until a further token is less probable than `worth`; the seconds it took.

        The streams' `guesses` stay empty where the draft model fails.
        """
        began = time.monotonic()
        batch = self._batch
        batch.clear()
        going: list[Stream] = []
        for stream in streams:
            unread = [*stream.tokens[self._held[stream.seq] :], stream.last]
            if batch.count + len(unread) <= batch.capacity and self._readable(unread):
                stream.output = batch.add(stream.seq, self._held[stream.seq], unread, output_last=True)
                going.append(stream)
        began_with = going
        while going:
            started = time.monotonic()
            if not self._decode(going[-1].output):
                for stream in began_with:
                    stream.guesses, stream.sure, stream.chances = [], [], []
                    self._context.trim(stream.seq, self._held[stream.seq])
                return time.monotonic() - began
            going = [stream for stream in going if self._extend(stream, worth)]
            self.prices.observe(batch.count, time.monotonic() - started)
            batch.clear()
            for stream in going:
                position = len(stream.tokens) + len(stream.guesses)
                stream.output = batch.add_one(stream.seq, position, stream.guesses[-1])
        for stream in began_with:
            self._held[stream.seq] = len(stream.tokens) + max(1, len(stream.guesses))  # the last guess has not been read
            stream.trust.follow(stream.guesses, stream.sure)
        return time.monotonic() - began

    def _extend(self, stream: Stream, worth: float) -> bool:
        """Add the most probable token; whether a further one is worth its step."""
        token, sure = self._best(stream.output)
        if self._is_end(token):
            return False
        chance = (stream.chances[-1] if stream.chances else 1.0) * stream.trust.chance(sure)
        stream.guesses.append(token)
        stream.sure.append(sure)
        stream.chances.append(chance)
        return len(stream.guesses) < stream.depth and chance * stream.trust.hope > worth

    def _best(self, output: int) -> tuple[int, float]:
        """The most probable token after one of the last batch, and its probability."""
        logits: NDArray[numpy.float32] = self._context.logits(output)[: self._common]
        token = int(logits.argmax())
        return token, 1.0 / float(numpy.exp(logits - logits[token]).sum())

    def _readable(self, tokens: Sequence[int]) -> bool:
        """Whether the draft model knows these tokens: its vocabulary may be padded less."""
        return max(tokens) < self._known

    def _decode(self, last: int) -> bool:
        """Run the batch, and wait for a device that works beside us; whether it was run."""
        status = self._context.decode(self._batch)
        if status == 0:
            self._context.logits(last)
            self._faults = 0
            return True
        self._faults += status != 1  # 1: no room just now
        if self._faults >= MAX_FAULTS and not self.broken:
            print(f"the draft model failed {MAX_FAULTS} times (llama_decode: {status}); it guesses no more", file=sys.stderr, flush=True)
            self.broken = True
        return False


def check_draft(draft: Draft, model: Path) -> tuple[Path, Metadata]:
    """The draft model's file, beside the model's, and what it is. Raises LoadError that names the file."""
    path = model.with_name(draft.file)
    where = f"options.speculation.draft: {path}"
    if not path.is_file():
        raise LoadError("model_missing", f"{where}: no such file; a draft model lies beside the model's file")
    try:
        file = read_model(path)
        found, files = describe(file), files_of(path, file)
    except GgufError as error:
        raise LoadError("model_invalid", f"{where}: {error}") from None
    if found.pooling:
        raise LoadError("model_invalid", f"{where}: it makes embeddings or scores; a draft model makes text")
    try:
        verify_sha256(path, draft.sha256, files[1:])
    except LoadError as error:
        raise LoadError(error.code, f"options.speculation.draft: {error}") from None
    return path, found


def check_pair(model: Model, draft: Model, path: Path) -> None:
    """Raises LoadError where a draft model cannot guess for a model: tokens must mean the same, and wrong guesses must be forgotten."""
    where = f"options.speculation.draft: {path}"
    if not draft.has_decoder or draft.has_encoder or not draft.partial_memory:
        raise LoadError("model_invalid", f"{where}: a draft model must be a decoder whose memory can forget single tokens")
    kinds = [llama_cpp.llama_vocab_type(one.vocab) for one in (model, draft)]
    if kinds[0] != kinds[1] or abs(model.n_vocab - draft.n_vocab) > PADDING:
        sizes = f"{draft.n_vocab} tokens, the model's {model.n_vocab}"
        raise LoadError("model_invalid", f"{where}: its vocabulary is another ({sizes}); a draft model needs the same tokens")
    for token in range(min(model.n_vocab, draft.n_vocab)):
        here, there = (llama_cpp.llama_vocab_get_text(one.vocab, token) for one in (draft, model))
        if here != there:
            texts = [(text or b"").decode("utf-8", "replace")[:40] for text in (here, there)]
            message = f"its vocabulary is another (token {token} is {texts[0]!r}, the model's {texts[1]!r})"
            raise LoadError("model_invalid", f"{where}: {message}; a draft model needs the same tokens")
    if model.bos != draft.bos or model.eos != draft.eos:
        pairs = f"BOS {draft.bos} and EOS {draft.eos}, the model {model.bos} and {model.eos}"
        raise LoadError("model_invalid", f"{where}: it has {pairs}; a draft model needs the same")
