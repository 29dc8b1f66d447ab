"""The messages between a gateway and a machine that joins it (docs/joined-machines.md), and the gateway's records of machines.

A machine has its own Ed25519 key and signs every message with it. It joins once, with a join token, and gets a certificate for its key.
From then on it tells every gateway that it knows where it is and how its engines are, several times within a lease (a *beat*).
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

JOIN: Final = "/join/v1/machines"
"""POST with a token: `Joining`, answered by `Joined`. Beats go to JOIN/{name}/beats: `Beat`, answered by `Heard`."""
BEATS: Final = "beats"
REPORTS: Final = "tickets"
"""Receipts go to JOIN/{name}/tickets: `gateway.core.tickets.Report`, answered by `Taken`."""
SIGNATURE: Final = "x-gatehouse-signature"
"""Base64 of the Ed25519 signature over `signed`."""
TOKEN_PREFIX: Final = "ghj_"
MAX_BODY: Final = 64 * 1024
MAX_ENGINES: Final = 64
DOMAIN: Final = "joined.gatehouse"
"""The domain of the names in machines' certificates. Nobody can resolve them, and no other authority certifies them."""

MachineName = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Bytes = Annotated[int, Meta(ge=0, le=2**50)]
EngineLabel = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
Text = Annotated[str, Meta(max_length=256)]
Revision = Annotated[str, Meta(pattern=r"^[0-9a-f]{16,64}$")]


class Joining(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """public_key: the 32 bytes of an Ed25519 key, base64."""

    name: MachineName
    public_key: Annotated[str, Meta(pattern=r"^[A-Za-z0-9+/]{43}=$")]


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """certificate: of the machine, for both directions. gateways: the authority of those who may use its engines. All PEM."""

    name: str
    certificate: str
    gateways: str
    every: float
    """Seconds between two beats."""


class EngineReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An engine as its machine describes it. Shown to people; decisions depend only on whether the engine is listed."""

    name: EngineLabel
    runtime: Text = ""
    model: Text = ""
    sha256: Text = ""
    device: Text = ""
    state: Literal["starting", "loading", "ready", "draining", "stopped", "failed"] = "starting"
    reason: Text = ""
    slots: Count = 0
    in_use: Count = 0
    queue: Count = 0
    kv_used: Annotated[float, Meta(ge=0, le=1)] = 0.0
    tokens_per_second: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    vram_bytes: Bytes = 0


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The load of the machine as a whole. load: processes that run or wait, averaged over a minute."""

    cpus: Count = 0
    load: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    memory_bytes: Bytes = 0
    memory_free_bytes: Bytes = 0


class TicketPort(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a machine takes tickets. address: ADDRESS:PORT. boot: random text that names the process, new with each start."""

    address: Annotated[str, Meta(max_length=64)]
    boot: Annotated[str, Meta(pattern=r"^[0-9a-f]{16,64}$")]


class DeviceRoom(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """free: bytes; None: not known."""

    device: Annotated[str, Meta(pattern=r"^cuda:\d{1,2}$")]
    free: Bytes | None = None


class PlacedEngine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """An order that the machine has accepted. revision: of the settings that it runs or loads. failed: the revision that could not be
    started, with the reason: the same one if nothing runs, a later one if it was to replace what runs."""

    name: EngineLabel
    revision: Revision
    failed: Annotated[str, Meta(max_length=64)] = ""
    reason: Text = ""
    code: Text = ""


class Room(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What room a machine has for further engines. engines: how many. memory: bytes of main memory. cpu: whether engines may run there
    without a GPU."""

    engines: Count = 0
    memory: Bytes = 0
    disk: Bytes = 0
    cpu: bool = False
    devices: Annotated[tuple[DeviceRoom, ...], Meta(max_length=16)] = ()
    runtimes: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=8)] = ()
    placed: Annotated[tuple[PlacedEngine, ...], Meta(max_length=64)] = ()


class Beat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """session: given by the gateway; "" to ask for one. sequence: rises by one or more with each beat of a session. address: ADDRESS:PORT
    where its engines are reached. leaving: it ends, and wants no new requests. renew: it wants a certificate. tickets: None: none. room:
    None: it starts nothing for a gateway.

    Fields with their default are left out, so that gateways of earlier versions understand a machine that uses nothing newer."""

    session: Annotated[str, Meta(max_length=64)]
    sequence: Annotated[int, Meta(ge=1, le=2**53)]
    address: Annotated[str, Meta(max_length=64)]
    leaving: bool = False
    renew: bool = False
    engines: Annotated[tuple[EngineReport, ...], Meta(max_length=MAX_ENGINES)] = ()
    load: Load = Load()
    tickets: TicketPort | None = None
    room: Room | None = None


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a beat. certificate, gateways: if the machine asked for a new certificate. drained: an operator keeps new requests
    away. tickets: the public key that verifies tickets, base64; "" if the gateway gives none. withdrawn: ids of tickets that must not run,
    or not go on. fences: of the engines that this gateway places; orders with a lower fence come from an earlier holder and are refused.
    now: the gateway's clock, in seconds since the epoch; 0: not given. replicas: how many serve on its store, this one included; 0: not
    given."""

    every: float
    drained: bool = False
    certificate: str = ""
    gateways: str = ""
    tickets: str = ""
    withdrawn: tuple[str, ...] = ()
    fences: Annotated[dict[EngineLabel, Annotated[int, Meta(ge=0, le=2**62)]], Meta(max_length=1024)] = {}
    now: float = 0.0
    replicas: int = 0


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as the store keeps it. engines: patterns of the engines that it may serve, from its join token. token: that token's id."""

    public_key: str
    engines: tuple[str, ...]
    token: str
    drained: bool = False


class JoinToken(msgspec.Struct, frozen=True, kw_only=True):
    """A join token as the store keeps it. hash: SHA-256 of the whole token, hex. machines, engines: patterns of names. left: how many more
    machines may join with it. expires: seconds since the epoch."""

    hash: str
    machines: tuple[str, ...]
    engines: tuple[str, ...]
    expires: float
    left: int


def signed(path: str, body: bytes) -> bytes:
    """The bytes that a machine signs. They contain the path and a prefix, so that no signature is valid elsewhere."""
    return b"gatehouse machine 1\n" + path.encode() + b"\n" + sha256(body).digest()


def host_of(machine: str, engine: str) -> str:
    """The server name with which a gateway asks a machine for one of its engines in the TLS handshake. The machine's certificate covers
    all of these names."""
    return f"e{sha256(engine.encode()).hexdigest()[:24]}.{machine}.{DOMAIN}"


def ticket_host_of(machine: str) -> str:
    """The server name of a machine's port for tickets, which its certificate covers as well."""
    return f"tickets.{machine}.{DOMAIN}"


def token_hash(token: str) -> str:
    """The stored hash of a join token. The token has 256 random bits, so a fast hash is enough."""
    return sha256(token.encode()).hexdigest()
