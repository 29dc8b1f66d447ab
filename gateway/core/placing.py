"""What a gateway and a machine say to each other about engines that the gateway has the machine start (docs/joined-machines.md).

The gateway speaks, at the machine's port for gateways and under a name of its own in the TLS handshake: model files in pieces, then an
order. What a machine does of it is bounded by `accepts` of its own file. What became of an order it tells in its beats.

    GET  /v1/files/SHA256?size=N            -> Received
    PUT  /v1/files/SHA256?size=N&offset=K   -> Received; the body is a piece of at most PIECE bytes
    PUT  /v1/engines/NAME                   Order -> 202; refused with a problem's code
    DELETE /v1/engines/NAME?fence=F         -> 200
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from gateway.core.joining import DOMAIN, Revision

PIECE: Final = 4 * 1024 * 1024
MAX_ORDER: Final = 1024 * 1024
MAX_FILES: Final = 1000
MAX_FILE: Final = 2**44
OPTIONS: Final[dict[str, frozenset[str]]] = {
    "llama.cpp": frozenset(
        (
            "allow_partial", "batch", "cache_type_k", "cache_type_v", "cached_lines", "choosers", "embeddings", "flash_attention", "format",
            "gpu_layers", "kv_unified", "least_chunk", "max_body_bytes", "pinned", "sampling", "speculation", "stall", "swa_full",
            "working_interval",
        )
    ),
    "onnx": frozenset(
        (
            "batching", "default_prompt", "deterministic", "dimensions", "instances", "inter_op_threads", "io_binding", "labels",
            "max_batch_tokens", "max_body_bytes", "max_length", "max_output_bytes", "names", "normalize", "optimization", "output",
            "pooling", "prompts", "task", "truncate", "version",
        )
    ),
}  # fmt: skip
"""Options that a placed engine may have, by runtime. None names a file or a provider's settings, and none lifts the confinement of the
sidecar: who has taken over a gateway gets no further on a machine than a model's process."""

Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
FilePath = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}(/[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}){0,5}$")]
Device = Annotated[str, Meta(pattern=r"^(cpu|cuda:\d{1,2}(,\d{1,2}){0,15})$")]


class SentFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """path: below the model's own folder on the machine."""

    path: FilePath
    size: Annotated[int, Meta(ge=0, le=MAX_FILE)]
    sha256: Sha256


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An engine that a machine is to run. fence: of the gateways' lease for placing this engine; a lower one than was heard before is
    refused. revision: names these settings; the machine tells it in its beats. model: the path of the first file, or the folder at its
    beginning."""

    fence: Annotated[int, Meta(ge=0, le=2**62)]
    revision: Revision
    runtime: Annotated[str, Meta(max_length=64)]
    model: FilePath
    files: Annotated[tuple[SentFile, ...], Meta(min_length=1, max_length=MAX_FILES)]
    device: Device = "cpu"
    slots: Annotated[int, Meta(ge=1, le=1024)] | None = None
    context: Annotated[int, Meta(ge=64, le=4 * 1024 * 1024)] = 2048
    queue: Annotated[int, Meta(ge=0, le=10000)] = 64
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    options: dict[str, Any] = {}


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """offset: bytes that are there. verified: they are all there, and their SHA-256 is right."""

    offset: int
    verified: bool = False


def orders_host_of(machine: str) -> str:
    """The name of a machine's ear for orders; its certificate is good for that, too."""
    return f"orders.{machine}.{DOMAIN}"
