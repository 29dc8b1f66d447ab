"""What the event loop and the decode thread hand each other: jobs, their events, counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from engines.chat.events import Mailbox
from engines.chat.sampling import TopLogprobs
from engines.llamacpp.prefix import Line
from engines.llamacpp.sampling import Sampler
from engines.llamacpp.scheduler import Work
from engines.llamacpp.speculation import Guesser, Trust

_RATE_WINDOW = 2.0


@dataclass(slots=True, eq=False, kw_only=True)
class SequenceJob(Work):
    """One sequence to generate. The first fields are the request, `mailbox` is its reader, the rest belongs to the decode thread."""

    index: int = 0
    tokens: list[int]
    sampler: Sampler
    max_tokens: int
    mailbox: Mailbox[SequenceJob]
    logprobs: int | None = None
    ignore_eos: bool = False
    prompt_logprobs: bool = False
    pin: bool = False
    domain: bytes = b""
    adapter: str = ""
    markers: Mapping[int, bytes] = field(default_factory=dict)
    guesser: Guesser | None = None
    trust: Trust | None = None
    drafts: list[int] = field(default_factory=list)
    by_model: bool = False
    line: Line | None = None
    reused: int = 0
    generated: int = 0
    last: int = 0
    produced: int = 0
    consumed: int = 0
    output: int = -1
    placed: int = 0
    read: int = 0
    prompt_scores: list[TopLogprobs] = field(default_factory=list)


@dataclass(slots=True)
class Stats:
    """Counters of the decode thread; read by others, each a single assignment."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    decode_seconds: float = 0.0
    requests: int = 0
    cancelled: int = 0
    longest_step: float = 0.0
    faults: int = 0
    drafted: int = 0
    accepted: int = 0
    model_drafted: int = 0
    model_accepted: int = 0
    draft_seconds: float = 0.0
    adapter_changes: int = 0
    in_use: int = 0
    waiting: int = 0
    cells_used: int = 0
    cells_held: int = 0
    rate: float = 0.0
    _window: deque[tuple[float, int]] = field(default_factory=deque)

    def produced(self, count: int, now: float) -> None:
        """Counts tokens generated in the step that ended at `now`."""
        self.generated_tokens += count
        window = self._window
        window.append((now, count))
        while now - window[0][0] > _RATE_WINDOW:
            window.popleft()
        span = max(now - window[0][0], 0.05)
        self.rate = sum(item[1] for item in window) / span if len(window) > 1 else 0.0

    def metrics(self) -> list[tuple[str, str, float]]:
        """(name, kind, value) of every counter and gauge."""
        return [
            ("prompt_tokens_total", "counter", self.prompt_tokens),
            ("cached_prompt_tokens_total", "counter", self.cached_tokens),
            ("generated_tokens_total", "counter", self.generated_tokens),
            ("decode_steps_total", "counter", self.steps),
            ("decode_seconds_total", "counter", round(self.decode_seconds, 6)),
            ("sequences_total", "counter", self.requests),
            ("cancelled_total", "counter", self.cancelled),
            ("faults_total", "counter", self.faults),
            ("drafted_tokens_total", "counter", self.drafted),
            ("accepted_draft_tokens_total", "counter", self.accepted),
            ("model_drafted_tokens_total", "counter", self.model_drafted),
            ("accepted_model_draft_tokens_total", "counter", self.model_accepted),
            ("draft_seconds_total", "counter", round(self.draft_seconds, 6)),
            ("adapter_changes_total", "counter", self.adapter_changes),
            ("slots_in_use", "gauge", self.in_use),
            ("waiting", "gauge", self.waiting),
            ("kv_cells_used", "gauge", self.cells_used),
            ("kv_cells_held", "gauge", self.cells_held),
        ]

    def rate_at(self, now: float) -> float:
        """Tokens a second over the last two seconds; 0 if none were generated lately."""
        return self.rate if self._window and now - self._window[-1][0] < _RATE_WINDOW else 0.0
