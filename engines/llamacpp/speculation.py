"""Speculation: guess the next tokens from what the sequence itself holds, or let a small model guess them, and let one step check several.

A *guess* is what followed when the last few tokens (`match`) occurred before, in the prompt or in the answer: quotations, code, JSON and
lists repeat themselves. Guessed tokens join the step behind the sequence's last token. The sampler then draws after each of them as it
would have without a guess; a guess stands as long as it is what was drawn, and the first draw that differs is kept and ends it. So every
token is the sampler's own draw from the model's own logits, in the same order: guesses change how many tokens a step brings, never which.

Whether guesses pay is decided anew for each step (:func:`choose`): by what each sequence's guesses have been worth, which is known even
while none is made, since each token that comes shows whether it would have been guessed; and by what steps of so many tokens have cost
(:class:`Prices`). Where they do not pay, none is made.

A draft model's guesses cost steps of its own. How far it guesses for each stream is decided before (:func:`depths`), by how often its
guesses have been right for this sequence and by what both models' steps cost; what of it is checked, after, by how sure it was
(:class:`Trust`). What it costs beyond that is bounded by an account (:class:`Account`): while it does not pay, it gets a small share of the
time.

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
SHARE = 0.02
"""The share of the steps' time that a draft model may take while it saves nothing."""
FIRST_SECONDS, MOST_SECONDS = 0.2, 5.0
"""What the account begins with, and the most that it holds."""
FIRST_PAUSE, LONGEST_PAUSE = 32, 1024
"""Tokens after which a sequence whose drafts do not pay is tried again: at first, and at most."""
_LENGTHS = (4, 8, 16, 32)
_PRIOR = (0.35, 0.55, 0.7, 0.8, 0.85)
"""How often a guess is right while a sequence has shown little: the longer what precedes has matched, the more probably."""
_SURE = (0.3, 0.6, 0.8, 0.95)
_SURE_PRIOR = (0.15, 0.4, 0.65, 0.85, 0.95)
_HOPE = 0.75
"""How often a draft model's guess is right while a sequence has shown little: by its own probability, and whatever that will be."""
_PRIOR_WEIGHT = 4.0
_FORGET = 0.97
_SUDDEN = 2.0
_NEWS_OF_SPEED, _NEWS_OF_SHAPE = 0.3, 0.03
_WELL_KNOWN, _OLD = 8, 64
"""Times that a price was seen until it is well known, and steps after which it is no longer."""
_FALLING, _FALLING_NEW = 1 / 512, 1 / 64
"""Share of its distance to the price of a smaller step that one which is not seen loses with each step: if it has been well known, and if
it has been seen a few times only."""


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


class Trust:
    """What a draft model's guesses for one sequence are worth, by how probable the draft model itself thought them."""

    __slots__ = ("_all_right", "_all_tried", "_pause", "_pending", "_right", "_since", "_tried")

    def __init__(self) -> None:
        self._tried = [_PRIOR_WEIGHT] * len(_SURE_PRIOR)
        self._right = [_PRIOR_WEIGHT * prior for prior in _SURE_PRIOR]
        self._all_tried, self._all_right = _PRIOR_WEIGHT, _PRIOR_WEIGHT * _HOPE
        self._pending: list[tuple[int, int]] = []
        self._since, self._pause = 0, FIRST_PAUSE

    def follow(self, tokens: Sequence[int], sure: Sequence[float]) -> None:
        """The draft model has guessed these tokens, whether or not they are checked. sure: their probabilities by the draft model."""
        self._pending = [(token, bisect_left(_SURE, share)) for token, share in zip(tokens, sure, strict=True)]
        self._since = 0

    def add(self, token: int) -> None:
        """The sequence's next token is known."""
        self._since += 1
        if not self._pending:
            return
        guessed, kind = self._pending.pop(0)
        right = guessed == token
        self._tried[kind] = self._tried[kind] * _FORGET + 1
        self._right[kind] = self._right[kind] * _FORGET + right
        self._all_tried = self._all_tried * _FORGET + 1
        self._all_right = self._all_right * _FORGET + right
        if not right:
            self._pending.clear()

    @property
    def hope(self) -> float:
        """The probability that a guess not yet made will be right."""
        return self._all_right / self._all_tried

    def chance(self, sure: float) -> float:
        """The probability that a guess is right, by how sure the draft model is of it."""
        kind = bisect_left(_SURE, sure)
        return self._right[kind] / self._tried[kind]

    def due(self) -> bool:
        """Whether a sequence whose drafts did not pay should be tried again."""
        return self._since >= self._pause

    def settle(self, pays: bool) -> None:
        """Drafts were made because they seemed to pay, or to try: the next try comes the later, the more of them have failed."""
        self._pause = FIRST_PAUSE if pays else min(self._pause * 2, LONGEST_PAUSE)


class Account:
    """The time that a draft model may still spend: a share of the time of all steps, plus what it has saved, minus what it has cost."""

    def __init__(self) -> None:
        self.seconds = FIRST_SECONDS

    def step(self, seconds: float) -> None:
        """A step without drafts."""
        self._add(SHARE * seconds)

    def drafted(self, saved: float) -> None:
        """A step with drafts was so much shorter than the steps that would have brought its tokens without; negative: longer."""
        self._add(saved)

    def spend(self, seconds: float) -> None:
        """The draft model has read, for guesses to come."""
        self._add(-seconds)

    def _add(self, seconds: float) -> None:
        self.seconds = min(max(self.seconds + seconds, -MOST_SECONDS), MOST_SECONDS)


class Prices:
    """What steps without prompt tokens cost, by their number of tokens, relative to one another. The machine's current speed, which affects
    all of them, is followed separately and quickly.

    If a step with a well-known price takes longer, the machine has become slower; if one with a little-known price does, its price changes.
    A price that was measured too high, while something else took the processor, would prevent such steps and so a new measurement. So
    prices fall while they are not measured, slowly if they are well known, until such a step is tried.
    """

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._seconds: dict[int, float] = {}
        self._known: dict[int, int] = {}
        """How often a price was seen, none of the times long before the next."""
        self._seen: dict[int, int] = {}
        self._steps = 0
        self._settled = -_OLD
        """The last step whose price was well known."""
        self._speed = 1.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Learns from a step."""
        self._steps += 1
        place = bisect_left(self._counts, tokens)
        if tokens not in self._seconds:
            self._counts.insert(place, tokens)
            self._seconds[tokens] = seconds / self._speed
            self._known[tokens] = 1
        else:
            ratio = max(seconds, 1e-9) / (self._seconds[tokens] * self._speed)
            times = self._known[tokens] if self._steps - self._seen[tokens] < _OLD else 1
            self._known[tokens] = times + 1
            if times < _WELL_KNOWN and self._steps - self._settled < _OLD:
                self._seconds[tokens] *= ratio ** (1 / (times + 1))
            else:
                ratio = min(max(ratio, 1 / _SUDDEN), _SUDDEN)
                self._speed *= ratio**_NEWS_OF_SPEED
                self._seconds[tokens] *= ratio**_NEWS_OF_SHAPE
            if times >= _WELL_KNOWN:
                self._settled = self._steps
        self._seen[tokens] = self._steps
        here = self._seconds[tokens]
        for larger in self._counts[place + 1 :]:
            share = _FALLING if self._known[larger] >= _WELL_KNOWN else _FALLING_NEW
            self._seconds[larger] += (here - self._seconds[larger]) * share

    def stale(self, tokens: int) -> bool:
        """Whether steps of so many tokens have not been seen for so long that their price says little."""
        return self._steps - self._seen.get(tokens, 0) >= _OLD

    def now(self, tokens: int) -> float:
        """Seconds that a step of so many tokens takes on the machine as it is just now."""
        return self.at(tokens) * self._speed

    def at(self, tokens: int) -> float:
        """What a step of so many tokens costs, from those that were seen. Before two have been: proportional, so that no guess pays."""
        counts = self._counts
        if len(counts) < 2:
            return float(tokens)
        place = min(max(bisect_left(counts, tokens), 1), len(counts) - 1)
        low, high = counts[place - 1], counts[place]
        first, second = self._seconds[low], self._seconds[high]
        return max(first + (second - first) * (tokens - low) / (high - low), first * 0.5)


def depths(prices: Prices, draft: Prices, streams: int, offers: Sequence[Sequence[float]], room: int) -> list[int]:
    """How many tokens a draft model should guess for each sequence, for a step of so many streams: its steps, one a token and all sequences
    together, are paid as well as the larger step. The arguments are those of `choose`; draft: what the draft model's steps cost."""
    counts = [0] * len(offers)
    ranked = sorted(((-chance, place) for place, chances in enumerate(offers) for chance in chances))[: min(room, MOST_DRAFTED)]
    tokens, best, size = float(streams), streams / prices.at(streams) * GAIN, 0
    widths: list[int] = []  # of the draft model's steps
    spent = 0.0
    for number, (chance, place) in enumerate(ranked, start=1):
        depth = counts[place]
        counts[place] += 1
        if depth == len(widths):
            widths.append(0)
        spent += draft.at(widths[depth] + 1) - (draft.at(widths[depth]) if widths[depth] else 0.0)
        widths[depth] += 1
        tokens -= chance
        if (worth := tokens / (prices.at(streams + number) + spent)) > best:
            best, size = worth, number
    counts = [0] * len(offers)
    for _chance, place in ranked[:size]:
        counts[place] += 1
    return counts


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
