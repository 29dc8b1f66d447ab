"""Vocabularies: byte-level BPE of tokenizer.json, and SentencePiece's tokenizer.model, as GGUF has them."""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import Any, Final

from engines.convert.folder import Folder, Refused
from engines.convert.gguf import Writer
from engines.convert.special import KINDS, Special, content_of, listed
from engines.onnx.protobuf import Broken, fields, message, number

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MOST_MERGES: Final = 4_000_000
MOST_TOKEN: Final = 4096
BPE, BPE_OF_SENTENCEPIECE = "BPE", 2
_ROW: Final = 160
"""Bytes of memory that a token takes at most while the vocabulary is made, beside its text: in the list of texts, as bytes, with its score
and its type."""
_SPACE: Final = "\u2581"
_TAIL: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_TEKKEN: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS: Final = MappingProxyType(
    {
        (_SHORT + r"\p{N}{1,3}" + _TAIL, True): "llama-bpe",
        (_SHORT + r"\p{N}" + _TAIL, False): "qwen2",
        (_TEKKEN, True): "tekken",
        (("Digits", "ByteLevel"), False): "smollm",
        (("ByteLevel",), False): "gpt-2",
    }
)
"""(the expression that splits texts before merging, or the steps that do; whether whole words of the vocabulary are taken without merges)
-> llama.cpp's name for it."""


def write(folder: Folder, config: dict[str, Any], size: int, to: Writer) -> None:
    """All keys of the tokenizer. size: rows of the embeddings; tokens that the tokenizer does not have are padding. Raises Refused."""
    folder.fits("the vocabulary", size * _ROW)
    tokenizer = folder.json("tokenizer.json")
    model = folder.read("tokenizer.model")
    if model is not None:
        _sentencepiece(folder, model, size, to)
        Special(folder, config, tokenizer, size).write(to)
    elif tokenizer is not None:
        _byte_level(folder, tokenizer, size, to)
        Special(folder, config, tokenizer, None).write(to)
    else:
        raise Refused("there is neither tokenizer.json nor tokenizer.model")


# --- byte-level BPE


def _byte_level(folder: Folder, tokenizer: dict[str, Any], size: int, to: Writer) -> None:
    model = tokenizer.get("model")
    if not isinstance(model, dict) or model.get("type") != BPE:
        raise Refused("tokenizer.json has no BPE model")
    if model.get("byte_fallback"):
        raise Refused("this tokenizer is SentencePiece's: put its tokenizer.model, which has the scores, into the folder")
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix") or model.get("dropout"):
        raise Refused("tokenizer.json marks parts of words, or drops merges; llama.cpp does neither")
    texts = _tokens(model, size)
    added = _added(tokenizer, size)
    special = _specials(folder)
    types = [UNUSED if text is None else NORMAL for text in texts]
    for id, one in added.items():
        if texts[id] not in (None, one["content"]):
            raise Refused(f"the token {id} is {texts[id]!r} in the vocabulary and {one['content'][:64]!r} among the added tokens")
        control = bool(one.get("special")) or one["content"] in special or looks_special(one["content"])
        types[id] = CONTROL if control else USER_DEFINED
        texts[id] = one["content"] if control else one["content"].replace(_SPACE, " ")
    to.text("tokenizer.ggml.model", "gpt2")
    to.text("tokenizer.ggml.pre", pre_tokenizer(tokenizer))
    to.texts("tokenizer.ggml.tokens", [f"[PAD{id}]".encode() if text is None else text.encode() for id, text in enumerate(texts)])
    to.wholes("tokenizer.ggml.token_type", types)
    to.texts("tokenizer.ggml.merges", _merges(model))


def _tokens(model: dict[str, Any], size: int) -> list[str | None]:
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise Refused("tokenizer.json has no vocabulary")
    texts: list[str | None] = [None] * size
    for text, id in vocabulary.items():
        if type(id) is not int or not 0 <= id < size:
            raise Refused(f"the token {text[:64]!r} has the number {str(id)[:32]}; the embeddings have {size} rows")
        if texts[id] is not None:
            raise Refused(f"two tokens have the number {id}")
        if not 0 < len(text) <= MOST_TOKEN:
            raise Refused(f"the token {id} has {len(text)} characters; 1 to {MOST_TOKEN} are possible")
        texts[id] = text
    return texts


def _added(tokenizer: dict[str, Any], size: int) -> dict[int, dict[str, Any]]:
    added: dict[int, dict[str, Any]] = {}
    for one in listed(tokenizer, "added_tokens"):
        id, content = (one.get("id"), one.get("content")) if isinstance(one, dict) else (None, None)
        if type(id) is not int or not 0 <= id < size or not isinstance(content, str) or not 0 < len(content) <= MOST_TOKEN or id in added:
            raise Refused(f"an added token of tokenizer.json has no text, or the number {str(id)[:32]}; the embeddings have {size} rows")
        added[id] = one
    return added


def _specials(folder: Folder) -> set[str]:
    settings = folder.json("tokenizer_config.json") or {}
    more = [*listed(settings, "additional_special_tokens"), *listed(settings, "extra_special_tokens")]
    found = [content_of(settings.get(f"{kind}_token")) for kind in KINDS] + [content_of(one) for one in more]
    return {content for content in found if content is not None}


def looks_special(text: str) -> bool:
    """Some models forget to mark tokens as special that are; llama.cpp has this list of them."""
    return (
        text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<\uff5c") and text.endswith("\uff5c>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )


def _merges(model: dict[str, Any]) -> list[bytes]:
    """Each makes a token of two others; so none is a circle."""
    merges, vocabulary = listed(model, "merges"), model["vocab"]
    if not 0 < len(merges) <= MOST_MERGES:
        raise Refused(f"tokenizer.json has {len(merges)} merges; 1 to {MOST_MERGES} are possible")
    made = []
    for place, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) and part for part in pair):
            raise Refused(f"merge {place} of tokenizer.json is not two parts")
        if any(part not in vocabulary for part in (*pair, pair[0] + pair[1])):
            raise Refused(f"merge {place} of tokenizer.json makes or takes something that is no token")
        made.append(" ".join(part.replace(" ", chr(ord(" ") + 256)) for part in pair).encode())
    return made


def pre_tokenizer(tokenizer: dict[str, Any]) -> str:
    """llama.cpp's name for how this tokenizer splits texts, found by what it says, not by its name. Raises Refused for one that llama.cpp
    would read otherwise."""
    normalizer, before = tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")
    if normalizer not in (None, {"type": "NFC"}, {"type": "Sequence", "normalizers": []}):
        raise Refused("tokenizer.json changes texts before it splits them (normalizer); NFC alone is known")
    given = before.get("pretokenizers") if isinstance(before, dict) and before.get("type") == "Sequence" else [before]
    steps: list[dict[str, Any]] = [step if isinstance(step, dict) else {} for step in given] if isinstance(given, list) else []
    kinds = [step.get("type") for step in steps]
    if not kinds or kinds[-1] != "ByteLevel" or steps[-1].get("add_prefix_space"):
        raise Refused("tokenizer.json does not split texts by bytes (ByteLevel, without a space put before them)")
    own = steps[-1].get("use_regex", True)
    split: str | tuple[str, ...] | None = None
    if own and (kinds == ["ByteLevel"] or (kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"))):
        split = tuple(kinds)
    elif kinds == ["Split", "ByteLevel"] and not own and steps[0].get("behavior") == "Isolated" and not steps[0].get("invert"):
        pattern = steps[0].get("pattern")
        split = pattern.get("Regex") if isinstance(pattern, dict) else None
    found = SPLITS.get((split, bool(tokenizer["model"].get("ignore_merges")))) if isinstance(split, str | tuple) else None
    if found is None:
        raise Refused(f"tokenizer.json splits texts in a way that is none of {', '.join(sorted(SPLITS.values()))}")
    return found


# --- SentencePiece


def _sentencepiece(folder: Folder, data: bytes, size: int, to: Writer) -> None:
    texts = [f"[PAD{id}]".encode() for id in range(size)]
    scores, types = [-10000.0] * size, [UNUSED] * size
    for id, (text, score, type) in enumerate(pieces(data, size)):
        texts[id], scores[id], types[id] = text, score, NORMAL if type == USER_DEFINED else type
    for added, given in (folder.json("added_tokens.json") or {}).items():
        id = _within(given, size)
        texts[id], scores[id], types[id] = added.encode(), -1000.0, USER_DEFINED
    decoder = (folder.json("tokenizer_config.json") or {}).get("added_tokens_decoder")
    for key, one in decoder.items() if isinstance(decoder, dict) else ():
        id, content = _within(int(key) if key.isdecimal() and len(key) < 10 else -1, size), content_of(one)
        if content is None or not isinstance(one, dict):
            raise Refused(f"the added token {id} of tokenizer_config.json has no text")
        control = bool(one.get("special")) or looks_special(content)
        types[id] = CONTROL if control else USER_DEFINED
        texts[id], scores[id] = (content if control else content.replace(_SPACE, " ")).encode(), -1000.0
    to.text("tokenizer.ggml.model", "llama")
    to.text("tokenizer.ggml.pre", "default")
    to.texts("tokenizer.ggml.tokens", texts)
    to.numbers("tokenizer.ggml.scores", scores)
    to.wholes("tokenizer.ggml.token_type", types)
    if not to.has("tokenizer.ggml.add_space_prefix") and not _prefixed(data):
        to.flag("tokenizer.ggml.add_space_prefix", False)


def _within(id: Any, size: int) -> int:
    if type(id) is not int or not 0 <= id < size:
        raise Refused(f"an added token has the number {str(id)[:32]}; the embeddings have {size} rows")
    return id


def pieces(data: bytes, most: int) -> list[tuple[bytes, float, int]]:
    """(text, score, type) of each token of a tokenizer.model (sentencepiece_model.proto), of which there are `most`. Raises Refused."""
    found: list[tuple[bytes, float, int]] = []
    kind = 1
    try:
        for field, value in fields(memoryview(data), "tokenizer.model"):
            if field == 1:
                text, score, type = b"", 0.0, NORMAL
                for inner, part in fields(message(value, "a piece"), "a piece"):
                    if inner == 1:
                        text = bytes(message(part, "a piece"))
                    elif inner == 2:
                        score = struct.unpack("<f", number(part, "a score").to_bytes(4, "little"))[0]
                    elif inner == 3:
                        type = number(part, "a type")
                if type not in (NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE) or not 0 < len(text) <= MOST_TOKEN:
                    raise Refused(f"token {len(found)} of tokenizer.model has no text, or the type {type}")
                if len(found) == most:
                    raise Refused(f"tokenizer.model has more tokens than the embeddings have rows, {most}")
                found.append((text, score, type))
            elif field == 2:
                kind = next((number(part, "a kind") for inner, part in fields(message(value, "settings"), "settings") if inner == 3), 1)
    except (Broken, OverflowError) as error:
        raise Refused(f"tokenizer.model is not SentencePiece's: {error}") from None
    if kind != BPE_OF_SENTENCEPIECE or not found:
        raise Refused("tokenizer.model is not a BPE model of SentencePiece")
    return found


def _prefixed(data: bytes) -> bool:
    """Whether a space is put before a text. Raises Refused."""
    try:
        for field, value in fields(memoryview(data), "tokenizer.model"):
            if field == 3:
                return next((bool(part) for inner, part in fields(message(value, "settings"), "settings") if inner == 3), True)
    except Broken as error:
        raise Refused(f"tokenizer.model is not SentencePiece's: {error}") from None
    return True
