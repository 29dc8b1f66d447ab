"""What the streams of a step guess: by repetition, and by a draft model where there is one. Belongs to the decode thread.

For each step without prompts: the draft model guesses for the streams for which that should pay and nothing repeats itself with as good a
chance; then it is decided over all guesses which of them the step checks. A stream whose draft line lacks much (a prompt) first has it
read, a chunk a step, as far as the account of the draft model goes. Steps that read a prompt have no guesses, which would make them longer.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from engines.llamacpp.drafting import READY, Drafter, Stream
from engines.llamacpp.jobs import SequenceJob, Stats
from engines.llamacpp.prefix import Line
from engines.llamacpp.speculation import UNLIKELY, Account, Prices, choose, depths

EVEN = 1.0
"""A draft model reads before a step as much as takes no longer than that step, times this."""
_TRY = 2
"""Tokens that are guessed to see whether guesses have become better."""
_BEST = tuple(0.95**ahead for ahead in range(1, 5))
"""Chances of a draft model's guesses that are right as often as can be hoped for."""
_REST = 7
"""Steps after one in which the draft model had nothing to do, until it is asked again: to find that out takes time as well."""


class Guessing:
    """Guesses of all streams. most: of a sequence in a step."""

    def __init__(self, most: int, stats: Stats, drafter: Drafter | None = None) -> None:
        self.prices = Prices()
        self.account = Account()
        self._most = most
        self._stats = stats
        self._drafter = drafter
        self._drafted: list[Line] = []
        self._drafting_seconds = 0.0
        self._resting = 0

    @property
    def drafter(self) -> Drafter | None:
        """The draft model, if there is one that works."""
        return self._drafter if self._drafter is not None and not self._drafter.broken else None

    # -- before a step --------------------------------------------------------------------------------------------------

    def make(self, jobs: Sequence[SequenceJob], room: int) -> int:
        """Guess the next tokens of the streams as far as it pays (`drafts` of each); how many in all. room: that a step has for guesses."""
        mosts = [min(self._most, job.max_tokens - job.generated - 1) for job in jobs]
        offers = [job.guesser.chances(most) if job.guesser is not None else [] for job, most in zip(jobs, mosts, strict=True)]
        models: dict[int, Stream] = {}
        if self.drafter is not None and jobs:
            models = self._ask(self.drafter, jobs, mosts, offers, room)
            for place, stream in models.items():
                offers[place] = _likely(stream.chances)
        if not any(offers) or self.prices.stale(len(jobs)):  # now and then a step without guesses, to compare with
            return 0
        counts = choose(self.prices, len(jobs), offers, room)
        for place, (job, count) in enumerate(zip(jobs, counts, strict=True)):
            job.by_model = place in models
            if count:
                job.drafts = models[place].guesses[:count] if job.by_model else job.guesser.guess(count) if job.guesser is not None else []
                self._stats.model_drafted += count if job.by_model else 0
        self._stats.drafted += sum(counts)
        return sum(counts)

    def _ask(
        self, drafter: Drafter, jobs: Sequence[SequenceJob], mosts: Sequence[int], offers: Sequence[Sequence[float]], room: int
    ) -> dict[int, Stream]:  # fmt: skip
        """The draft model's guesses, by the place of their stream."""
        if self.account.seconds <= 0 or self._resting > 0:
            self._resting -= 1
            return {}
        hopes = [self._hopes(drafter, job, most, offer) for job, most, offer in zip(jobs, mosts, offers, strict=True)]
        counts = depths(self.prices, drafter.prices, len(jobs), hopes, room)
        promising: bool | None = None
        asked: dict[int, Stream] = {}
        lagging: list[tuple[int, Line]] = []
        for place, (job, count) in enumerate(zip(jobs, counts, strict=True)):
            line, trust = job.line, job.trust
            if line is None or trust is None or not hopes[place]:
                continue
            if not count:
                if promising is None and trust.due():
                    promising = depths(self.prices, drafter.prices, len(jobs), [_BEST], room)[0] > 0
                if not promising or not trust.due():
                    continue
            lacking = drafter.lacks(line.seq, line.tokens)
            if lacking > READY:
                lagging.append((lacking, line))
            else:
                asked[place] = Stream(line.seq, line.tokens, job.last, trust, count or min(_TRY, mosts[place]))
                trust.settle(count > 0)
        if lagging:
            self._read(drafter, *min(lagging, key=lambda one: one[0]), streams=len(jobs))
        self._resting = 0 if asked or lagging else _REST
        if asked:
            self._drafted = [line for place in asked if (line := jobs[place].line) is not None]
            rate = len(jobs) / self.prices.at(len(jobs))
            further = (self.prices.at(2 * len(jobs)) - self.prices.at(len(jobs))) / len(jobs)
            self._drafting_seconds = drafter.guess(list(asked.values()), rate * (drafter.prices.at(len(asked)) / len(asked) + further))
            self._stats.draft_seconds += self._drafting_seconds
        return {place: stream for place, stream in asked.items() if stream.guesses}

    def _hopes(self, drafter: Drafter, job: SequenceJob, most: int, offer: Sequence[float]) -> list[float]:
        """The chances of guesses that the draft model might make for a stream; none where it cannot or need not."""
        if job.trust is None or job.line is None or most < 1:
            return []
        hope = job.trust.hope
        if offer and offer[0] >= hope:  # what repeats itself costs nothing to guess
            return []
        if drafter.longest:
            most = min(most, drafter.longest - len(job.line.tokens) - 1)
        return _likely([hope ** (ahead + 1) for ahead in range(max(most, 0))])

    def _read(self, drafter: Drafter, lacking: int, line: Line, *, streams: int) -> None:
        """Read a part of what a line lacks."""
        count = drafter.chunk(lacking, min(self.account.seconds, EVEN * self.prices.now(streams)))
        if count:
            seconds = drafter.read(line.seq, line.tokens, count)
            self.account.spend(seconds)
            self._stats.draft_seconds += seconds

    # -- after a step ---------------------------------------------------------------------------------------------------

    def observe(self, streams: int, tokens: int, seconds: float, produced: int) -> None:
        """A step of so many streams that read no prompt, took so long and brought so many tokens; `tokens` with the guesses."""
        drafting, self._drafting_seconds = self._drafting_seconds, 0.0
        if drafting:
            # By what such steps cost usually: a pause of the machine is neither the drafts' fault nor theirs to gain from.
            usual = self.prices.now(streams) * produced / max(streams, 1)
            self.account.drafted(usual - self.prices.now(tokens) - drafting)
        else:
            self.account.step(seconds)
        self.prices.observe(tokens, seconds)

    def settle(self) -> None:
        """What was guessed and not accepted leaves the draft model's memory; the lines hold what is true now."""
        drafted, self._drafted = self._drafted, []
        if self._drafter is not None:
            for line in drafted:
                self._drafter.cut(line.seq, len(line.tokens))

    # -- what happens to lines ------------------------------------------------------------------------------------------

    def place(self, line: Line, reuse: int, source: Line | None) -> None:
        """A request takes a line with so many tokens, or with those of another line."""
        if self._drafter is not None:
            self._drafter.place(line.seq, reuse, source.seq if source is not None else None)

    def cut(self, line: Line, keep: int) -> None:
        """A line is cut."""
        if self._drafter is not None:
            self._drafter.cut(line.seq, keep)

    def pinned(self, line: Line, tokens: array[int]) -> None:
        """A pinned prompt has been read, and stays."""
        if self._drafter is not None:
            self._drafter.read_whole(line.seq, tokens)

    def clear(self) -> None:
        """The memory was cleared."""
        self._drafted = []
        if self._drafter is not None:
            self._drafter.clear()


def _likely(chances: Sequence[float]) -> list[float]:
    return [chance for chance in chances if chance >= UNLIKELY]
