"""Texts for models that read tokens: tokenising with `tokenizer.json`, cutting to the model's length, padding a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer

from engines.onnx.session import NUMPY, Array, Session
from engines.sidecar.batcher import Key, Unit
from engines.sidecar.loading import LoadError
from engines.sidecar.shell import ApiError

BUCKETS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Texts share a batch with those that fall in the same interval of lengths, so that padding at most doubles the work."""
IDS, MASK, TYPES, POSITIONS = "input_ids", "attention_mask", "token_type_ids", "position_ids"
KNOWN_INPUTS = frozenset({IDS, MASK, TYPES, POSITIONS})
DEFAULT_MAX_LENGTH = 512
LONG_TEXT = 2048
"""Characters."""
BEGINNING = 8192
"""Characters of a text that are always tokenized, so that what is said of a text that is cut is exact."""
CHARACTERS_PER_TOKEN = 8
"""More than tokens have in most languages."""
MARGIN = 64
"""Tokens behind the last that is kept: where a text was cut before it was tokenized, the tokens at its end are not those of the whole."""
LONGEST = 512 * 1024
"""Bytes of a text of which all tokens are wanted, or of all such texts of a request. A token for each, the worst there is, holds the
interpreter for 40 ms."""
LEAST_TOKENS = 256
"""Tokens of a batch that keep a processor's cores busy: more at once save nothing there, and a batch has them however long they take."""


class Tokens(NamedTuple):
    """One text as the model reads it. `dropped` tokens were cut off behind the model's length."""

    ids: Array
    types: Array | None
    dropped: int


class LongText(NamedTuple):
    """A whole text in windows that a graph can read, each with special tokens around it. offsets: of the text's own tokens, in characters.
    word_ids: the word that each belongs to. starts: the first own token of each window. before: special tokens in front
    of a window; around: in all."""

    offsets: list[tuple[int, int]]
    word_ids: list[int | None]
    windows: list[Tokens]
    starts: list[int]
    before: int
    around: int

    def words(self) -> Iterator[tuple[int, int]]:
        """The first and the last token of each word."""
        first = 0
        for number in range(1, len(self.word_ids) + 1):
            if number == len(self.word_ids) or self.word_ids[number] is None or self.word_ids[number] != self.word_ids[first]:
                yield first, number - 1
                first = number

    def joined(self, results: Sequence[Array]) -> Array:
        """One row for each own token, from one array [tokens, ...] for each window: where windows overlap, each gives its nearer half."""
        total = len(self.offsets)
        found = np.empty((total, *results[0].shape[1:]), results[0].dtype)
        begin = 0
        for number, (start, rows) in enumerate(zip(self.starts, results, strict=True)):
            if number + 1 < len(self.starts):
                following = self.starts[number + 1]
                reach = start + len(rows) - self.around
                end = (following + reach) // 2
            else:
                end = total
            found[begin:end] = rows[self.before + begin - start : self.before + end - start]
            begin = end
        return found


class Frame(NamedTuple):
    """The special tokens that a tokenizer puts before a text (or the first of two), between both, and behind. kinds: the type ids of
    what is before, the first text, what is between, the second text and what is behind."""

    before: list[int]
    between: list[int]
    after: list[int]
    kinds: list[int]

    def around(self, first: list[int], second: list[int]) -> tuple[list[int], list[int]]:
        """(ids, type ids) of texts in their frame."""
        parts = (self.before, first, self.between, second, self.after)
        types = [kind for part, kind in zip(parts, self.kinds, strict=True) for _ in part]
        return [token for part in parts for token in part], types


def frame_of(tokenizer: Tokenizer, pair: bool) -> Frame | None:
    """The frame, learned from one probe and tried on another; None for a tokenizer that does something else. What is cut is framed
    with it: the tokenizers package would also frame what was cut off, for two texts in all combinations, which takes gigabytes for two
    of 64 KiB."""
    made: Frame | None = None
    for texts in (("a", "b a"), ("b a b a", "a")):
        one, two = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        found = tokenizer.post_process(one, two if pair else None, True)
        ids, types = found.ids, found.type_ids
        if made is None:
            own = [number for number, special in enumerate(found.special_tokens_mask) if not special]
            if not one.ids or not two.ids or len(own) != len(one.ids) + (len(two.ids) if pair else 0):
                return None
            edges = [own[0], own[len(one.ids) - 1] + 1]
            edges += [own[len(one.ids)], own[-1] + 1] if pair else edges[1:] * 2
            parts = [slice(start, end) for start, end in zip([0, *edges], [*edges, len(ids)], strict=True)]
            kinds = [types[part][0] if types[part] else 0 for part in parts]
            made = Frame(ids[parts[0]], ids[parts[2]], ids[parts[4]], kinds)
        if made.around(one.ids, two.ids if pair else []) != (ids, types):
            return None
    return made


def bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _bounded(size: int, what: str) -> None:
    if size > LONGEST:
        raise ApiError(400, f"{what}: expected at most {LONGEST} bytes, received {size}", param=what)


class TextReader:
    """Turns texts and token lists into batches for one graph. Thread-safe: the tokenizer is never changed after construction."""

    def __init__(self, path: Path, session: Session, max_length: int | None) -> None:
        try:
            self.tokenizer = Tokenizer.from_file(str(path))
        except Exception as exc:  # noqa: BLE001 - boundary: the tokenizers package raises bare Exception for an unusable file
            raise LoadError("model_invalid", f"{path}: {exc}") from None
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()  # done here, where what was cut is counted
        self.max_length = max_length or DEFAULT_MAX_LENGTH
        self.vocabulary = self.tokenizer.get_vocab_size(with_added_tokens=True)
        self._special = self.tokenizer.num_special_tokens_to_add(False)
        if self.max_length <= self._special:
            raise LoadError("invalid_options", f"max_length {self.max_length} leaves no room beside {self._special} special tokens")
        self._types = {port.name: NUMPY[port.datatype] for port in session.inputs}
        unknown = sorted(set(self._types) - KNOWN_INPUTS)
        if unknown or IDS not in self._types:
            raise LoadError("model_invalid", f"{path.parent}: a graph that reads {', '.join(self._types)} is not a text model")
        self._pad = self._padding()
        self._frame, self._pair_frame = frame_of(self.tokenizer, False), frame_of(self.tokenizer, True)

    def _padding(self) -> int:
        for token in ("[PAD]", "<pad>", "<|endoftext|>", "<|padding|>"):
            found = self.tokenizer.token_to_id(token)
            if found is not None:
                return int(found)
        return 0

    def encode(self, text: str, special: bool = False) -> Encoding:
        """A text's tokens. Of a long one without the interpreter's lock, which only the call for several texts gives up: the event
        loop goes on meanwhile."""
        found: Encoding
        if len(text) <= LONG_TEXT:
            found = self.tokenizer.encode(text, add_special_tokens=special)
        else:
            found = self.tokenizer.encode_batch([text], add_special_tokens=special)[0]
        return found

    def beginning(self, text: str, what: str) -> tuple[Encoding, bool]:
        """The tokens of a text, of a long one at least as many as the model reads and some more; and whether these are all. What is cut
        off need not be tokenized, and each token is memory that is freed with the interpreter held. Raises ApiError for a long text that
        has few tokens where it begins (a single word of megabytes)."""
        size = max(BEGINNING, CHARACTERS_PER_TOKEN * self.max_length)
        most = max(size, LONGEST)
        while size < len(text):
            found = self.encode(text[:size])
            if len(found) >= self.max_length + MARGIN:
                return found, False
            if size == most:
                raise ApiError(400, f"{what}: its first {most} characters have only {len(found)} tokens", param=what)
            size = min(size * 4, most)
        return self.encode(text), True

    def whole(self, text: str, what: str) -> str:
        """A text of which all tokens are wanted. Raises ApiError when it is too long for that."""
        _bounded(bytes_of(text), what)
        return text

    def read(self, text: str, truncate: bool, what: str) -> Tokens:
        """Tokens of a text, special ones included. Raises ApiError when it is too long and may not be cut."""
        (encoding, exact), frame = self.beginning(text, what), self._frame
        room = self.max_length - self._special
        dropped = self._excess(len(encoding), room, truncate and frame is not None, what, exact)
        if dropped and frame is not None:
            return self._tokens(*frame.around(encoding.ids[:room], []), dropped, what)
        whole = self.tokenizer.post_process(encoding, None, True)
        return self._tokens(whole.ids, whole.type_ids, 0, what)

    def pair(self, query: Encoding, document: str, truncate: bool, what: str) -> Tokens:
        """Tokens of two texts that the model reads together; those of the query are its own (`beginning`). The document is cut first, to no
        less than half of the room; then the query. Raises ApiError when they are too long together and may not be cut."""
        (second, exact), frame = self.beginning(document, what), self._pair_frame
        room = self.max_length - self.tokenizer.num_special_tokens_to_add(True)
        exact = exact and len(query) < self.max_length + MARGIN
        dropped = self._excess(len(query) + len(second), room, truncate and frame is not None, what, exact)
        if dropped and frame is not None:
            kept = min(len(query), max(room - len(second), room - room // 2))
            return self._tokens(*frame.around(query.ids[:kept], second.ids[: room - kept]), dropped, what)
        whole = self.tokenizer.post_process(query, second, True)
        return self._tokens(whole.ids, whole.type_ids, 0, what)

    def _tokens(self, ids: list[int], types: list[int], dropped: int, what: str) -> Tokens:
        if not ids:
            raise ApiError(400, f"{what}: expected a text of at least one token, received none", param=what)
        kinds = np.asarray(types, self._types[TYPES]) if TYPES in self._types else None
        return Tokens(np.asarray(ids, self._types[IDS]), kinds, dropped)

    def all_windows(self, texts: Sequence[str], what: str) -> list[LongText]:
        """Several texts, whole. Raises ApiError when they are too long for that."""
        _bounded(sum(map(bytes_of, texts)), what)
        return [self.windows(text) for text in texts]

    def windows(self, text: str) -> LongText:
        """All of a text, in as many windows as it needs; each shares a quarter with the next."""
        encoding = self.encode(text)
        room = self.max_length - self._special
        step = max(1, room - room // 4)
        before, behind = self._around()
        windows, starts = [], []
        for start in range(0, len(encoding.ids), step):
            ids = np.asarray([*before, *encoding.ids[start : start + room], *behind], self._types[IDS])
            windows.append(Tokens(ids, np.zeros(len(ids), self._types[TYPES]) if TYPES in self._types else None, 0))
            starts.append(start)
            if start + room >= len(encoding.ids):
                break
        return LongText(encoding.offsets, encoding.word_ids, windows, starts, len(before), len(before) + len(behind))

    def _around(self) -> tuple[list[int], list[int]]:
        """The special tokens before and behind a text."""
        encoding = self.tokenizer.encode("a")
        own = [number for number, special in enumerate(encoding.special_tokens_mask) if not special]
        return (encoding.ids[: own[0]], encoding.ids[own[-1] + 1 :]) if own else ([], encoding.ids)

    def take(self, ids: Sequence[int], truncate: bool, what: str) -> Tokens:
        """Tokens that the client made itself, used as they are."""
        if not ids:
            raise ApiError(400, f"{what}: expected at least one token, received none", param=what)
        if min(ids) < 0 or max(ids) >= self.vocabulary:
            wrong = next(token for token in ids if not 0 <= token < self.vocabulary)
            raise ApiError(400, f"{what}: expected tokens from 0 to {self.vocabulary - 1}, received {str(wrong)[:40]}", param=what)
        dropped = self._excess(len(ids), self.max_length, truncate, what)
        kept = np.asarray(ids[: self.max_length], self._types[IDS])
        return Tokens(kept, np.zeros(len(kept), self._types[TYPES]) if TYPES in self._types else None, dropped)

    def _excess(self, length: int, room: int, truncate: bool, what: str, exact: bool = True) -> int:
        if length > room and not truncate:
            message = f"{what}: expected at most {room} tokens, received {'' if exact else 'at least '}{length}"
            raise ApiError(400, message, code="context_length_exceeded", param=what)
        return max(0, length - room)

    def feeds(self, batch: Sequence[Tokens]) -> tuple[dict[str, Array], Array]:
        """(the graph's inputs, padded to the longest of the batch; the mask as bool [rows, length])."""
        lengths = np.fromiter((len(tokens.ids) for tokens in batch), np.int64, len(batch))
        width = int(lengths.max())
        mask = np.arange(width) < lengths[:, None]
        ids = np.full(mask.shape, self._pad, self._types[IDS])
        ids[mask] = np.concatenate([tokens.ids for tokens in batch])
        feeds = {IDS: ids}
        if MASK in self._types:
            feeds[MASK] = mask.astype(self._types[MASK])
        if TYPES in self._types:
            feeds[TYPES] = np.zeros(mask.shape, self._types[TYPES])
            feeds[TYPES][mask] = np.concatenate([tokens.types for tokens in batch if tokens.types is not None])
        if POSITIONS in self._types:
            feeds[POSITIONS] = np.broadcast_to(np.arange(width), mask.shape).astype(self._types[POSITIONS])
        return feeds, mask


class Grouping(NamedTuple):
    """How texts may share batches. `mode`: padded (by length bucket), exact (equal lengths only), off."""

    mode: str
    max_batch: int
    max_tokens: int

    def unit(self, tokens: Tokens) -> Unit:
        """A unit of the batcher for one text."""
        length = len(tokens.ids)
        if self.mode == "off":
            return Unit(Key(("text", length), 1), tokens)
        bucket = length if self.mode == "exact" else next((size for size in BUCKETS if length <= size), length)
        return Unit(Key(("text", bucket), max(1, min(self.max_batch, self.max_tokens // bucket)), max(1, LEAST_TOKENS // bucket)), tokens)


def choose_grouping(run: Any, reader: TextReader, max_batch: int, max_tokens: int, tolerance: float) -> Grouping:
    """Find out by running the model whether its rows are independent of one another and of padding.

    `run(batch of Tokens)` gives one array a text. A model with, say, dynamically quantised activations gives other numbers in
    another company; such a model is not batched unless the options insist.
    """
    short, long = (reader.read(text, True, "probe") for text in ("a", "a rather longer text with several more words in it"))
    alone = [run([tokens])[0] for tokens in (short, long)]
    if max_batch > 1 and _close(run([short, long]), alone, tolerance):
        return Grouping("padded", max_batch, max_tokens)
    other = reader.read("b", True, "probe")
    if max_batch > 1 and len(other.ids) == len(short.ids) and _close(run([short, other]), [alone[0], run([other])[0]], tolerance):
        return Grouping("exact", max_batch, max_tokens)
    return Grouping("off", 1, max_tokens)


def _close(found: Sequence[Array], expected: Sequence[Array], tolerance: float) -> bool:
    return all(np.allclose(one, two, rtol=tolerance, atol=tolerance) for one, two in zip(found, expected, strict=True))
