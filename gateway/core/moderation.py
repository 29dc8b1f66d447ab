"""Who answers /v1/moderations: the guardrails that judge texts by a model, by the names under which clients ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from gateway.core.errors import RequestError
from gateway.core.values import UNLABELLED, Principal, Usage


class Judgement:
    """What a model says of one text. categories: whether each was found; scores: how sure it is, from 0 to 1."""

    __slots__ = ("categories", "flagged", "scores")

    def __init__(self, flagged: bool, categories: dict[str, bool], scores: dict[str, float]) -> None:
        self.flagged, self.categories, self.scores = flagged, categories, scores


class Moderated:
    """One judgement for each text, and what they cost."""

    __slots__ = ("results", "usage")

    def __init__(self, results: list[Judgement], usage: Usage) -> None:
        self.results, self.usage = results, usage


class Moderator(Protocol):
    """A guardrail that can say what it thinks of texts. model: the public name of the one that it asks."""

    name: str
    model: str

    def moderate(
        self, texts: Sequence[str], principal: Principal, seconds: float, labels: frozenset[str] = UNLABELLED
    ) -> asyncio.Future[Moderated]:
        """labels: of the texts. Fails with a GatehouseError where the model does not say what the texts are; a RequestError for more of
        them than it is asked about."""
        ...


NOT_CONFIGURED = "This gateway has no moderation: its operator must name a guardrail in 'moderation.guardrail'."


class Moderations:
    """Immutable. default: the one that is configured. others: by model. names: those that stand for the default, as clients send them when
    they name no model of this gateway. passed_on: the models whose engines answer by themselves."""

    def __init__(
        self,
        default: Moderator | None = None,
        others: Mapping[str, Moderator] | None = None,
        names: Collection[str] = (),
        passed_on: Collection[str] = (),
    ) -> None:
        self.default = default
        self._by_model = dict(others or {})
        if default is not None:
            self._by_model[default.model] = default
        self._names, self._passed_on = frozenset(names), frozenset(passed_on)

    def of(self, model: str) -> Moderator | None:
        """The guardrail that answers for this model; None where its engine does."""
        return self._by_model.get(model)

    def model(self, asked: str, known: bool) -> str:
        """The model that answers. known: whether there is a model of the name asked for. Raises RequestError."""
        if asked in self._by_model or asked in self._passed_on:
            return asked
        if not known and self.default is not None and asked in self._names:
            return self.default.model
        if known:
            raise RequestError(f"model: {asked[:128]!r} does not judge texts here.", param="model", code="unsupported_operation")
        if self.default is None and asked in self._names:
            raise RequestError(NOT_CONFIGURED, code="moderation_not_configured", status=404)
        return asked  # nobody's: refused as every unknown model is
