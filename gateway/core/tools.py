"""Tools as policies see them: what a request offers, what an answer calls, what the client sends back, and what a rule says of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from msgspec import Struct

from gateway.core.values import Principal

Kind = Literal["call", "definition", "result"]
Action = Literal["allow", "hold", "block"]
SEVERITY: Final[dict[Action, int]] = {"allow": 0, "hold": 1, "block": 2}
Reversibility = Literal["reversible", "compensable", "irreversible", "unknown"]


class ToolUse(Struct, frozen=True):
    """One use of a tool. names: all that an engine or a client may take for the tool's, the likeliest first. arguments: of a call, as
    written; of a result, its content. place: where it stands, for messages. unreadable: why it cannot be read in one way only, or "".
    free: the arguments are a text by the tool's own definition, and no JSON.
    """

    kind: Kind
    names: tuple[str, ...]
    arguments: str = ""
    place: str = ""
    unreadable: str = ""
    free: bool = False

    @property
    def name(self) -> str:
        return self.names[0] if self.names else ""


class ToolFinding(Struct, frozen=True):
    """What a guardrail says of one use. rule: its number, from 0; -1: no rule fits. sha256: of the canonical arguments, in hex; "" for a
    definition."""

    use: ToolUse
    action: Action
    rule: int = -1
    reversibility: Reversibility = "unknown"
    sha256: str = ""


class ToolGuard(Protocol):
    """A guardrail that judges tools. may_hold: whether a rule can say `hold`. expires: seconds for which what is held is kept. approvers:
    subjects who may decide; empty: whoever has the permission. monitor: what it finds is recorded, and nothing is done. concerns: whether
    it judges a caller's tools; None: everybody's."""

    name: str
    monitor: bool
    concerns: Callable[[Principal], bool] | None

    @property
    def may_hold(self) -> bool: ...

    @property
    def expires(self) -> float: ...

    @property
    def approvers(self) -> tuple[str, ...]: ...

    def judge(self, uses: Sequence[ToolUse], caller: Principal, model: str) -> Sequence[ToolFinding]:
        """One finding for each use. An exception is a denial by the pipeline (fail mode `closed`)."""
        ...


class CallReader(Protocol):
    """Follows the events of one stream until it is whole."""

    def feed(self, event: bytes) -> tuple[bytes, bool]:
        """One event as it may be passed on, and whether it holds a part of a call. Raises EngineError for one that cannot be read."""
        ...

    def uses(self) -> Sequence[ToolUse]:
        """The calls, once the stream is whole."""
        ...
