"""Every message of the feed between the control process and its workers: the one table of kinds, and what the two tell each other about
themselves. What it takes to add one:

1. Write a frozen `Message` beside the code that it belongs to (`gateway/routing/mirror.py`, `gateway/limits/lease.py`), with plain fields:
   `class EngineDown(Message, frozen=True): engine: str; reason: str = ""`. A question is an `Ask` of its answer:
   `class TakeShares(Ask[Shares], frozen=True): wanted: list[Share]`; `Shares` is a `Message` too.
2. Add each class (an Ask and its answer) to MESSAGES below.
3. Register what happens where it arrives: in `control_handlers` (control.py) or `worker_handlers` (worker.py), `handlers.on(EngineDown, f)`
   or `handlers.answer(TakeShares, g)`. Both call `f(peer, message)`, in the order of arrival, on the loop; peer is the worker's id, or
   `control`. `g` returns the answer or an awaitable of it, and refuses by raising a GatehouseError, which is raised again by the asker.
4. Send it. In a worker: `channel.tell(message)` never waits; `await channel.ask(message, seconds)` waits at most so long. In the control
   process: `hub.tell(worker, message)`, `await hub.ask(worker, message, seconds)`, `hub.tell_all(message)`; and `hub.change(message)`,
   which numbers it for every worker: it is acknowledged once its handler (`handlers.change(Type, h)`; h may return an awaitable) has put
   it into force. `hub.on_joined` has those who tell a new worker something, `hub.on_gone` those who must know of a worker's end.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.app.workers.settings import Settings
from gateway.core.messages import Ask, Done, Message
from gateway.core.secret import Secret
from gateway.core.specs import ConfigSpec
from gateway.core.storage import KeyRecord
from gateway.limits.lease_messages import LeaseCall, LeaseRecall, LeaseReply
from gateway.routing.mirror_messages import TO_CONTROL, TO_WORKER

# --- control -> worker


class State(Message, frozen=True, kw_only=True):
    """Everything that a worker starts with. It is in force once the worker says `Ready`.

    number: of the last change that it contains. worker: the worker's id. replica: the replica's. count: how many workers share the
    memory settings. base: the configuration file's folder. salts: the secret of the salts (gateway.core.isolation), in hex. spec,
    version: the configuration in force with the store's part. What other parts tell a new worker (`hub.on_joined`) follows as messages
    of their own.
    """

    number: int
    worker: str
    replica: str
    count: int
    base: str
    salts: Secret
    spec: ConfigSpec
    version: int
    has_keys: bool = False
    store_lost: float | None = None


class ConfigChanged(Message, frozen=True, kw_only=True):
    """Change: the configuration in force from now on."""

    settings: Settings
    version: int


class KeyChanged(Message, frozen=True):
    """Change: a key of the store was created, updated, rotated, revoked or deleted."""

    id: str
    action: str


class KeysMissed(Message, frozen=True):
    """Change: changes of the store were missed; nothing that is remembered of keys counts any more."""


class Barrier(Message, frozen=True):
    """Change: nothing. Its acknowledgement says that everything told and changed before it is in force."""


class Pulse(Ask["Beat"], frozen=True):
    """Asked every second: tells the worker what it shows in /readyz, and shows that the worker works.

    store_lost: since when the store has not answered, in seconds since the epoch.
    """

    has_keys: bool = False
    store_lost: float | None = None


class Drain(Message, frozen=True):
    """The worker finishes what runs and ends; told again: at once. delay: seconds for which it first goes on serving, not ready any more.
    others: other workers accept on the same socket, so that it can leave each connection after its last answer."""

    delay: float = 0.0
    others: bool = False


class Scrape(Ask["Scraped"], frozen=True):
    """Asks for everything that the worker counts."""


# --- worker -> control


class Ready(Message, frozen=True):
    """The state is in force and the worker serves."""

    compiled: bool = False


class Failed(Message, frozen=True):
    """The worker ends because it could not put a state or a change into force."""

    reason: str


class Beat(Message, frozen=True):
    """What a worker says of itself every second."""

    in_flight: int = 0
    connections: int = 0
    held_bytes: int = 0
    ready: bool = False
    audit_accepting: bool = True


class Used(Message, frozen=True, kw_only=True):
    """Usage since the last one. counts: (day since the epoch, tenant, key, model, requests, prompt, completion, cached tokens).
    keys: ids of keys that were used, with the time. lost: requests that found no room in the ledger."""

    counts: list[tuple[int, str, str, str, int, int, int, int]]
    keys: dict[str, float]
    lost: int = 0


class Happened(Message, frozen=True):
    """An event that the worker has written to its own audit log, for the streams of events."""

    event: dict[str, Any]


class Retire(Message, frozen=True):
    """The worker was asked to end (SIGTERM): it waits to be replaced and drained."""


class FindKey(Ask["KeyFound"], frozen=True):
    """Looks up an API key. digest: the SHA-256 of the whole key."""

    digest: bytes
    key: Secret


class KeyFound(Message, frozen=True):
    """record: None for an unknown key."""

    record: KeyRecord | None = None


class Family(Message, frozen=True):
    """One family of metrics. samples: (name, labels, value), histograms and counters as in the exposition format."""

    name: str
    documentation: str
    type: str
    samples: list[tuple[str, dict[str, str], float]]


class Scraped(Message, frozen=True):
    """Everything counted; told once more at the end of a worker."""

    families: list[Family]


MESSAGES: Final[tuple[type[Message], ...]] = (
    *TO_WORKER,
    *TO_CONTROL,
    Done,
    State,
    ConfigChanged,
    KeyChanged,
    KeysMissed,
    Barrier,
    Pulse,
    Beat,
    Drain,
    Scrape,
    Scraped,
    Ready,
    Failed,
    Used,
    Happened,
    Retire,
    FindKey,
    KeyFound,
    LeaseCall,
    LeaseReply,
    LeaseRecall,
)
"""Every kind."""
