"""Tokens that no longer count although they have not expired, in one place for a whole process.

A revocation names one token (its issuer and its `jti`), a subject at an issuer, an issuer, or everything; all but the first refuse what was
issued until a moment. Like `Standing` it outlives Snapshots and is told to workers: every authenticator of tokens asks it on each request,
also for tokens that it remembers. While nothing is revoked, that is one look at `active`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final, Literal

from gateway.core.types import Principal

Kind = Literal["token", "subject", "issuer", "all"]
Row = tuple[str, str, str, float, float]
"""(kind, issuer, value, before, expires): the value is a `jti` or a subject, or "". Times in seconds since the epoch."""
KINDS: Final = ("token", "subject", "issuer", "all")
MAX: Final = 10_000
"""Revocations in force at a time."""


def name_of(row: Row) -> str:
    """Its name in the store: one name for each thing that can be revoked."""
    kind, issuer, value, _, _ = row
    text = "\0".join((issuer, value)).encode("utf-8", "surrogatepass")
    return f"{kind}:{sha256(text).hexdigest()[:32]}"


class Revocations:
    """All revocations of a process, by name. For one event loop. changed: called after each change with what was put (name to row) and the
    names of what was dropped."""

    def __init__(self) -> None:
        self.active = False
        self.changed: list[Callable[[dict[str, Row], list[str]], None]] = []
        self._rows: dict[str, Row] = {}
        self._tokens: set[tuple[str, str]] = set()
        self._subjects: dict[tuple[str, str], float] = {}
        self._issuers: dict[str, float] = {}
        self._all = float("-inf")

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> dict[str, Row]:
        return dict(self._rows)

    def replace(self, rows: Iterable[Row]) -> None:
        """From now on these are all."""
        wanted = {name_of(row): row for row in rows}
        put = {name: row for name, row in wanted.items() if self._rows.get(name) != row}
        self.apply(put, [name for name in self._rows if name not in wanted])

    def apply(self, put: dict[str, Row], dropped: Iterable[str]) -> None:
        """Changes some of them."""
        gone = [name for name in dropped if name in self._rows and name not in put]
        for name in (*gone, *put):
            self._forget(name)
        for name, row in put.items():
            self._note(name, row)
        self.active = bool(self._rows)
        if put or gone:
            for hear in self.changed:
                hear(put, gone)

    def refuses(self, issuer: str, token_id: str, subject: str, issued: float | None) -> bool:
        """Whether a token is revoked. issued: its `iat`; without one it is as old as can be."""
        if not self.active:
            return False
        if token_id and (issuer, token_id) in self._tokens:
            return True
        moment = float("-inf") if issued is None else issued
        if moment <= self._all and self._all > 0:
            return True
        before = self._issuers.get(issuer)
        if before is not None and moment <= before:
            return True
        before = self._subjects.get((issuer, subject))
        return before is not None and moment <= before

    def refuse(self, principal: Principal) -> bool:
        """Whether the token of this caller is revoked, or one that it was issued for, also one by which somebody acts for them."""
        login = principal.login
        if login is not None:
            for one in login.acting:
                if self.refuses(one.issuer, one.token_id, one.id, one.issued):
                    return True
        while login is not None:
            if self.refuses(login.issuer, login.token_id, principal.id, login.issued):
                return True
            login = login.source
        return False

    def _note(self, name: str, row: Row) -> None:
        self._rows[name] = row
        kind, issuer, value, before, _ = row
        if kind == "token":
            self._tokens.add((issuer, value))
        elif kind == "subject":
            self._subjects[(issuer, value)] = before
        elif kind == "issuer":
            self._issuers[issuer] = before
        else:
            self._all = before

    def _forget(self, name: str) -> None:
        row = self._rows.pop(name, None)
        if row is None:
            return
        kind, issuer, value, _, _ = row
        if kind == "token":
            self._tokens.discard((issuer, value))
        elif kind == "subject":
            self._subjects.pop((issuer, value), None)
        elif kind == "issuer":
            self._issuers.pop(issuer, None)
        else:
            self._all = float("-inf")
