"""Pseudonyms of an exchange: the layers of its guardrails (gateway.core.pseudonyms), and its answer passing through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.core.ports import StreamMatcher
from gateway.core.pseudonyms import Layer, Restores
from gateway.core.slices import Steps, at_once

PIECE: Final = 4096
"""Characters in which values are put back in one step."""
EACH: Final = 16
"""What a text costs beside its characters, in characters."""


def restored(layers: Sequence[Layer], texts: Sequence[str], when: Restores) -> Sequence[str]:
    """The texts with the values put back that belong in now; the same object if there are none."""
    return at_once(restored_steps(layers, texts, when))


def restored_steps(layers: Sequence[Layer], texts: Sequence[str], when: Restores) -> Steps[Sequence[str]]:
    """The same in steps: an answer may name a pseudonym a hundred thousand times."""
    chosen = [layer for layer in reversed(layers) if layer.restores == when]
    found = list(texts)
    done = 0
    for layer in chosen:
        for number, text in enumerate(found):
            done += EACH + len(text)
            if len(text) > PIECE:
                found[number] = yield from _restored(layer, text)
            else:
                found[number] = layer.whole(text)
            if done > PIECE:
                yield
                done = 0
    return found if chosen and found != list(texts) else texts


def _restored(layer: Layer, text: str) -> Steps[str]:
    """A long text, in pieces as those of a stream: how it is cut makes no difference."""
    matcher, pieces = layer.stream(), list[str]()
    for start in range(0, len(text), PIECE):
        pieces.append(matcher.feed(text[start : start + PIECE]))
        yield
    pieces.append(matcher.finish())
    return "".join(pieces)


def hiding(layers: Sequence[Layer], texts: Sequence[str]) -> Steps[Sequence[str]]:
    """Texts in which the values were put back, with the pseudonyms in their place again; the same object if there are none. In steps: for
    each of thousands of values, all texts are searched."""
    found = list(texts)
    for layer in layers:
        if layer.restores != "never":
            found = yield from layer.hiding(found)
    return texts if found == list(texts) else found


def matchers(layers: Sequence[Layer], when: Restores) -> list[StreamMatcher]:
    """The same for one text of a stream."""
    return [layer.stream() for layer in reversed(layers) if layer.restores == when]


def pseudonym_counts(layers: Sequence[Layer]) -> dict[str, int]:
    """The numbers for the audit record."""
    return {"replaced": sum([layer.replaced for layer in layers]), "restored": sum([layer.restored for layer in layers])}
