"""What the tasks on texts (embeddings, classification, rerank) share: their request, their way through the batcher."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from engines.onnx.offload import BYTES_PER_COST, CHARACTERS_PER_COST, Offload
from engines.onnx.text import Grouping, TextReader, Tokens
from engines.sidecar.batcher import Batcher
from engines.sidecar.shell import ApiError, Request

MAX_INPUTS = 2048
"""Texts in one request, as OpenAI has it."""
TRUNCATED_HEADER = b"x-gatehouse-truncated"
"""Tokens that were cut off in all inputs together; absent when none were."""

UNKNOWN = re.compile(r"unknown field `([^`]*)`")
Item = str | int | list[int]


class TextRequest(Struct, forbid_unknown_fields=True):
    """Fields that every task on texts has. `input`: a text, a token array, or an array of either."""

    input: str | list[Item]
    model: str = ""
    user: str | None = None
    truncate: bool | None = None


class EmbeddingsRequest(TextRequest):
    """POST /v1/embeddings."""

    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    prompt_name: str | None = None
    input_type: str | None = None


class Read(NamedTuple):
    """The tokens of a request's inputs, and what they count."""

    tokens: list[Tokens]

    @property
    def total(self) -> int:
        """Tokens that the model reads."""
        return sum(len(tokens.ids) for tokens in self.tokens)

    @property
    def dropped(self) -> int:
        """Tokens that were cut off."""
        return sum(tokens.dropped for tokens in self.tokens)

    def truncated(self) -> list[dict[str, int]]:
        """Which inputs were cut, from how many tokens to how many."""
        return [
            {"index": index, "tokens": len(tokens.ids) + tokens.dropped, "used": len(tokens.ids)}
            for index, tokens in enumerate(self.tokens)
            if tokens.dropped
        ]

    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """The response header that reports truncation."""
        return ((TRUNCATED_HEADER, str(self.dropped).encode()),) if self.dropped else ()


R = TypeVar("R", bound=Struct)


class TextTask:
    """Reads a text request and computes one result for each of its inputs."""

    def __init__(self, reader: TextReader, grouping: Grouping, batcher: Batcher, offload: Offload, truncate: bool) -> None:
        self.reader, self.grouping = reader, grouping
        self._batcher, self._offload, self._truncate = batcher, offload, truncate

    async def decode(self, request: Request, decoder: msgspec.json.Decoder[R]) -> R:
        """The typed body. Raises ApiError (400)."""
        try:
            return await self._offload.call(len(request.body) / BYTES_PER_COST, decoder.decode, request.body)
        except msgspec.ValidationError as exc:
            if unknown := UNKNOWN.search(str(exc)):
                name = unknown[1][:64]
                raise ApiError(400, f"the parameter {name} is not supported", param=name, code="unsupported_parameter") from None
            text, _, place = str(exc).partition(" - at `$")
            param = place.strip("`.").split(".")[0].split("[")[0] or None
            raise ApiError(400, f"{param or 'body'}: {text[0].lower()}{text[1:]}", param=param) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise ApiError(400, f"the body is not valid JSON: {exc}", code="invalid_json") from None

    async def read(self, body: TextRequest, prompt: str = "") -> Read:
        """The tokens of all inputs, each text behind the prompt. Raises ApiError naming the input."""
        items = inputs_of(body.input)
        cost = sum(len(item) for item in items) / CHARACTERS_PER_COST
        truncate = self._truncate if body.truncate is None else body.truncate
        single = items[0] is body.input  # not wrapped in an array
        return await self._offload.call(cost, self._read, items, single, truncate, prompt)

    async def read_pairs(self, pairs: Sequence[tuple[str, str]], truncate: bool | None, first: str, what: Callable[[int], str]) -> Read:
        """The tokens of pairs of texts that are read together. first, what: the names of a pair's texts. Raises ApiError naming one."""
        cut = self._truncate if truncate is None else truncate

        def tokens() -> Read:
            found, before, query = [], "", self.reader.encode("")
            for index, (one, two) in enumerate(pairs):
                if one != before:  # in most requests all pairs have one query
                    before, query = one, self.reader.beginning(one, first)[0]
                found.append(self.reader.pair(query, two, cut, what(index)))
            return Read(found)

        return await self._offload.call(sum(len(one) + len(two) for one, two in pairs) / CHARACTERS_PER_COST, tokens)

    def _read(self, items: Sequence[str | list[int]], single: bool, truncate: bool, prompt: str) -> Read:
        tokens = []
        for index, item in enumerate(items):
            what = "input" if single else f"input[{index}]"
            if isinstance(item, str):
                tokens.append(self.reader.read(prompt + item, truncate, what))
            else:
                tokens.append(self.reader.take(item, truncate, what))
        return Read(tokens)

    async def compute(self, request: Request, read: Read) -> list[Any]:
        """One result for each input, in the request's order. Texts of similar length run together."""
        order = sorted(range(len(read.tokens)), key=lambda index: len(read.tokens[index].ids))
        units = [self.grouping.unit(read.tokens[index]) for index in order]
        found = await self._batcher.submit(units, priority=request.priority, deadline=request.deadline, request=request)
        results: list[Any] = [None] * len(order)
        for index, result in zip(order, found, strict=True):
            results[index] = result
        return results


def has_texts(given: str | list[Item]) -> bool:
    """Whether inputs are texts, and not tokens that the client made."""
    return isinstance(given, str) or (bool(given) and isinstance(given[0], str))


def inputs_of(given: str | list[Item]) -> list[str | list[int]]:
    """The inputs of a request as texts or token arrays. Raises ApiError for none, too many, empty or mixed ones."""
    if isinstance(given, str):
        given = [given]
    if not given:
        raise ApiError(400, "input: expected at least one text, received an empty array", param="input")
    if all(isinstance(item, int) for item in given):
        return [given]  # type: ignore[list-item] # a single token array: every item is an int
    if len(given) > MAX_INPUTS:
        raise ApiError(400, f"input: expected at most {MAX_INPUTS} inputs, received {len(given)}", param="input")
    kind = type(given[0])
    for index, item in enumerate(given):
        if type(item) is not kind or isinstance(item, int):
            raise ApiError(
                400, f"input[{index}]: expected all inputs to be texts or all to be token arrays, received a mixture", param="input"
            )
        if not item:
            raise ApiError(400, f"input[{index}]: expected a text or a token array that is not empty, received an empty one", param="input")
    return given  # type: ignore[return-value] # ints were refused above
