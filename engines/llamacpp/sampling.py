"""Choosing the next token: llama.cpp's sampler chain for one sequence, grammars, log-probabilities.

Order of the chain: logit bias, penalties, top-k, typical-p, top-p, min-p, temperature, draw (llama.cpp's own order).
Seeds: the draws of a sequence come from its own generator, so equal seeds and equal logits give equal text. Logits depend in
their last bits on what else is in the batch (llama.cpp picks kernels by batch size), so that text may differ between a busy
and an idle engine where two tokens are almost equally likely; temperature 0 is affected the same way.
"""

from __future__ import annotations

import ctypes
import math
import time
from typing import Any

import llama_cpp
import numpy
from numpy.typing import NDArray

from engines.chat.sampling import SamplingParams
from engines.llamacpp.native import Context, Model

MAX_LAST_TOKENS = 4096
"""Penalties look at no more tokens than this."""
COLDEST = 1e-6
"""Below this temperature the most likely token is taken: dividing by less, logits would overflow."""
GRAMMAR_BURST, GRAMMAR_SHARE = 1.0, 0.05
"""Seconds of the decode thread that a sequence's grammar may use at once, and per token in the long run: what costs more would delay
everybody's next step."""
_CANDIDATE = numpy.dtype([("id", numpy.int32), ("logit", numpy.float32), ("p", numpy.float32)])


class GrammarError(Exception):
    """The grammar does not parse, the vocabulary cannot continue it, or it costs too much."""


class Sampler:
    """The chain of one sequence. Made anywhere, used and closed by the decode thread."""

    def __init__(self, model: Model, params: SamplingParams, prompt: list[int]) -> None:
        self._n_vocab = model.n_vocab
        self._grammar = _grammar(model, params.grammar)  # first: it may fail
        self._chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        self._candidates: NDArray[Any] | None = None
        self._owed = 0.0
        self._greedy = params.temperature < COLDEST and not (params.logit_bias or _penalises(params))
        """Whether the largest logit decides alone: that needs no chain, which first copies the vocabulary."""
        if params.logit_bias:
            self._add_bias(params.logit_bias)
        self._add_penalties(params, prompt)
        add = llama_cpp.llama_sampler_chain_add
        if params.temperature < COLDEST:
            add(self._chain, llama_cpp.llama_sampler_init_greedy())
            return
        if params.top_k > 0:
            add(self._chain, llama_cpp.llama_sampler_init_top_k(params.top_k))
        if params.typical_p < 1:
            add(self._chain, llama_cpp.llama_sampler_init_typical(params.typical_p, 1))
        if params.top_p < 1:
            add(self._chain, llama_cpp.llama_sampler_init_top_p(params.top_p, 1))
        if params.min_p > 0:
            add(self._chain, llama_cpp.llama_sampler_init_min_p(params.min_p, 1))
        add(self._chain, llama_cpp.llama_sampler_init_temp(params.temperature))
        add(self._chain, llama_cpp.llama_sampler_init_dist(params.seed))

    @property
    def constrained(self) -> bool:
        """Whether a grammar decides what may follow."""
        return self._grammar is not None

    def _add_bias(self, bias: tuple[tuple[int, float], ...]) -> None:
        items = (llama_cpp.llama_logit_bias * len(bias))()
        for item, (token, value) in zip(items, bias, strict=True):
            item.token, item.bias = token, value
        llama_cpp.llama_sampler_chain_add(self._chain, llama_cpp.llama_sampler_init_logit_bias(self._n_vocab, len(bias), items))

    def _add_penalties(self, params: SamplingParams, prompt: list[int]) -> None:
        """Presence and frequency count what was generated (OpenAI); the repeat penalty sees the prompt too (llama.cpp)."""
        if params.presence_penalty or params.frequency_penalty:
            penalties = llama_cpp.llama_sampler_init_penalties(
                self._n_vocab, MAX_LAST_TOKENS, 1.0, params.frequency_penalty, params.presence_penalty
            )  # fmt: skip
            llama_cpp.llama_sampler_chain_add(self._chain, penalties)
        if params.repeat_penalty != 1.0 and params.repeat_last_n > 0:
            repeat = llama_cpp.llama_sampler_init_penalties(self._n_vocab, params.repeat_last_n, params.repeat_penalty, 0.0, 0.0)
            for token in prompt[-params.repeat_last_n :]:
                llama_cpp.llama_sampler_accept(repeat, token)
            llama_cpp.llama_sampler_chain_add(self._chain, repeat)

    def sample(self, context: Context, index: int) -> int:
        """The next token from the logits at `index` of the last batch. Raises GrammarError if nothing can follow."""
        if self._grammar is None:
            if self._greedy:
                return int(context.logits(index).argmax())
            return int(llama_cpp.llama_sampler_sample(self._chain, context.handle, index))
        logits = context.logits(index)
        started = time.thread_time()
        token = self._draw(logits, constrained=False)
        if not self._allowed(token):  # rare, and constraining the whole vocabulary first costs milliseconds
            token = self._draw(logits, constrained=True)
            if not self._allowed(token):  # accepting it would abort the process
                raise GrammarError("the vocabulary has no token that continues the grammar")
        llama_cpp.llama_sampler_accept(self._grammar, token)
        llama_cpp.llama_sampler_accept(self._chain, token)
        self._owed = max(0.0, self._owed + time.thread_time() - started - GRAMMAR_SHARE)
        if self._owed > GRAMMAR_BURST:
            raise GrammarError("the grammar is too ambiguous: following it takes too long")
        return token

    def _draw(self, logits: NDArray[numpy.float32], *, constrained: bool) -> int:
        if self._candidates is None:
            self._candidates = numpy.zeros(self._n_vocab, _CANDIDATE)
        candidates = self._candidates
        candidates["id"] = numpy.arange(self._n_vocab, dtype=numpy.int32)
        candidates["logit"] = logits
        view = _array(candidates)
        if constrained:
            llama_cpp.llama_sampler_apply(self._grammar, ctypes.byref(view))
        llama_cpp.llama_sampler_apply(self._chain, ctypes.byref(view))
        return int(candidates["id"][max(view.selected, 0)])

    def _allowed(self, token: int) -> bool:
        one = numpy.array([(token, 1.0, 0.0)], _CANDIDATE)
        llama_cpp.llama_sampler_apply(self._grammar, ctypes.byref(_array(one)))
        return math.isfinite(float(one["logit"][0]))

    def close(self) -> None:
        """Free the chain."""
        if self._chain is not None:
            llama_cpp.llama_sampler_free(self._chain)
            self._chain = None
        if self._grammar is not None:
            llama_cpp.llama_sampler_free(self._grammar)
            self._grammar = None


def _penalises(params: SamplingParams) -> bool:
    repeats = params.repeat_penalty != 1.0 and params.repeat_last_n > 0
    return repeats or params.presence_penalty != 0 or params.frequency_penalty != 0


def _array(candidates: NDArray[Any]) -> Any:
    view = llama_cpp.llama_token_data_array()
    view.data = candidates.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data))
    view.size = len(candidates)
    view.selected = -1
    view.sorted = False
    return view


def _grammar(model: Model, text: str | None) -> Any:
    if text is None:
        return None
    grammar = llama_cpp.llama_sampler_init_grammar(model.vocab, text.encode(), b"root")
    if not grammar:
        raise GrammarError("the grammar does not parse")
    return grammar
