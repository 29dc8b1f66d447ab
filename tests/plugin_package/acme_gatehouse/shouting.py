"""A guardrail: texts in capitals are blocked, or held until somebody approves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gateway.core.plugins import Context, GuardrailRow
from gateway.core.specs import Spec
from gateway.core.types import ALLOW, Verdict


class Settings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """letters: so many of them are shouting. action: what then happens."""

    letters: int = 8
    action: Literal["block", "hold"] = "block"


class Shouting:
    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self._letters = settings.letters
        self._found = Verdict(settings.action, name, "Please do not shout.")

    def check(self, texts: Sequence[str]) -> Verdict:
        return self._found if any(len(text) >= self._letters and text.isupper() for text in texts) else ALLOW

    def stream(self) -> None:
        """Only a whole text tells, so streams are held until they end."""
        return None


def build(settings: Settings, context: Context) -> Shouting:
    if settings.letters < 1:
        raise ValueError("letters must be at least 1")
    return Shouting(context.name, settings)


ROW = GuardrailRow(name="shouting", settings=Settings, build=build)
