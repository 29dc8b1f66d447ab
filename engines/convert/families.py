"""The architectures that are converted: which tensors they have, under which names, in which shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from engines.convert.folder import Refused

PROJECTIONS: Final = MappingProxyType(
    {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
     "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
)  # fmt: skip
TWO_NORMS: Final = MappingProxyType({"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"})
FOUR_NORMS: Final = MappingProxyType(
    {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
     "post_feedforward_layernorm": "post_ffw_norm"}
)  # fmt: skip
HEAD_NORMS: Final = MappingProxyType({"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"})
PASSED_OVER: Final = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")
"""Ends of the names of tensors that nobody needs."""
_QKV: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_SILU, _GELU = ("silu",), ("gelu_pytorch_tanh", "gelu_pytorch_tanh_fast")


class Family(NamedTuple):
    """name: GGUF's. permutes: llama.cpp rotates pairs side by side, where Hugging Face has two halves. biased: projections that may have a
    bias. shifts: norms are kept as their distance from 1. tied: whether the output shares the embeddings if config.json says nothing.
    swa: each so-manieth layer sees the whole context, the others a window."""

    name: str
    permutes: bool = False
    biased: tuple[str, ...] = ()
    norms: Mapping[str, str] = TWO_NORMS
    head_norms: bool = False
    shifts: bool = False
    tied: bool = False
    activations: tuple[str, ...] = _SILU
    swa: int = 0


FAMILIES: Final = MappingProxyType(
    {
        "LlamaForCausalLM": Family("llama", permutes=True, biased=tuple(PROJECTIONS)),
        "MistralForCausalLM": Family("llama", permutes=True),
        "Qwen2ForCausalLM": Family("qwen2", biased=_QKV),
        "Qwen3ForCausalLM": Family("qwen3", head_norms=True),
        "Gemma2ForCausalLM": Family("gemma2", norms=FOUR_NORMS, shifts=True, tied=True, activations=_GELU, swa=2),
        "Gemma3ForCausalLM": Family("gemma3", norms=FOUR_NORMS, head_norms=True, shifts=True, tied=True, activations=_GELU, swa=6),
    }
)


class Config:
    """config.json, checked where it is read. Raises Refused."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        given = values.get("architectures")
        self.architecture = given[0] if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str) else ""
        family = FAMILIES.get(self.architecture)
        if family is None:
            said = repr(self.architecture[:64]) if self.architecture else "no architecture, or several"
            raise Refused(f"config.json names {said}; these are converted: {', '.join(FAMILIES)}")
        self.family = family
        if values.get("quantization_config"):
            raise Refused("the weights are quantised already (quantization_config): take the model as it was before")
        self.layers, self.hidden = self.whole("num_hidden_layers", 4096), self.whole("hidden_size")
        self.inner, self.vocabulary = self.whole("intermediate_size"), self.whole("vocab_size", 1 << 24)
        self.heads = self.whole("num_attention_heads", 1 << 16)
        self.kv_heads = self.whole("num_key_value_heads", 1 << 16, self.heads if family.name == "llama" else None)
        self.width = self.whole("head_dim", 1 << 16, self.hidden // self.heads)
        self.tied = self.flag("tie_word_embeddings", family.tied)
        self._fits()

    def whole(self, key: str, most: int = 1 << 30, default: int | None = None) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if type(value) is not int or not 1 <= value <= most:
            raise Refused(f"config.json has no {key} from 1 to {most}")
        return value

    def number(self, key: str, within: Mapping[str, Any] | None = None, default: float | None = None) -> float:
        value = (self.values if within is None else within).get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > 1e30:
            raise Refused(f"config.json has no number {key}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        return value if isinstance(value, bool) else default

    def _fits(self) -> None:
        """What llama.cpp does otherwise than the model was trained for is refused."""
        family, values = self.family, self.values
        if self.heads % self.kv_heads or self.width % 2:
            raise Refused("config.json has heads that do not fit each other, or of an odd width")
        activation = values.get("hidden_act") or values.get("hidden_activation")
        if family.swa:
            activation = values.get("hidden_activation") or values.get("hidden_act")
        if activation not in family.activations:
            raise Refused(f"config.json has the activation {str(activation)[:32]!r}; {self.architecture} has {family.activations[0]}")
        if values.get("use_sliding_window") or self.number("partial_rotary_factor", default=1.0) != 1.0:
            raise Refused("config.json has a sliding window (use_sliding_window) or a partial rotation, which llama.cpp would leave out")
        if family.swa:
            self._windows()

    def _windows(self) -> None:
        kinds = [("full" if (layer + 1) % self.family.swa == 0 else "sliding") + "_attention" for layer in range(self.layers)]
        if self.values.get("layer_types", kinds) != kinds:
            raise Refused(f"config.json has other layers with a window (layer_types) than llama.cpp knows of {self.architecture}")
        whole = (self.family.name, self.layers) in (("gemma2", 46), ("gemma3", 62))
        scalar = self.hidden / self.heads if whole else float(self.width)
        if self.number("query_pre_attn_scalar", default=scalar) != scalar:
            raise Refused(f"config.json has another query_pre_attn_scalar than {scalar:g}, which llama.cpp takes")


class Wanted(NamedTuple):
    """A tensor of the model. heads: its rows are permuted, head by head; 0 for not."""

    name: str
    shape: tuple[int, ...]
    heads: int = 0
    shift: bool = False
    optional: bool = False


def wanted(config: Config) -> Iterator[tuple[str, Wanted]]:
    """(Hugging Face's name, what is made of it) of each tensor."""
    family, shift = config.family, config.family.shifts
    yield "model.embed_tokens.weight", Wanted("token_embd.weight", (config.vocabulary, config.hidden))
    yield "model.norm.weight", Wanted("output_norm.weight", (config.hidden,), shift=shift)
    if not family.swa:
        yield "lm_head.weight", Wanted("output.weight", (config.vocabulary, config.hidden), optional=config.tied)
    queries, keys = config.heads * config.width, config.kv_heads * config.width
    shapes = {
        "self_attn.q_proj": (queries, config.hidden), "self_attn.k_proj": (keys, config.hidden), "self_attn.v_proj": (keys, config.hidden),
        "self_attn.o_proj": (config.hidden, queries), "mlp.gate_proj": (config.inner, config.hidden),
        "mlp.up_proj": (config.inner, config.hidden), "mlp.down_proj": (config.hidden, config.inner),
    }  # fmt: skip
    turned = {"self_attn.q_proj": config.heads, "self_attn.k_proj": config.kv_heads} if family.permutes else {}
    for layer in range(config.layers):
        before, after = f"model.layers.{layer}.", f"blk.{layer}."
        for name, made in family.norms.items():
            yield f"{before}{name}.weight", Wanted(f"{after}{made}.weight", (config.hidden,), shift=shift)
        for name, made in HEAD_NORMS.items() if family.head_norms else ():
            yield f"{before}{name}.weight", Wanted(f"{after}{made}.weight", (config.width,), shift=shift)
        for name, made in PROJECTIONS.items():
            heads = turned.get(name, 0)
            yield f"{before}{name}.weight", Wanted(f"{after}{made}.weight", shapes[name], heads)
            if name in family.biased:
                yield f"{before}{name}.bias", Wanted(f"{after}{made}.bias", shapes[name][:1], heads, optional=True)
