"""Metrics of candidates that are tried on real traffic, of hedged requests and of steps. Apart from the book of candidates, which needs the
store: workers load nothing of it."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.pipeline.canaries import Trials


class RolloutGauges:
    """`Metrics.gauges` calls `collect`, in each process that serves."""

    def __init__(self, trials: Trials) -> None:
        self._shadows, self._hedges, self._steps = trials.shadows, trials.hedges, trials.steps

    def collect(self) -> Iterable[Metric]:
        labels = ["model", "candidate"]
        mirrored = CounterMetricFamily("gatehouse_shadow_requests", "Requests that were to be mirrored", labels=[*labels, "result"])
        answers = CounterMetricFamily("gatehouse_shadow_answers", "Answers to mirrored requests", labels=[*labels, "side", "result"])
        tokens = CounterMetricFamily("gatehouse_shadow_completion_tokens", "Tokens of these answers", labels=[*labels, "side"])
        compared = CounterMetricFamily("gatehouse_shadow_compared", "Pairs of answers that were compared", labels=labels)
        alike = CounterMetricFamily("gatehouse_shadow_likeness", "Sum of how alike they were, 0 to 1", labels=labels)
        waiting = GaugeMetricFamily("gatehouse_shadow_waiting", "Mirrored requests that wait", labels=labels)
        for model, figures in self._shadows.figures().items():
            pair = [model, figures.candidate]
            for result, count in {"mirrored": figures.mirrored, **figures.dropped, **figures.skipped}.items():
                mirrored.add_metric([*pair, result], count)
            for name, side in (("model", figures.model), ("candidate", figures.shadow)):
                for result, count in (
                    ("ok", side.answers - side.errors - side.refusals),
                    ("error", side.errors),
                    ("refusal", side.refusals),
                ):
                    answers.add_metric([*pair, name, result], max(0, count))
                tokens.add_metric([*pair, name], side.completion_tokens)
            compared.add_metric(pair, figures.compared)
            alike.add_metric(pair, figures.likeness_sum)
            waiting.add_metric(pair, figures.waiting)
        yield from (mirrored, answers, tokens, compared, alike, waiting)
        hedges = CounterMetricFamily("gatehouse_hedges", "Second attempts, and those that were to be", labels=["model", "result"])
        wasted = CounterMetricFamily("gatehouse_hedge_wasted_seconds", "Seconds of attempts that lost", labels=["model"])
        for model, state in self._hedges.figures().items():
            for result, count in state.results.items():
                hedges.add_metric([model, result], count)
            wasted.add_metric([model], state.wasted)
        yield from (hedges, wasted)
        yield from self._steps.collect()
