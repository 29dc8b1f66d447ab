"""The control process's side of one bucket: the bucket itself, and what each worker holds of it.

What a worker holds is charged when it is handed out, and the bucket does not refill beyond burst minus what is out: what is left in it and
what is out are never more than the burst together. So over all workers, between any two moments, no more is admitted than
burst + rate x time, whatever becomes of a worker: what a dead one held counts as used.
"""

from __future__ import annotations

from gateway.limits.bucket import Bucket, Shape


class Lease:
    """What one worker holds of one bucket. `requests`, `tokens`: until `expires`. `slots`: until it gives them back or is gone.

    number: of the share of rates; a new one after nothing was left. asked_at: when it last asked. size: how many requests ahead it is
    granted. recalled_at: when it was last asked to give back; `recalled`: it has not answered yet. listed: the book will look at it again.
    """

    __slots__ = ("asked_at", "expires", "listed", "number", "recalled", "recalled_at", "requests", "size", "slots", "tokens", "worker")

    def __init__(self, worker: str, now: int) -> None:
        self.worker = worker
        self.number = self.expires = 0
        self.requests = self.tokens = self.slots = self.size = 0
        self.asked_at = now
        self.recalled_at = -1
        self.listed = self.recalled = False


class Account(Bucket):
    """A bucket and its leases. `in_use`: slots that workers hold. undecided: requests that are being decided. Times in picoseconds."""

    __slots__ = ("contended_until", "key", "leases", "requests_out", "tokens_out", "undecided")

    def __init__(self, shape: Shape, key: tuple[str, ...]) -> None:
        super().__init__(shape)
        self.key = key
        self.leases: dict[str, Lease] = {}
        self.requests_out = self.tokens_out = 0
        self.contended_until = self.undecided = 0

    def idle(self, now: int) -> bool:
        return not self.leases and self.in_use == 0 and self.undecided == 0 and self.requests_full <= now and self.tokens_full <= now

    def settle(self, now: int) -> None:
        """Ends the leases that have expired, and cuts what has refilled to what may be in the bucket beside what is out."""
        if self.requests_out or self.tokens_out:
            expired: list[tuple[int, Lease]] = []
            for lease in self.leases.values():
                if lease.expires <= now and (lease.requests or lease.tokens):
                    expired.append((lease.expires, lease))
            if len(expired) > 1:
                expired.sort(key=_first)
            for when, lease in expired:
                self._cut(when)
                self.used(lease, lease.requests, lease.tokens)
            self._cut(now)

    def _cut(self, now: int) -> None:
        shape = self.shape
        if self.requests_out and shape.requests is not None:
            least = now + self.requests_out * shape.request_ps
            if self.requests_full < least:
                self.requests_full, self.requests_idle = least, now
        if self.tokens_out and shape.tokens is not None:
            least = now + self.tokens_out * shape.tokens.unit_ps
            if self.tokens_full < least:
                self.tokens_full, self.tokens_idle = least, now

    # --- all of these after `settle`

    def used(self, lease: Lease, requests: int, tokens: int) -> None:
        """The worker has used this much of its lease, or lost it."""
        lease.requests -= requests
        lease.tokens -= tokens
        self.requests_out -= requests
        self.tokens_out -= tokens

    def put_back(self, lease: Lease, requests: int, tokens: int) -> None:
        """The worker has not used this much of its lease, and will not."""
        self.used(lease, requests, tokens)
        self.requests_full -= requests * self.shape.request_ps
        if self.shape.tokens is not None:
            self.tokens_full -= tokens * self.shape.tokens.unit_ps

    def put_back_slots(self, lease: Lease, slots: int) -> None:
        lease.slots -= slots
        self.in_use -= slots

    def admit(self, lease: Lease | None, now: int, token_ps: int) -> None:
        """Charges one request that `admits` allowed. lease: takes its slot, where the limit counts them."""
        self.take(now, token_ps)
        if lease is None:
            self.in_use -= 1
        else:
            lease.slots += 1

    def short_of_rates(self, now: int, token_ps: int) -> bool:
        """Whether a rate refuses what costs `token_ps` of the token bucket, however many are under way."""
        shape = self.shape
        rate = shape.requests
        if rate is not None and self.requests_full + shape.request_ps > now + rate.burst_ps:
            return True
        rate = shape.tokens
        return rate is not None and self.tokens_full + token_ps > now + rate.burst_ps

    def left(self, now: int) -> tuple[int, int, int]:
        """Whole requests, tokens and slots that can be handed out now; -1 for what is not limited."""
        shape = self.shape
        requests = tokens = slots = -1
        if shape.requests is not None:
            requests = shape.requests.level(self.requests_full - now)
        if shape.tokens is not None:
            tokens = shape.tokens.level(self.tokens_full - now)
        if shape.concurrent:
            slots = max(0, shape.concurrent - self.in_use)
        return requests, tokens, slots

    def hand_out(self, lease: Lease, now: int, requests: int, tokens: int, slots: int) -> None:
        """Charges what `left` had, for the worker to use later."""
        shape = self.shape
        if requests:
            if self.requests_full <= now:
                self.requests_full = self.requests_idle = now
            self.requests_full += requests * shape.request_ps
            self.requests_out += requests
            lease.requests += requests
        if tokens and shape.tokens is not None:
            if self.tokens_full <= now:
                self.tokens_full = self.tokens_idle = now
            self.tokens_full += tokens * shape.tokens.unit_ps
            self.tokens_out += tokens
            lease.tokens += tokens
        lease.slots += slots
        self.in_use += slots

    def adjust(self, taken_at: int, now: int, reserved_ps: int, actual_ps: int, requests: int) -> None:
        """Settles an exchange whose reservation of `taken_at` was charged here, as `correct` and `give_back` do; the slot apart."""
        if requests and self.requests_idle <= taken_at:
            self.requests_full -= requests * self.shape.request_ps
        self.correct(taken_at, now, reserved_ps, actual_ps)
        self.in_use += 1


def _first(pair: tuple[int, Lease]) -> int:
    return pair[0]
