"""Settings of hedged requests: a second attempt at another endpoint while the first one takes long (docs/routing.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.core.specs.base import Spec

HedgedOperation = Literal["embeddings", "rerank", "score", "classify", "tokenize", "infer", "chat", "completions"]


class HedgeSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """after: seconds without an answer, or `p95`: what 95 of 100 answers of the model took so far. budget: share of the requests under way
    that may have a second attempt. operations: those that may."""

    after: Annotated[float, Meta(ge=0.001, le=3600)] | Literal["p95"] = "p95"
    budget: Annotated[float, Meta(gt=0, le=0.5)] = 0.05
    operations: Annotated[tuple[HedgedOperation, ...], Meta(min_length=1)] = (
        "embeddings",
        "rerank",
        "score",
        "classify",
        "tokenize",
        "infer",
    )
