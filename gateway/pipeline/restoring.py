"""Pseudonyms of an exchange: the layers of its guardrails (gateway.core.pseudonyms), and its answer passing through them."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.ports import StreamMatcher
from gateway.core.pseudonyms import Layer, Restores


def restored(layers: Sequence[Layer], texts: Sequence[str], when: Restores) -> Sequence[str]:
    """The texts with the values put back that belong in now; the same object if there are none."""
    chosen = [layer for layer in reversed(layers) if layer.restores == when]
    found = list(texts)
    for layer in chosen:
        found = [layer.whole(text) for text in found]
    return found if chosen and found != list(texts) else texts


def hidden(layers: Sequence[Layer], texts: Sequence[str]) -> Sequence[str]:
    """Texts in which the values were put back, with the pseudonyms in their place again; the same object if there are none."""
    found = list(texts)
    for layer in layers:
        if layer.restores != "never":
            found = layer.hidden(found)
    return texts if found == list(texts) else found


def matchers(layers: Sequence[Layer], when: Restores) -> list[StreamMatcher]:
    """The same for one text of a stream."""
    return [layer.stream() for layer in reversed(layers) if layer.restores == when]


def pseudonym_counts(layers: Sequence[Layer]) -> dict[str, int]:
    """The numbers for the audit record."""
    return {"replaced": sum([layer.replaced for layer in layers]), "restored": sum([layer.restored for layer in layers])}
