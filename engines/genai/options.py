"""The `options` of an engine with `runtime: genai`. Imports nothing of the runtime: the gateway checks them before it starts a process."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from engines.chat.defaults import Format, Share, Temperature
from engines.sidecar.loading import ShellOptions
from gateway.core.specs import Seconds, Spec


class GenaiSampling(Spec, frozen=True):
    """Sampling settings of requests that name none; what is absent is as in the folder's `genai_config.json`."""

    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    min_p: Share | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None


class GenaiOptions(ShellOptions, frozen=True):
    """The `options` of an engine with `runtime: genai`."""

    chunk: Annotated[int, Meta(ge=16, le=8192)] = 512
    """Prompt tokens that are read at once: who leaves meanwhile is noticed after as many."""
    sampling: GenaiSampling | None = None
    template: str | None = None
    """A chat template (jinja) instead of the folder's own."""
    format: Format | None = None
    """How the model writes calls and reasoning; default: as its template tells."""
    checksums: dict[str, Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}$")]] = field(default_factory=dict)
    """File name -> SHA-256 of files in the model's folder."""
    working_interval: Seconds = 5.0
    """Seconds between comments in a stream that is silent while the engine works or the request waits; 0: none."""
