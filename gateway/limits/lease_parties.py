"""What a LeaseBook keeps of those who ask it: its workers, and their requests that wait."""

from __future__ import annotations

from gateway.limits.account import Account
from gateway.limits.bucket import Shape
from gateway.limits.lease_messages import Decided, Granted, Wanted


class Waiting:
    """A request for which shares were recalled, or blocks are taken from the store (refilling; refills: how often)."""

    __slots__ = ("accounts", "asked_from", "costs", "recalled", "refilling", "refills", "until", "wanted", "worker")

    def __init__(self, worker: Party, wanted: Wanted, accounts: list[Account], costs: list[list[int]], until: int) -> None:
        self.worker, self.wanted, self.accounts, self.costs, self.until = worker, wanted, accounts, costs, until
        self.asked_from: set[tuple[Account, str]] = set()
        self.refilling = self.recalled = False
        self.refills = 0


class Party:
    """What the book knows of a worker. silent: it has not answered a recall, so nobody waits for it until it says something."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.limits: dict[int, Shape] = {}
        self.accounts: dict[Account, None] = {}
        self.silent = False
        self.decided: list[Decided] = []
        self.granted: list[Granted] = []
        self.recalls: list[tuple[int, tuple[str, ...]]] = []

    def number_of(self, shape: Shape) -> int | None:
        return next((number for number, known in self.limits.items() if known is shape), None)
