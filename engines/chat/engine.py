"""A loaded model that generates, as the OpenAI paths see it, and the preparation of requests in a thread beside the event loop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engines.chat.conversation import Converser, Vocabulary
from engines.chat.defaults import Defaults
from engines.chat.gbnf import Refusals
from engines.chat.generation import Generation
from engines.chat.sampling import SamplingParams
from engines.sidecar.shell import ApiError, Request

T = TypeVar("T")
MAXIMUM = "this model's maximum context length is"
"""Words of OpenAI's and vLLM's by which clients recognise a prompt that is too long, and shorten it or turn to another model."""
MOST_CHARACTERS = 128
"""The longest token that counts: vocabularies have tokens of a hundred spaces."""


@dataclass(slots=True)
class Prompted:
    """One prompt's share of a request: its tokens and how many choices to generate from it."""

    tokens: list[int]
    choices: int
    max_tokens: int


@dataclass(slots=True, kw_only=True)
class TextEngine(ABC):
    """What the handlers work with. `context_size` is the most tokens of one request, prompt and answer together; `most` the sequences that
    can run or wait at once."""

    name: str
    vocabulary: Vocabulary
    converser: Converser
    defaults: Defaults
    context_size: int
    executor: ThreadPoolExecutor
    most: int
    grammars: Refusals = field(default_factory=Refusals)
    adapters: tuple[str, ...] = ()

    @abstractmethod
    def check_now(self, count: int) -> None:
        """Raises 503 if `count` more sequences do not fit now. Runs on the loop."""

    @abstractmethod
    def build(
        self, request: Request, prompts: Sequence[Prompted], params: SamplingParams, *, stops: tuple[str, ...], seeded: bool,
        logprobs: int | None = None, ignore_eos: bool = False, score_prompt: bool = False, markers: Mapping[int, bytes] | None = None,
        adapter: str = "",
    ) -> Generation[Any]:  # fmt: skip
        """The jobs of a request, not submitted yet. Blocks. Raises ApiError 400 for a bad grammar, or a parameter that this runtime does
        not support."""

    @abstractmethod
    def discard(self, generation: Generation[Any]) -> None:
        """Free what `build` made for a request that is not submitted."""

    async def prepare(self, work: Callable[[], T], undo: Callable[[T], None]) -> T:
        """Run blocking work in the executor. If the caller is cancelled meanwhile, `undo` receives the result."""
        future = asyncio.get_running_loop().run_in_executor(self.executor, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: undo(done.result()) if not done.cancelled() and done.exception() is None else None)
            raise

    def check_room(self, count: int, param: str) -> None:
        """Raises 400 if a request asks for more sequences than can ever run or wait, 503 if they do not fit now. Runs on the loop."""
        if count > self.most:
            raise ApiError(400, f"{param}: {count} sequences in one request; this engine takes at most {self.most}", param=param)
        self.check_now(count)

    def check_text(self, characters: int, param: str) -> None:
        """Raises ApiError 400 for a text that cannot fit into the context, however long its tokens are, before it is read: its tokens would
        take forty times its size."""
        if characters > MOST_CHARACTERS * self.context_size:
            message = f"{MAXIMUM} {self.context_size} tokens; the prompt has {characters} characters"
            raise ApiError(400, message, param=param, code="context_length_exceeded")

    def check_length(self, prompt: int, max_tokens: int | None, param: str) -> int:
        """The most tokens to generate. Raises ApiError 400 if prompt and answer do not fit into the context."""
        limit = self.context_size
        if prompt >= limit:
            message = f"{MAXIMUM} {limit} tokens, prompt and answer together; the prompt has {prompt} tokens"
            raise ApiError(400, message, param=param, code="context_length_exceeded")
        if max_tokens is None:
            return limit - prompt
        if prompt + max_tokens > limit:
            message = f"{MAXIMUM} {limit} tokens; {prompt} prompt tokens and max_tokens {max_tokens} are more"
            raise ApiError(400, message, param="max_tokens", code="context_length_exceeded")
        return max_tokens


def adapter_of(model: str, known: Iterable[str]) -> str:
    """The adapter that a request's `model` names behind the first colon; empty: none. Raises ApiError 404 for one that is not loaded."""
    name = model.partition(":")[2]
    names = tuple(known)
    if not name or not names:
        return ""
    if name not in names:
        message = f"model: this engine has no adapter {name[:64]!r}; it has: {', '.join(names)}"
        raise ApiError(404, message, param="model", code="model_not_found")
    return name
