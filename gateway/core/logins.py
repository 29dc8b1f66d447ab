"""Logins by name and password, counted once for a whole replica: the throttles of the directories are in the process that has the store,
and workers ask it before they ask a directory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final, Literal, Protocol

from gateway.core.clock import Clock
from gateway.core.errors import Overloaded
from gateway.core.messages import Ask, Message
from gateway.core.throttle import LoginThrottle, Try
from gateway.core.waiting import Maybe

Outcome = Literal["succeeded", "failed", "abandoned"]
MAX_OPEN: Final = 4096
"""Logins of all workers under way: more than their directories take at once."""


class LoginBegun(Message, frozen=True):
    """number: of the login; 0: it is to be refused without asking the directory."""

    number: int = 0


class BeginLogin(Ask[LoginBegun], frozen=True):
    """As LoginThrottle.begin, for a directory by its name."""

    directory: str
    account: str
    address: str
    proof: bytes


class LoginEnded(Message, frozen=True):
    """What has become of it."""

    number: int
    outcome: Outcome


class Attempt(Protocol):
    """One login under way. Exactly one of its methods is called when it has ended."""

    def succeeded(self) -> None: ...

    def failed(self) -> None: ...

    def abandoned(self) -> None: ...


class Logins(Protocol):
    """key: of the hashes by which passwords are compared; the same in all processes that count together."""

    @property
    def key(self) -> bytes: ...

    def begin(self, directory: str, account: str, address: str, proof: bytes) -> Maybe[Attempt | None]:
        """None if this login is to be refused without a check. Raises GatehouseError when that cannot be said."""
        ...


class LocalLogins:
    """The throttles of one process, which outlive its configurations. key: gives the key."""

    def __init__(self, clock: Clock, key: Callable[[], bytes]) -> None:
        self._clock, self._key = clock, key
        self._throttles: dict[str, LoginThrottle] = {}

    @property
    def key(self) -> bytes:
        return self._key()

    def begin(self, directory: str, account: str, address: str, proof: bytes) -> Try | None:
        throttle = self._throttles.get(directory)
        if throttle is None:
            throttle = self._throttles[directory] = LoginThrottle(self._clock)
        return throttle.begin(account, address, proof)


class LoginDesk:
    """Answers the workers. A worker that ends leaves its logins charged."""

    def __init__(self, logins: LocalLogins) -> None:
        self._logins = logins
        self._numbers = count(1)
        self._open: dict[int, tuple[str, Try]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, worker: str, wish: BeginLogin) -> LoginBegun:
        """Raises Overloaded."""
        if len(self._open) >= MAX_OPEN:
            raise Overloaded("Too many logins at once; try again.", retry_after=1.0)
        attempt = self._logins.begin(wish.directory, wish.account, wish.address, wish.proof)
        if attempt is None:
            return LoginBegun()
        number = next(self._numbers)
        self._open[number] = (worker, attempt)
        return LoginBegun(number)

    def ended(self, worker: str, said: LoginEnded) -> None:
        """Ends a login. One that was begun before the program was replaced is unknown here, and ignored."""
        owner, attempt = self._open.get(said.number, ("", None))
        if attempt is None or owner != worker:
            return
        del self._open[said.number]
        getattr(attempt, said.outcome)()

    def gone(self, worker: str) -> None:
        for number in [number for number, (owner, _) in self._open.items() if owner == worker]:
            del self._open[number]


class RemoteLogins:
    """A worker's: asks the process that counts. ask: raises GatehouseError when there is no answer."""

    def __init__(self, key: bytes, ask: Callable[[BeginLogin], Awaitable[LoginBegun]], tell: Callable[[LoginEnded], None]) -> None:
        self.key, self._ask, self._tell = key, ask, tell

    async def begin(self, directory: str, account: str, address: str, proof: bytes) -> Attempt | None:
        answer = await self._ask(BeginLogin(directory, account, address, proof))
        return RemoteAttempt(answer.number, self._tell) if answer.number else None


class RemoteAttempt:
    """A login that is counted elsewhere."""

    __slots__ = ("_number", "_tell")

    def __init__(self, number: int, tell: Callable[[LoginEnded], None]) -> None:
        self._number, self._tell = number, tell

    def succeeded(self) -> None:
        self._tell(LoginEnded(self._number, "succeeded"))

    def failed(self) -> None:
        self._tell(LoginEnded(self._number, "failed"))

    def abandoned(self) -> None:
        self._tell(LoginEnded(self._number, "abandoned"))
