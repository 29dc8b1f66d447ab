"""Every message of the feed between the control process and its workers: the table of all kinds, and the messages about the processes
themselves. To add a message:

1. Write a frozen `Message` next to the code that it belongs to (`gateway/routing/mirror_messages.py`, `gateway/limits/lease_messages.py`),
   with plain fields: `class EngineDown(Message, frozen=True): engine: str; reason: str = ""`. A question is an `Ask` of its answer:
   `class TakeShares(Ask[Shares], frozen=True): wanted: list[Share]`; `Shares` is a `Message` too.
2. Add each class (an Ask and its answer) to MESSAGES below.
3. Register what happens where it arrives: in `control_handlers` (control.py) or `worker_handlers` (worker.py), `handlers.on(EngineDown, f)`
   or `handlers.answer(TakeShares, g)`. Both call `f(peer, message)`, in the order of arrival, on the loop; peer is the worker's id, or
   `control`. `g` returns the answer or an awaitable of it, and refuses by raising a GatehouseError, which is raised again by the asker.
4. Send it. In a worker: `channel.tell(message)` never waits; `await channel.ask(message, seconds)` waits at most so long. In the control
   process: `hub.tell(worker, message)`, `await hub.ask(worker, message, seconds)`, `hub.tell_all(message)`; and `hub.change(message)`,
   which numbers it for every worker: it is acknowledged once its handler (`handlers.change(Type, h)`; h may return an awaitable) has put
   it into force. `hub.on_joined` lists what is called for a new worker, `hub.on_gone` what is called when one has ended.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.app.workers.settings import Settings, SettingsPart, SettingsTold
from gateway.core.approvals import Held, Hold, Take, Taken
from gateway.core.batch_messages import MESSAGES as CLIENT_WORK
from gateway.core.caching import CachesAsked, CachesTold
from gateway.core.conversations import AnswerFound, FindAnswer, KeepAnswer
from gateway.core.log_levels import AS_CONFIGURED, LogLevels
from gateway.core.logins import BeginLogin, LoginBegun, LoginEnded
from gateway.core.messages import Ask, Done, Message
from gateway.core.people import PersonRecord, Seen
from gateway.core.proofs import ClaimProof, ProofClaimed
from gateway.core.rollouts import RolloutsAsked, RolloutsTold
from gateway.core.secret import Secret
from gateway.core.specs import ConfigSpec
from gateway.core.storage import KeyRecord
from gateway.core.tickets import MESSAGES as TICKETS
from gateway.core.tokens import Mint, Minted
from gateway.core.vault import CapturesChanged, DataKeyGiven, DataKeyOpened, DataKeysDropped, GiveDataKey, OpenDataKey
from gateway.limits.lease_messages import LeaseCall, LeaseRecall, LeaseReply
from gateway.routing.mirror_messages import TO_CONTROL, TO_WORKER
from gateway.server.tls import Material

RevocationRow = tuple[str, str, str, float, float]
"""As `gateway.identity.revocations.Row`."""
StopRow = tuple[str, str, bool, bool]
"""As `gateway.core.standing.Stop.row`."""

# --- control -> worker


class State(Message, frozen=True, kw_only=True):
    """Everything that a worker starts with. It is in force once the worker says `Ready`.

    number: of the last change that it contains. worker: the worker's id. replica: the replica's. count: how many workers share the
    memory settings. base: the configuration file's folder. salts: the secret of the salts (gateway.core.isolation), in hex. spec,
    version: the configuration in force with the store's part; its lists, which have these digests, come before it, in parts
    (gateway.app.workers.settings). What other parts tell a new worker (`hub.on_joined`) follows as messages
    of their own. logins: the key of gateway.core.logins, in hex. stops: who and what is stopped, by source. tls: the data listener's
    certificate. token_keys: the public keys of gateway tokens. revocations: of tokens. captures: API keys whose texts are kept.
    log_levels: what the log tells for a while.
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
    stops: dict[str, list[StopRow]] = msgspec.field(default_factory=dict)
    tls: Material | None = None
    logins: Secret = Secret("")
    token_keys: dict[str, str] = msgspec.field(default_factory=dict)
    revocations: list[RevocationRow] = msgspec.field(default_factory=list)
    captures: dict[str, float] = msgspec.field(default_factory=dict)
    log_levels: LogLevels = AS_CONFIGURED
    digests: dict[str, bytes] = msgspec.field(default_factory=dict)


class Stopped(Message, frozen=True):
    """Change: all stops of one source from now on (gateway.core.standing)."""

    source: str
    stops: list[StopRow]


class StopsChanged(Message, frozen=True):
    """Change: some stops of one source; all of their targets, and the targets that are not stopped by it any more."""

    source: str
    put: list[StopRow]
    dropped: list[str]


class TokenKeysChanged(Message, frozen=True):
    """Change: the public keys of gateway tokens from now on (gateway.identity.token_keys)."""

    rows: dict[str, str]


class RevocationsChanged(Message, frozen=True):
    """Change: these revocations of tokens are new or different, by name, and these are not in force any more."""

    put: dict[str, RevocationRow]
    dropped: list[str]


class ConfigChanged(Message, frozen=True, kw_only=True):
    """Change: the configuration in force from now on. Parts before it say what of its lists has changed."""

    settings: Settings
    version: int


class KeyChanged(Message, frozen=True):
    """Change: a key of the store was created, updated, rotated, revoked or deleted."""

    id: str
    action: str


class PersonChanged(Message, frozen=True):
    """Change: a tenant, user or group of the store was made, changed or deleted, or a user has logged in with other groups."""

    kind: str
    name: str


class KeysMissed(Message, frozen=True):
    """Change: changes of the store were missed; nothing that is remembered of keys counts any more."""


class CertificateChanged(Message, frozen=True):
    """New connections to the data listener get this certificate from now on."""

    tls: Material


class Barrier(Message, frozen=True):
    """Change: nothing. Its acknowledgement says that everything told and changed before it is in force."""


class Pulse(Ask["Beat"], frozen=True):
    """Asked every second: tells the worker what it shows in /readyz, and shows that the worker works.

    store_lost: since when the store has not answered, in seconds since the epoch. processes: how many serve, over all replicas.
    """

    has_keys: bool = False
    store_lost: float | None = None
    processes: int = 1


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
    """Ids of keys that were used, with the time. logins: of people."""

    keys: dict[str, float]
    logins: list[Seen] = msgspec.field(default_factory=list)


class Happened(Message, frozen=True):
    """An event that the worker has written to its own audit log, for the streams of events."""

    event: dict[str, Any]


class Replaced(Message, frozen=True):
    """Another program takes the place of the control process: for so many seconds the worker is patient with what it has asked."""

    seconds: float


class Retire(Message, frozen=True):
    """The worker was asked to end (SIGTERM): it waits to be replaced and drained."""


class FindKey(Ask["KeyFound"], frozen=True):
    """Looks up an API key. digest: the SHA-256 of the whole key."""

    digest: bytes
    key: Secret


class KeyFound(Message, frozen=True):
    """record: None for an unknown key."""

    record: KeyRecord | None = None


class FindPerson(Ask["PersonFound"], frozen=True):
    """Asks what the store says of a caller. groups: those that the login said. user "": of the tenant's keys."""

    tenant: str
    user: str
    groups: tuple[str, ...]


class PersonFound(Message, frozen=True):
    record: PersonRecord


class Family(Message, frozen=True):
    """One family of metrics. samples: (name, labels, value), histograms and counters as in the exposition format. exemplars: (which sample,
    trace, value, when)."""

    name: str
    documentation: str
    type: str
    samples: list[tuple[str, dict[str, str], float]]
    exemplars: list[tuple[int, str, float, float]] = msgspec.field(default_factory=list)


class FiguresHeld(msgspec.Struct, frozen=True):
    """What one program hands to the next of the workers' figures. ended: the sums of what has ended. latest: what each worker told last.
    shown: the values of bounded labels that have series of their own (gateway.app.workers.figures.BOUNDED)."""

    ended: list[Family] = []
    latest: dict[str, list[Family]] = {}
    shown: dict[str, list[tuple[str, ...]]] = {}


class Scraped(Message, frozen=True):
    """Everything counted; told once more at the end of a worker. families: a list of Family, encoded (gateway.app.workers.figures.told), as
    those of ten thousand models are written and read in a thread."""

    families: msgspec.Raw


MESSAGES: Final[tuple[type[Message], ...]] = (
    *TO_WORKER,
    *TO_CONTROL,
    Done,
    SettingsPart,
    SettingsTold,
    State,
    Stopped,
    TokenKeysChanged,
    RevocationsChanged,
    StopsChanged,
    ConfigChanged,
    KeyChanged,
    PersonChanged,
    KeysMissed,
    CertificateChanged,
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
    Replaced,
    Retire,
    FindKey,
    KeyFound,
    FindPerson,
    PersonFound,
    Mint,
    Minted,
    ClaimProof,
    ProofClaimed,
    BeginLogin,
    LoginBegun,
    LoginEnded,
    LeaseCall,
    LeaseReply,
    LeaseRecall,
    Hold,
    Held,
    Take,
    Taken,
    KeepAnswer,
    FindAnswer,
    AnswerFound,
    GiveDataKey,
    DataKeyGiven,
    OpenDataKey,
    DataKeyOpened,
    DataKeysDropped,
    CapturesChanged,
    LogLevels,
    CachesAsked,
    CachesTold,
    RolloutsAsked,
    RolloutsTold,
    *CLIENT_WORK,
    *TICKETS,
)
"""Every kind."""
