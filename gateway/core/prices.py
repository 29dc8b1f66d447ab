"""A model's price, and its prices in time. Part of the compiled hot path: each settled request is priced here."""

from __future__ import annotations

from math import inf
from time import perf_counter_ns
from typing import Final

from gateway.core.values import DeviceTime, Usage

MILLION: Final = 1_000_000
HOUR_US: Final = 3_600_000_000
"""Microseconds of an hour."""
MAX_COST: Final = 10**15
"""Nano-units: a million of the currency, the most that one request can cost, so that sums of whatever engines report have 64 bits."""


def written(nano: int) -> bytes:
    """A cost as a decimal number: 1250 nano-units are `0.00000125`."""
    text = b"%d.%09d" % divmod(nano, 1_000_000_000)
    return text.rstrip(b"0").rstrip(b".")


class Price:
    """Rates in nano-units of `currency` for a million tokens, `request` for each request. version: a digest that names this price."""

    __slots__ = (
        "_completion_bound",
        "_plain",
        "_prompt_bound",
        "audio",
        "audio_completion",
        "cached",
        "completion",
        "currency",
        "image",
        "prompt",
        "reasoning",
        "request",
        "version",
    )

    def __init__(
        self,
        currency: str,
        version: str,
        request: int = 0,
        *,
        prompt: int = 0,
        completion: int = 0,
        cached: int = 0,
        image: int = 0,
        audio: int = 0,
        reasoning: int = 0,
        audio_completion: int = 0,
    ) -> None:
        self.currency, self.version, self.request = currency, version, request
        self.prompt, self.cached, self.image, self.audio = prompt, cached, image, audio
        self.completion, self.reasoning, self.audio_completion = completion, reasoning, audio_completion
        self._prompt_bound = max(prompt, cached, image, audio)
        self._completion_bound = max(completion, reasoning, audio_completion)
        self._plain = reasoning == completion

    def cost(self, usage: Usage) -> int:
        """What this usage costs, in nano-units, rounded up. Parts of the prompt or of the answer count once, and never beyond the whole."""
        prompt, completion, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
        if cached > prompt:
            cached = prompt
        if usage.has_media:
            total = self._with_media(usage, prompt, completion, cached)
        else:
            total = (prompt - cached) * self.prompt + cached * self.cached + completion * self.completion
            if not self._plain:
                total += min(usage.reasoning_tokens, completion) * (self.reasoning - self.completion)
        found = self.request + (total + 999_999) // MILLION
        return found if found < MAX_COST else MAX_COST

    def _with_media(self, usage: Usage, prompt: int, completion: int, cached: int) -> int:
        left = prompt - cached
        image = min(usage.image_tokens, left)
        audio = min(usage.audio_tokens, left - image)
        reasoning = min(usage.reasoning_tokens, completion)
        spoken = min(usage.audio_completion_tokens, completion - reasoning)
        asked = cached * self.cached + image * self.image + audio * self.audio + (left - image - audio) * self.prompt
        answered = reasoning * self.reasoning + spoken * self.audio_completion + (completion - reasoning - spoken) * self.completion
        return asked + answered

    @property
    def basis(self) -> str:
        """What a cost is computed from: "" for tokens, `device_time`."""
        return ""

    def version_of(self, usage: Usage) -> str:
        """What names the price of this usage."""
        return self.version

    def bound(self, prompt_tokens: int, completion_tokens: int) -> int:
        """The most that a request of so many tokens can cost, in nano-units, whatever kinds of tokens they turn out to be."""
        total = max(prompt_tokens, 0) * self._prompt_bound + max(completion_tokens, 0) * self._completion_bound
        return min(self.request + (total + 999_999) // MILLION, MAX_COST)


class DeviceRate:
    """What an engine costs for an hour of all its devices, in nano-units: while it reads prompts, and while it generates. shared_by: slots,
    0 for the engine's own number. version: a digest that names this rate."""

    __slots__ = ("currency", "decode", "prefill", "shared_by", "version")

    def __init__(self, currency: str, version: str, prefill: int, decode: int, shared_by: int = 0) -> None:
        self.currency, self.version, self.prefill, self.decode, self.shared_by = currency, version, prefill, decode, shared_by

    def cost(self, prefill_us: int, decode_us: int, slots: int) -> int:
        """Of one slot of so many for these microseconds, in nano-units, rounded up."""
        found = -(-(prefill_us * self.prefill + decode_us * self.decode) // (HOUR_US * slots))
        return found if found < MAX_COST else MAX_COST


class SlotTime(DeviceTime):
    """The time for which one attempt holds its slot of an engine that has a rate."""

    __slots__ = ("_began", "_ended", "_first", "rate")

    def __init__(self, rate: DeviceRate, slots: int) -> None:
        super().__init__(rate.shared_by or slots)
        self.rate = rate
        self._first = self._ended = 0
        self._began = perf_counter_ns()

    def answering(self) -> None:
        """The first event of a stream is here."""
        if not self._first:
            self._first = perf_counter_ns()

    def end(self) -> None:
        """The slot is given back, or what it costs is asked for: from now on it costs no more. A second call changes nothing."""
        if self._ended:
            return
        self._ended = perf_counter_ns()
        first = self._first or self._began
        self.prefill_us = (first - self._began) // 1000
        self.decode_us = (self._ended - self._began) // 1000 - self.prefill_us
        self.cost = self.rate.cost(self.prefill_us, self.decode_us, self.slots)
        self.version = self.rate.version


class DevicePrice(Price):
    """The price of a model without a price by tokens, whose engines have rates: each request costs what its slot did. What requests will
    cost is learned from those before: the reservation is what nineteen of twenty cost at most. first: the reservation before that."""

    __slots__ = ("_expected",)

    def __init__(self, currency: str, version: str, first: int) -> None:
        super().__init__(currency, version)
        self._expected = float(first)

    def cost(self, usage: Usage) -> int:
        device = usage.device
        if device is None or not device.version:
            return 0
        step = max(1.0, self._expected * 0.2)
        if device.cost > self._expected:
            self._expected += step * 0.95
        else:
            self._expected = max(1.0, self._expected - step * 0.05)
        return device.cost

    @property
    def basis(self) -> str:
        return "device_time"

    def version_of(self, usage: Usage) -> str:
        return self.version if usage.device is None or not usage.device.version else usage.device.version

    def bound(self, prompt_tokens: int, completion_tokens: int) -> int:
        return int(self._expected) + 1 if completion_tokens or prompt_tokens else 0


class LineUp:
    """The prices of one model in time: (begin, end, price), in seconds since the epoch; where several are valid, the first counts."""

    __slots__ = ("_begin", "_current", "_end", "_prices")

    def __init__(self, prices: tuple[tuple[float, float, Price], ...]) -> None:
        self._prices = prices
        self._begin, self._end = inf, -inf
        self._current: Price | None = None

    def at(self, time: float) -> Price | None:
        """The price at a time; None if there is none then."""
        if self._begin <= time < self._end:
            return self._current
        return self._look_up(time)

    def _look_up(self, time: float) -> Price | None:
        """Finds the price, and for how long it stays the answer."""
        self._begin, self._end, self._current = -inf, inf, None
        for begin, end, price in self._prices:
            if begin <= time < end:
                self._begin, self._end = max(self._begin, begin), min(self._end, end)
                self._current = price
                break
            if begin > time:
                self._end = min(self._end, begin)
            else:
                self._begin = max(self._begin, end)
        return self._current
