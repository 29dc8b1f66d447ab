"""Candidates that are tried on real traffic, in all processes of this gateway: their figures. Other replicas have figures of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

from gateway.app.engines.canary_book import LOOK_SECONDS, CanaryBook
from gateway.core.errors import GatehouseError
from gateway.core.rollouts import RolloutsAsked, RolloutsTold, ShadowFigures, Side, quantile, summed
from gateway.core.specs.rollouts import CanarySpec
from gateway.core.tasks import TaskOwner
from gateway.pipeline.canaries import Trials

SECONDS: Final = 5.0
"""How long to wait for a worker's answer."""


class RolloutBook:
    """Candidates in all processes, for the admin listener. trials: those of this process; in use where it serves itself. asked: puts a
    question to every worker that serves, by its id; None where there are none."""

    canaries: CanaryBook
    """Set by the composition root."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self.asked: Callable[[RolloutsAsked, float], Mapping[str, asyncio.Future[RolloutsTold]]] | None = None

    async def of_shadows(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """What is known by model, and the workers that have not answered within some seconds."""
        told, silent = await self._told()
        return {name: shown(figures) for name, figures in summed(told.values()).items()}, silent

    async def _told(self) -> tuple[dict[str, RolloutsTold], list[str]]:
        """(the reports of the processes that serve, by their ids; the ids of those that sent none)."""
        if self.asked is None:
            return {"": self.trials.told()}, []
        told, silent = {}, []
        for id, answer in self.asked(RolloutsAsked(), SECONDS).items():
            try:
                told[id] = await answer
            except GatehouseError:
                silent.append(id)
        return told, silent

    # --- engines on trial

    def begin(self, owner: TaskOwner) -> None:
        """A configuration is in force."""
        self.canaries.begin()
        owner.every(LOOK_SECONDS, self._look, name="engines on trial")

    async def _look(self) -> None:
        if self.canaries.any:
            asked = monotonic()
            told, silent = await self._told()
            await self.canaries.look({id: one.canaries for id, one in told.items()}, silent, asked)

    def of_canaries(self) -> dict[str, dict[str, Any]]:
        return {name: _trial(*each) for name, each in self.canaries.views().items()}

    async def resume(self, model: str, actor: str, *, dry_run: bool = False) -> dict[str, Any]:
        return await self.canaries.resume(model, actor, dry_run=dry_run)


def _trial(spec: CanarySpec, gone: dict[str, Any] | None, canary: Side, others: Side) -> dict[str, Any]:
    return {
        "engine": spec.engine,
        "withdrawn": gone is not None,
        "reason": None if gone is None else gone["reason"],
        "since": None if gone is None else gone["at"],
        "window": spec.window,
        "min_requests": spec.min_requests,
        "canary_side": _side(canary),
        "other_side": _side(others),
    }


def shown(figures: ShadowFigures) -> dict[str, Any]:
    return {
        "candidate": figures.candidate,
        "sampled": figures.sampled,
        "mirrored": figures.mirrored,
        "dropped": figures.dropped,
        "skipped": figures.skipped,
        "waiting": figures.waiting,
        "running": figures.running,
        "compared": figures.compared,
        "likeness": round(figures.likeness_sum / figures.compared, 4) if figures.compared else None,
        "likeness_tenths": figures.likeness,
        "model_side": _side(figures.model),
        "candidate_side": _side(figures.shadow),
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "answers": side.answers,
        "errors": side.errors,
        "refusals": side.refusals,
        "prompt_tokens": side.prompt_tokens,
        "completion_tokens": side.completion_tokens,
        "tokens_per_second": round(side.completion_tokens / side.seconds, 3) if side.seconds else None,
        "latency_p50": _rounded(quantile(side.latency, 0.5)),
        "latency_p95": _rounded(quantile(side.latency, 0.95)),
        "first_token_p50": _rounded(quantile(side.first, 0.5)),
        "first_token_p95": _rounded(quantile(side.first, 0.95)),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{seconds:.4g}")
