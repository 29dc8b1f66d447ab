"""Writes the trained model as a GGUF file with Q8_0 weights. Needs the packages `gguf` and `numpy`; only for training.

Source: the GGUF specification in the ggml repository (docs/gguf.md).
"""

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from engines.demo.chatml import CHAT_TEMPLATE, END_OF_TEXT, SPECIAL_TOKENS, TURN_END
from engines.demo.tokenizer import Vocabulary
from engines.demo.transformer import Shape

Array = NDArray[np.float32]


def interleaved(weight: Array, heads: int) -> Array:
    """Rows of a query or key matrix in llama.cpp's order, where rotary pairs are adjacent; in training they are half a head apart."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write(path: Path, weights: dict[str, Array], shape: Shape, vocabulary: Vocabulary, version: str) -> None:
    """Writes the file `path`, replacing an existing one."""
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, version)
    _measure(writer, shape)
    _tokenizer(writer, vocabulary)
    for name, weight in weights.items():
        if weight.ndim == 1:
            writer.add_tensor(name, weight)
            continue
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            weight = interleaved(weight, shape.heads)
        blocks = gguf.quants.quantize(np.ascontiguousarray(weight), gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter, version: str) -> None:
    writer.add_type("model")
    writer.add_name("gatehouse-demo-chat")
    writer.add_basename("gatehouse-demo-chat")
    writer.add_version(version)
    writer.add_author("The Gatehouse authors")
    writer.add_license("apache-2.0")
    writer.add_languages(["en"])
    writer.add_description("A tiny model that answers questions about Gatehouse, for the quickstart and for tests; not for real work.")
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)


def _measure(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.vocabulary)


def _tokenizer(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    special = {token: index for index, token in enumerate(SPECIAL_TOKENS)}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types([gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in vocabulary.tokens])
    writer.add_token_merges(list(vocabulary.merges))
    writer.add_bos_token_id(special[END_OF_TEXT])
    writer.add_eos_token_id(special[TURN_END])
    writer.add_eot_token_id(special[TURN_END])
    writer.add_pad_token_id(special[END_OF_TEXT])
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
