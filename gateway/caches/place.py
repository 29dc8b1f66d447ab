"""Where an answer lies in a cache, and what is needed to look for it."""

from __future__ import annotations

from typing import Final, NamedTuple

MARK_BYTES: Final = 8


class Place(NamedTuple):
    """key: of the answer (gateway.caches.keys). model, tenant: whose it is, for purges."""

    key: bytes
    model: str
    tenant: str

    def marks(self) -> tuple[str, str, str, str, str]:
        """The names of the marks that an answer here depends on: a purge puts other values in the place of those that it concerns. The
        last one changes with every purge: what was asked of an engine before is not kept after it."""
        return "*", f"m {self.model}", f"t {self.tenant}", f"b {self.tenant} {self.model}", EPOCH


EPOCH: Final = "epoch"
BOUND: Final = 4 * MARK_BYTES
"""How many bytes of the marks an answer is bound to: all but the epoch."""


def purged_marks(model: str | None, tenant: str | None, key: bytes | None) -> list[str]:
    """The names of the marks that a purge changes. One of a single key takes that answer away by itself."""
    if key is not None:
        return [EPOCH]
    if tenant is not None:
        return [EPOCH, f"t {tenant}" if model is None else f"b {tenant} {model}"]
    return [EPOCH, "*" if model is None else f"m {model}"]
