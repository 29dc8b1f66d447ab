"""The thin layer over llama.cpp's C interface: a model, a context, a batch. Besides `sampling`, the only module that calls llama_cpp's
functions. It decides nothing.

Threads: `Model.tokenize` and `Model.piece` only read the vocabulary and may run in any thread; `Context` belongs to the decode thread.
The C calls release the GIL.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy
from numpy.typing import NDArray

PORTION = 1 << 16
"""Tokens of a text that are taken over in one go."""
_LOG_LEVEL_ERROR = 4
_LOG_KEEP = 20
_CACHE_TYPES = {"f16": llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0, "q4_0": llama_cpp.GGML_TYPE_Q4_0}


class NativeError(Exception):
    """llama.cpp refused; the message ends with what it logged."""


class NativeLog:
    """Diverts llama.cpp's log from standard error and keeps the last errors, which say why a load failed."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_LOG_KEEP)
        self._callback = llama_cpp.llama_log_callback(self._write)
        # llama.cpp keeps the pointer for as long as the process lives: a collected callback would end the process at the next line.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._callback))
        llama_cpp.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _write(self, level: int, text: bytes, user_data: Any) -> None:
        if level >= _LOG_LEVEL_ERROR and (line := text.decode("utf-8", "replace").strip()):
            self._lines.append(line[:500])

    def last(self) -> str:
        """The first error since the last call (the cause of those after it), or an empty string."""
        line = self._lines[0] if self._lines else ""
        self._lines.clear()
        return line


class Model:
    """A loaded GGUF model and its vocabulary."""

    def __init__(
        self, path: str, log: NativeLog, *, gpu_layers: int, use_mmap: bool, use_mlock: bool, split: Sequence[float] = (),
        several: bool = False,
    ) -> None:  # fmt: skip
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        modes = {
            (False, False): llama_cpp.LLAMA_LOAD_MODE_NONE,
            (True, False): llama_cpp.LLAMA_LOAD_MODE_MMAP,
            (False, True): llama_cpp.LLAMA_LOAD_MODE_MLOCK,
            (True, True): llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK,
        }
        params.load_mode = modes[use_mmap, use_mlock]
        params.split_mode = llama_cpp.LLAMA_SPLIT_MODE_LAYER if split or several else llama_cpp.LLAMA_SPLIT_MODE_NONE
        if split:
            shares = (ctypes.c_float * llama_cpp.llama_max_devices())(*split)
            params.tensor_split = ctypes.cast(shares, ctypes.POINTER(ctypes.c_float))
        log.last()
        self.handle = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self.handle:
            raise NativeError(log.last() or "llama.cpp could not load the file")
        self.vocab = llama_cpp.llama_model_get_vocab(self.handle)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.n_ctx_train: int = llama_cpp.llama_model_n_ctx_train(self.handle)
        self.n_embd: int = llama_cpp.llama_model_n_embd_out(self.handle)
        """Values of an embedding: the model's output width, which may differ from its input's."""
        self.size: int = llama_cpp.llama_model_size(self.handle)
        self.has_encoder: bool = llama_cpp.llama_model_has_encoder(self.handle)
        self.has_decoder: bool = llama_cpp.llama_model_has_decoder(self.handle)
        self.partial_memory: bool = not (llama_cpp.llama_model_is_recurrent(self.handle) or llama_cpp.llama_model_is_hybrid(self.handle))
        self.add_bos: bool = llama_cpp.llama_vocab_get_add_bos(self.vocab)
        self.bos: int = llama_cpp.llama_vocab_bos(self.vocab)
        self.eos: int = llama_cpp.llama_vocab_eos(self.vocab)
        self._pieces: dict[int, bytes] = {}
        self._special_pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Tokens of a text. `add_special` adds BOS if the model wants it; `parse_special` recognises control tokens in the text."""
        data = text.encode("utf-8", "replace")
        size = len(data) + 8
        while True:
            buffer = (ctypes.c_int32 * size)()
            count = llama_cpp.llama_tokenize(self.vocab, data, len(data), buffer, size, add_special, parse_special)
            if count >= 0:
                tokens: list[int] = []
                for start in range(0, count, PORTION):  # other threads get the interpreter between two, not only after millions
                    tokens += buffer[start : min(start + PORTION, count)]
                return tokens
            if count == -(2**31):
                raise NativeError("the text is too long to tokenize")
            size = -count

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens, control tokens written out; halves of characters are replaced."""
        given = (ctypes.c_int32 * len(tokens))(*tokens)
        size = 8 * len(tokens) + 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = llama_cpp.llama_detokenize(self.vocab, given, len(tokens), buffer, size, False, True)
            if count >= 0:
                return buffer.raw[:count].decode("utf-8", "replace")
            size = -count

    def piece(self, token: int) -> bytes:
        """The bytes that a generated token adds to the text; empty for control tokens."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._to_piece(token, special=False)
        return piece

    def special_piece(self, token: int) -> bytes:
        """The bytes of a token, control tokens written out."""
        piece = self._special_pieces.get(token)
        if piece is None:
            piece = self._special_pieces[token] = self._to_piece(token, special=True)
        return piece

    def _to_piece(self, token: int, special: bool) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, size, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def control_texts(self) -> list[str]:
        """The texts of all control tokens."""
        attr, control = llama_cpp.llama_vocab_get_attr, llama_cpp.LLAMA_TOKEN_ATTR_CONTROL
        found = [token for token in range(self.n_vocab) if attr(self.vocab, token) & control]
        return [self._to_piece(token, special=True).decode("utf-8", "replace") for token in found]

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation (EOS, end of turn, ...)."""
        end = self._ends.get(token)
        if end is None:
            end = self._ends[token] = bool(llama_cpp.llama_vocab_is_eog(self.vocab, token))
        return end

    def close(self) -> None:
        """Free the weights."""
        if self.handle:
            llama_cpp.llama_model_free(self.handle)
            self.handle = None


class LoraAdapter:
    """A LoRA adapter of a loaded model, which frees it. Raises NativeError if the two do not fit."""

    def __init__(self, model: Model, path: str, scale: float, log: NativeLog) -> None:
        log.last()
        self.handle = llama_cpp.llama_adapter_lora_init(model.handle, path.encode())
        if not self.handle:
            raise NativeError(log.last() or "llama.cpp could not load the adapter")
        self.handles = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(self.handle)
        self.scales = (ctypes.c_float * 1)(scale)


class Batch:
    """A reusable llama_batch over numpy arrays, one sequence per token."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.token = numpy.zeros(capacity, numpy.int32)
        self.pos = numpy.zeros(capacity, numpy.int32)
        self.seq = numpy.zeros(capacity, numpy.int32)
        self.output = numpy.zeros(capacity, numpy.int8)
        self._n_seq = numpy.ones(capacity, numpy.int32)
        start = self.seq.ctypes.data
        self._seq_pointers = numpy.arange(start, start + 4 * capacity, 4, dtype=numpy.uintp)
        self.count = 0
        self._native = self._structure()

    def clear(self) -> None:
        """Forget what was added."""
        self.count = 0

    def add(self, seq: int, position: int, tokens: Sequence[int], *, output_last: bool) -> int:
        """Append consecutive tokens of one sequence; returns the index of the last one, whose logits can be requested."""
        start, end = self.count, self.count + len(tokens)
        if end > self.capacity:
            raise ValueError("batch is full")
        self.token[start:end] = tokens
        self.pos[start:end] = numpy.arange(position, position + len(tokens), dtype=numpy.int32)
        self.seq[start:end] = seq
        self.output[start:end] = 0
        self.output[end - 1] = output_last
        self.count = end
        return end - 1

    def add_one(self, seq: int, position: int, token: int) -> int:
        """Append one token whose logits are wanted: the usual case."""
        at = self.count
        if at >= self.capacity:
            raise ValueError("batch is full")
        self.token[at] = token
        self.pos[at] = position
        self.seq[at] = seq
        self.output[at] = 1
        self.count = at + 1
        return at

    def native(self) -> Any:
        """The C structure; it shares this object's arrays."""
        self._native.n_tokens = self.count
        return self._native

    def _structure(self) -> Any:
        batch = llama_cpp.llama_batch()
        batch.token = self.token.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch.pos = self.pos.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch.n_seq_id = self._n_seq.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch.seq_id = self._seq_pointers.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(ctypes.c_int32)))
        batch.logits = self.output.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        return batch


class Context:
    """A llama.cpp context: the KV memory of all sequences, and decode."""

    def __init__(
        self, model: Model, log: NativeLog, *, cells: int, sequences: int, batch: int, micro_batch: int, threads: int, threads_batch: int,
        outputs: int = 0, embeddings: bool = False, pooling: int = -1, unified: bool = True, flash: int = -1,
        cache_types: tuple[str, str] = ("f16", "f16"), swa_full: bool = True,
    ) -> None:  # fmt: skip
        """swa_full: layers with a sliding window keep everything; otherwise the memory cannot be cut.
        outputs: the most logits that a batch asks for; more end the process. 0: as many as the batch has tokens."""
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = cells
        params.n_batch = batch
        params.n_ubatch = micro_batch
        params.n_seq_max = sequences
        params.n_outputs_max = max(outputs, sequences) if outputs else 0
        params.n_threads = threads
        params.n_threads_batch = threads_batch
        params.kv_unified = unified
        params.flash_attn_type = flash
        params.embeddings = embeddings
        params.pooling_type = pooling
        params.swa_full = swa_full
        params.type_k, params.type_v = (_CACHE_TYPES[kind] for kind in cache_types)
        params.no_perf = True
        log.last()
        self._model = model
        self._unified = unified
        self.partial: bool = model.partial_memory and (swa_full or llama_cpp.llama_model_n_swa(model.handle) <= 0)
        """Whether sequences can be cut at any position, and their beginnings shared."""
        self.handle = llama_cpp.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise NativeError(log.last() or "llama.cpp could not create a context")
        self.cells: int = llama_cpp.llama_n_ctx(self.handle)
        self.memory = llama_cpp.llama_get_memory(self.handle)
        self.pooling: int = llama_cpp.llama_pooling_type(self.handle)
        ranks = self.pooling == llama_cpp.LLAMA_POOLING_TYPE_RANK
        self.width: int = llama_cpp.llama_model_n_cls_out(model.handle) if ranks else model.n_embd
        """Values that the context computes for a sequence: those of an embedding, or a reranker's classes."""

    def decode(self, batch: Batch) -> int:
        """Run the batch. 0: done; 1: no room in the KV memory; negative or 2: failed."""
        return int(llama_cpp.llama_decode(self.handle, batch.native()))

    def encode(self, batch: Batch) -> int:
        """Run the batch through an encoder-only model. 0: done; negative: failed."""
        return int(llama_cpp.llama_encode(self.handle, batch.native()))

    def logits(self, index: int) -> NDArray[numpy.float32]:
        """Logits (n_vocab) of one token of the last batch; a view that the next decode overwrites."""
        pointer = llama_cpp.llama_get_logits_ith(self.handle, index)
        return numpy.ctypeslib.as_array(pointer, shape=(self._model.n_vocab,))

    def embedding_of(self, seq: int, index: int) -> NDArray[numpy.float32]:
        """A copy of the pooled embedding of a sequence, or, with pooling `none`, of one token: as many values as the model gives."""
        if self.pooling == llama_cpp.LLAMA_POOLING_TYPE_NONE:
            pointer = llama_cpp.llama_get_embeddings_ith(self.handle, index)
        else:
            pointer = llama_cpp.llama_get_embeddings_seq(self.handle, seq)
        if not pointer:
            raise NativeError("the model gave no embedding")
        return numpy.ctypeslib.as_array(pointer, shape=(self.width,)).copy()

    def use(self, adapter: LoraAdapter | None) -> None:
        """Compute the next batches with this adapter, or with none. Raises NativeError."""
        handles, scales, count = (adapter.handles, adapter.scales, 1) if adapter is not None else (None, None, 0)
        if llama_cpp.llama_set_adapters_lora(self.handle, handles, count, scales) != 0:
            raise NativeError("llama.cpp refused the adapter")

    def trim(self, seq: int, keep: int) -> bool:
        """Keep the first `keep` positions of a sequence. Returns False, changing nothing, if this memory cannot be cut there."""
        return bool(llama_cpp.llama_memory_seq_rm(self.memory, seq, keep, -1))

    def copy(self, source: int, target: int, length: int) -> None:
        """Let `target` share the first `length` positions of `source`; where each sequence has its own memory, they are copied."""
        if self._unified:
            llama_cpp.llama_memory_seq_cp(self.memory, source, target, 0, length)
            return
        llama_cpp.llama_memory_seq_cp(self.memory, source, target, -1, -1)  # between memories llama.cpp copies all or ends the process
        llama_cpp.llama_memory_seq_rm(self.memory, target, length, -1)

    def clear(self) -> None:
        """Forget every sequence."""
        llama_cpp.llama_memory_clear(self.memory, True)

    def close(self) -> None:
        """Free the KV memory."""
        if self.handle:
            llama_cpp.llama_free(self.handle)
            self.handle = None
