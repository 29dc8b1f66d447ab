"""A llama-architecture transformer as plain functions over a dictionary of tensors, with llama.cpp's names and shapes.

RMSNorm before attention and feed-forward, rotary positions, SwiGLU, tied input and output embeddings. Only for training; needs torch.
Source: Touvron et al., LLaMA (2023); Su et al., RoFormer (2021); Shazeer, GLU Variants Improve Transformer (2020).
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model. All widths are multiples of 32, the block of Q8_0."""

    vocabulary: int = 1536
    width: int = 192
    layers: int = 4
    heads: int = 6
    feed_forward: int = 512
    context: int = 2048
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-5

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def initial(shape: Shape, seed: int) -> Weights:
    """Random weights with gradients enabled. Matrices that write to the residual stream start smaller the deeper the model is."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int, scale: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * (scale * 0.02)

    residual = 1 / math.sqrt(2 * shape.layers)
    weights: Weights = {"token_embd.weight": normal(shape.vocabulary, shape.width), "output_norm.weight": torch.ones(shape.width)}
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        weights[block + "attn_norm.weight"] = torch.ones(shape.width)
        weights[block + "ffn_norm.weight"] = torch.ones(shape.width)
        for name in ("attn_q", "attn_k", "attn_v"):
            weights[f"{block}{name}.weight"] = normal(shape.width, shape.width)
        weights[block + "attn_output.weight"] = normal(shape.width, shape.width, residual)
        weights[block + "ffn_gate.weight"] = normal(shape.feed_forward, shape.width)
        weights[block + "ffn_up.weight"] = normal(shape.feed_forward, shape.width)
        weights[block + "ffn_down.weight"] = normal(shape.width, shape.feed_forward, residual)
    return {name: weight.requires_grad_() for name, weight in weights.items()}


def parameters(weights: Weights) -> int:
    """The number of parameters."""
    return sum(weight.numel() for weight in weights.values())


def rotations(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary angles, each [length, head_width]; pairs are (i, i + head_width / 2)."""
    half = shape.head_width // 2
    frequency = shape.rope_base ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = torch.outer(torch.arange(length, dtype=torch.float32), frequency).repeat(1, 2)
    return angle.cos(), angle.sin()


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x times the transposed weight in bfloat16, which is twice as fast on processors that support it."""
    return F.linear(x.bfloat16(), weight.bfloat16())


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


def hidden(weights: Weights, shape: Shape, tokens: Tensor) -> Tensor:
    """The last hidden states [batch, length, width] of `tokens` [batch, length]; each position sees only itself and earlier ones."""
    batch, length = tokens.shape
    cosine, sine = rotations(shape, length)
    x = F.embedding(tokens, weights["token_embd.weight"])
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        normal = F.rms_norm(x, (shape.width,), weights[block + "attn_norm.weight"], shape.norm_epsilon).bfloat16()
        query, key, value = (
            _product(normal, weights[f"{block}attn_{name}.weight"])
            .float()
            .view(batch, length, shape.heads, shape.head_width)
            .transpose(1, 2)
            for name in "qkv"
        )
        query, key = _rotate(query, cosine, sine), _rotate(key, cosine, sine)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + _product(seen.transpose(1, 2).reshape(batch, length, shape.width), weights[block + "attn_output.weight"])
        normal = F.rms_norm(x, (shape.width,), weights[block + "ffn_norm.weight"], shape.norm_epsilon).bfloat16()
        gate = F.silu(_product(normal, weights[block + "ffn_gate.weight"])) * _product(normal, weights[block + "ffn_up.weight"])
        x = x + _product(gate, weights[block + "ffn_down.weight"])
    return F.rms_norm(x, (shape.width,), weights["output_norm.weight"], shape.norm_epsilon)


def loss(weights: Weights, shape: Shape, tokens: Tensor, learned: Tensor) -> Tensor:
    """Mean cross entropy of the `learned` tokens (bool, [batch, length]), each predicted from the tokens before it."""
    states = hidden(weights, shape, tokens[:, :-1])
    wanted = learned[:, 1:]
    logits = _product(states[wanted], weights["token_embd.weight"]).float()
    return F.cross_entropy(logits, tokens[:, 1:][wanted])
