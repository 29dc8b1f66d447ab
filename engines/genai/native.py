"""The only caller of onnxruntime-genai: a model on one device, and a sequence that is generated with it.

The library's own tokenizer is used by guidance alone. It releases Python's lock while it computes; a sequence belongs to one thread at a
time, and several threads may each run one of the same model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy
import onnxruntime_genai
from numpy.typing import NDArray

from engines.chat.sampling import SamplingParams, TopLogprobs, logprobs_of
from engines.genai.folder import GenaiFolder
from engines.sidecar.loading import LoadError

QUIET = 4
"""Log severity `fatal`: the runtime's messages quote values of tensors, which must not be logged."""
SEEDS = 2**31 - 1
_TRIED = [1, 2, 3, 4, 5, 6, 7, 8]
COLDEST = 1e-6
"""Below this temperature the most likely token is taken."""
_LEAST = -1e30
"""The logit, in a guided sequence, of a token that a bias forbids. It is above that of tokens that the grammar forbids, so that the token
is chosen only if nothing else may follow. If all were minus infinity, chance would choose."""


class GuidanceError(Exception):
    """The schema cannot be followed."""


class GenaiModel:
    """A loaded model. Thread-safe."""

    def __init__(self, folder: GenaiFolder, device: str, threads: int) -> None:
        """Raises LoadError. device: `cpu` or `cuda:0`."""
        self.eos = folder.eos
        onnxruntime_genai.disable_telemetry_events()
        if device != "cpu" and not (device.startswith("cuda") and onnxruntime_genai.is_cuda_available()):
            raise LoadError("device_unavailable", f"{device}: this package of onnxruntime-genai was built without support for this device")
        session: dict[str, Any] = {"log_severity_level": QUIET, "session.intra_op.allow_spinning": "0", "inter_op_num_threads": 1}
        if threads:
            session["intra_op_num_threads"] = threads
        try:
            config = onnxruntime_genai.Config(str(folder.root))
            config.clear_providers()  # the folder says where its author computed, not where this engine does
            if device != "cpu":
                config.append_provider("cuda")
            config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
            self.handle = onnxruntime_genai.Model(config)
        except (RuntimeError, ValueError) as exc:
            code = "insufficient_memory" if "alloc" in str(exc) else "model_invalid"
            raise LoadError(code, f"{folder.graph}: {exc}") from None

    def sequence(self, params: SamplingParams, longest: int, *, ignore_eos: bool = False) -> Text:
        """A new sequence of at most so many tokens, the prompt's among them. Raises GuidanceError, or RuntimeError."""
        return Text(self, params, longest, ignore_eos)

    def rewinds(self) -> bool:
        """Whether a sequence can go back and forget tokens: tried with a few. Models that keep more than keys and values (recurrent ones,
        windows) cannot. Raises RuntimeError where the model cannot be run."""
        text = self.sequence(SamplingParams(temperature=0), 2 * len(_TRIED), ignore_eos=True)
        text.read(_TRIED)
        before, first = text.logits(), [text.next()[0] for _ in _TRIED[1:]]
        try:
            text.again(SamplingParams(temperature=0), len(_TRIED) // 2, ignore_eos=True)
            text.read(_TRIED[len(_TRIED) // 2 :])
            after, second = text.logits(), [text.next()[0] for _ in _TRIED[1:]]
        except RuntimeError:
            return False
        return first == second and bool(numpy.allclose(before, after, rtol=1e-2, atol=1e-2))


def searched(params: SamplingParams) -> dict[str, Any]:
    """What the library itself does to choose a token; the same for all of a sequence."""
    greedy = params.temperature < COLDEST or params.top_k == 1 or params.top_p <= 0
    options: dict[str, Any] = {"do_sample": not greedy, "repetition_penalty": params.repeat_penalty}
    if not greedy:
        options |= {"temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k}
    return options


class Text:
    """One sequence: `read` the prompt, then `next` as long as it is not `done`. tokens: of the prompt and of what followed."""

    def __init__(self, model: GenaiModel, params: SamplingParams, longest: int, ignore_eos: bool) -> None:
        settings = onnxruntime_genai.GeneratorParams(model.handle)
        settings.set_search_options(
            max_length=longest, min_length=0, batch_size=1, num_beams=1, num_return_sequences=1, no_repeat_ngram_size=0,
            random_seed=params.seed % SEEDS, **searched(params),
        )  # fmt: skip
        self.guided = params.grammar is not None
        self.tokens: list[int] = []
        self._eos = model.eos
        try:
            if params.grammar is not None:
                settings.set_guidance("json_schema" if params.grammar.startswith("{") else "lark_grammar", params.grammar)
            self._generator = onnxruntime_genai.Generator(model.handle, settings)
        except RuntimeError as exc:
            if self.guided:
                raise GuidanceError(str(exc).partition("\n")[0][:300]) from None
            raise
        self._set(params, ignore_eos)

    def again(self, params: SamplingParams, kept: int, *, ignore_eos: bool = False) -> None:
        """Forgets all but the first so many tokens and becomes another request's, which `searched` alike. Raises RuntimeError."""
        self._generator.rewind_to(kept)
        del self.tokens[kept:]
        self._set(params, ignore_eos)

    def _set(self, params: SamplingParams, ignore_eos: bool) -> None:
        self._params = params
        self._bias = list(params.logit_bias) + [(token, -math.inf) for token in self._eos if ignore_eos and not self.guided]
        self._banned = frozenset(token for token, value in self._bias if value == -math.inf) if self.guided else frozenset[int]()
        self._counts: dict[int, int] = {}
        self._changes = bool(self._bias or params.min_p > 0 or params.presence_penalty or params.frequency_penalty)

    @property
    def done(self) -> bool:
        """Whether nothing may follow."""
        return bool(self._generator.is_done())

    @property
    def reusable(self) -> int:
        """How many of the first tokens another request can start from: the last one may not have been computed, and the library goes back
        by one of the others at least."""
        return min(int(self._generator.token_count()), len(self.tokens)) - 2

    def read(self, tokens: Sequence[int]) -> None:
        """A part of the prompt. Raises RuntimeError."""
        self._generator.append_tokens(numpy.asarray(tokens, numpy.int32))
        self.tokens += tokens

    def logits(self) -> NDArray[numpy.float32]:
        """The logits of the next token. Raises RuntimeError."""
        given = self._generator.get_logits()
        last: NDArray[numpy.float32] = given.reshape(-1)[-given.shape[-1] :].astype(numpy.float32)
        return last

    def next(self, logprobs: int | None = None) -> tuple[int, TopLogprobs | None]:
        """The next token, and log-probabilities if so many are wanted. Raises GuidanceError, or RuntimeError."""
        try:
            return self._next(logprobs)
        except RuntimeError as exc:
            if self.guided:  # a bias that forbids all that may follow, a grammar that grows too large: the request's fault
                raise GuidanceError(str(exc).partition("\n")[0][:300]) from None
            raise

    def _next(self, logprobs: int | None) -> tuple[int, TopLogprobs | None]:
        before: NDArray[numpy.float32] | None = None
        if self._changes or logprobs is not None:
            given = self._generator.get_logits()
            before = given.reshape(-1)[-given.shape[-1] :].astype(numpy.float32)
            if self._changes:
                self._generator.set_logits(self._changed(before).reshape(given.shape))
        self._generator.generate_next_token()
        token = int(self._generator.get_next_tokens()[0])
        if token in self._banned:
            raise GuidanceError("logit_bias forbids all that may follow")
        self.tokens.append(token)
        self._counts[token] = self._counts.get(token, 0) + 1
        return token, logprobs_of(before, token, logprobs) if before is not None and logprobs is not None else None

    def _changed(self, logits: NDArray[numpy.float32]) -> NDArray[numpy.float32]:
        """The logits with what the library does not do: bias, presence and frequency of what was generated, least probability."""
        params, changed = self._params, logits.copy()
        for token, value in self._bias:
            changed[token] = changed[token] + value if token not in self._banned else _LEAST
        if params.presence_penalty or params.frequency_penalty:
            for token, count in self._counts.items():
                changed[token] -= params.presence_penalty + params.frequency_penalty * count
        if params.min_p > 0:
            changed[changed < changed.max() + math.log(params.min_p)] = -math.inf
        return changed
