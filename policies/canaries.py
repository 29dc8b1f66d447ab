"""Whether an engine on trial fares worse than it may. Pure."""

from __future__ import annotations

from typing import Final

from gateway.core.rollouts import Side, quantile
from gateway.core.specs.rollouts import CanarySpec

P95: Final = 0.95


def verdict(spec: CanarySpec, canary: Side, others: Side) -> str:
    """Why the engine is to be withdrawn, in one sentence; "" where it is not. canary, others: what each answered in the window.

    Fewer requests than `min_requests` show nothing; the others' bounds count only where they have as many.
    """
    if canary.answers < spec.min_requests:
        return ""
    compares = others.answers >= spec.min_requests
    return _errors(spec, canary, others if compares else None) or _speed(spec, canary, others if compares else None)


def _errors(spec: CanarySpec, canary: Side, others: Side | None) -> str:
    share = canary.errors / canary.answers
    if spec.max_errors is not None and share > spec.max_errors:
        return f"{share:.1%} of {canary.answers} requests failed; {spec.max_errors:.1%} may"
    if others is not None and spec.errors_over is not None:
        usual = others.errors / others.answers
        if share > usual + spec.errors_over:
            return f"{share:.1%} of {canary.answers} requests failed, of the others' {usual:.1%}; {spec.errors_over:.1%} more may"
    return ""


def _speed(spec: CanarySpec, canary: Side, others: Side | None) -> str:
    first = quantile(canary.first, P95) if sum(canary.first) >= spec.min_requests else None
    if first is not None:
        if spec.max_first_token is not None and first > spec.max_first_token:
            return f"the first token came within {_figure(first)} s (p95); {_exact(spec.max_first_token)} s are allowed"
        usual = quantile(others.first, P95) if others is not None and sum(others.first) >= spec.min_requests else None
        if usual is not None and spec.first_token_factor is not None and first > usual * spec.first_token_factor:
            times = f"{_exact(spec.first_token_factor)} times as much may be"
            return f"the first token came within {_figure(first)} s (p95), the others' within {_figure(usual)} s; {times}"
    rate = _rate(canary)
    if rate is not None:
        if spec.min_tokens_per_second is not None and rate < spec.min_tokens_per_second:
            return f"it gave {_figure(rate)} tokens/s; {_exact(spec.min_tokens_per_second)} are wanted"
        normal = None if others is None else _rate(others)
        if normal is not None and spec.tokens_factor is not None and rate < normal * spec.tokens_factor:
            return f"it gave {_figure(rate)} tokens/s, the others {_figure(normal)}; {_exact(spec.tokens_factor)} times as many are wanted"
    return ""


def _figure(value: float) -> str:
    """A measured number to three digits, without an exponent."""
    return _exact(float(f"{value:.3g}"))


def _exact(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _rate(side: Side) -> float | None:
    """Tokens a second of one request, on average; None where nothing is known."""
    return side.completion_tokens / side.seconds if side.seconds > 0 and side.completion_tokens else None
