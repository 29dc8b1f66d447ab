"""Speculation without a second model: guess the next tokens from what the sequence itself holds, and let one step check several.

A *guess* is what followed when the last few tokens (`match`) occurred before, in the prompt or in the answer: quotations, code, JSON and
lists repeat themselves. Guessed tokens join the step behind the sequence's last token. The sampler then draws after each of them as it
would have without a guess; a guess stands as long as it is what was drawn, and the first draw that differs is kept and ends it. So every
token is the sampler's own draw from the model's own logits, in the same order: guesses change how many tokens a step brings, never which.

Whether guesses pay is decided anew for each step (:func:`choose`): by what each sequence's guesses have been worth, which is known even
while none is made, since each token that comes shows whether it would have been guessed; and by what steps of so many tokens have cost
(:class:`Prices`). Where they do not pay, none is made.

Pure: no model, no clock, no thread. A sequence's guesses come from its own tokens alone, and so does what they are believed to be worth.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

MOST_INDEXED = 65_536
"""Tokens of a prompt, counted from its end, in which repetitions are looked for."""
MOST_DRAFTED = 64
"""Guessed tokens of one step, all sequences together: the logits of each take room."""
UNLIKELY = 0.05
"""A guess less probable than this is not made."""
GAIN = 1.05
"""A step with guesses must promise so many times the tokens a second of one without: what is promised is only estimated."""
_LENGTHS = (4, 8, 16, 32)
_PRIOR = (0.35, 0.55, 0.7, 0.8, 0.85)
"""How often a guess is right while a sequence has shown little: the longer what precedes has matched, the more probably."""
_PRIOR_WEIGHT = 4.0
_FORGET = 0.97
_SUDDEN = 2.0
_NEWS_OF_SPEED, _NEWS_OF_SHAPE = 0.3, 0.03


class Guesser:
    """One sequence: its tokens, where they occurred before, and what its guesses are worth. Made anywhere; used by the decode thread."""

    __slots__ = ("_at", "_match", "_matched", "_right", "_seen", "_tokens", "_tried")

    def __init__(self, tokens: Sequence[int], match: int) -> None:
        self._match = match
        self._tokens = array("i", tokens[-MOST_INDEXED:])
        self._seen: dict[bytes, int] = {}
        self._at = 0  # the token that is guessed next; 0: none
        self._matched = 0
        self._tried = [_PRIOR_WEIGHT] * len(_PRIOR)
        self._right = [_PRIOR_WEIGHT * prior for prior in _PRIOR]
        for end in range(match, len(self._tokens)):
            self._seen[self._tokens[end - match : end].tobytes()] = end
        self._look_up()

    def add(self, token: int) -> None:
        """The sequence's next token is known."""
        if self._at:
            length = bisect_left(_LENGTHS, self._matched)
            right = self._tokens[self._at] == token
            self._tried[length] = self._tried[length] * _FORGET + 1
            self._right[length] = self._right[length] * _FORGET + right
            self._at = self._at + 1 if right else 0
            self._matched += 1
        self._tokens.append(token)
        self._look_up()

    def _look_up(self) -> None:
        """Note the last tokens, after looking where they occurred before if no guess is being followed."""
        size = len(self._tokens)
        if size < self._match:
            return
        key = self._tokens[size - self._match :].tobytes()
        if not self._at:
            self._at = self._seen.get(key, 0)
            self._matched = self._match
        self._seen[key] = size

    def chances(self, most: int) -> list[float]:
        """For each of up to `most` guesses, the probability that it and all before it are right; fewer where they become unlikely."""
        found: list[float] = []
        if not self._at:
            return found
        chance = 1.0
        for ahead in range(most):
            length = bisect_left(_LENGTHS, self._matched + ahead)
            chance *= self._right[length] / self._tried[length]
            if chance < UNLIKELY:
                break
            found.append(chance)
        return found

    def guess(self, count: int) -> list[int]:
        """The next tokens as guessed; where the repetition reaches the present, it goes on repeating."""
        period = len(self._tokens) - self._at
        return [self._tokens[self._at + ahead % period] for ahead in range(count)] if self._at else []


class Prices:
    """What steps that read no prompt cost, by their number of tokens: relative to each other. How fast the machine is just now is followed
    apart, and quickly, because it concerns all of them."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._seconds: dict[int, float] = {}
        self._speed = 1.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Learns from a step."""
        known = self._seconds.get(tokens)
        if known is None:
            self._counts.insert(bisect_left(self._counts, tokens), tokens)
            self._seconds[tokens] = seconds / self._speed
            return
        factor = min(max(seconds / known, self._speed / _SUDDEN), self._speed * _SUDDEN)
        self._speed += (factor - self._speed) * _NEWS_OF_SPEED
        self._seconds[tokens] += (known * factor / self._speed - known) * _NEWS_OF_SHAPE

    def at(self, tokens: int) -> float:
        """What a step of so many tokens costs, from those that were seen. Before two have been: proportional, so that no guess pays."""
        counts = self._counts
        if len(counts) < 2:
            return float(tokens)
        place = min(max(bisect_left(counts, tokens), 1), len(counts) - 1)
        low, high = counts[place - 1], counts[place]
        first, second = self._seconds[low], self._seconds[high]
        return max(first + (second - first) * (tokens - low) / (high - low), first * 0.5)


def choose(prices: Prices, streams: int, offers: Sequence[Sequence[float]], room: int) -> list[int]:
    """How many guesses of each sequence to make in a step of so many streams: those that bring the most tokens for what the step costs.

    offers: the chances of each sequence's guesses, falling. room: the most tokens that may be added.
    """
    counts = [0] * len(offers)
    ranked = sorted(((-chance, place) for place, chances in enumerate(offers) for chance in chances))[: min(room, MOST_DRAFTED)]
    tokens, best, size = float(streams), streams / prices.at(streams) * GAIN, 0
    for number, (chance, _place) in enumerate(ranked, start=1):
        tokens -= chance
        if (worth := tokens / prices.at(streams + number)) > best:
            best, size = worth, number
    for _chance, place in ranked[:size]:
        counts[place] += 1
    return counts
