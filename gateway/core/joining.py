"""What a machine that joins and a gateway say to each other (docs/joined-machines.md), and what of a machine the gateway keeps.

A machine has an Ed25519 key of its own, and signs each of its messages with it. It joins once, with a join token, and gets a certificate
for its key; from then on it tells every gateway that it knows, several times a lease, where it is and how its engines are (a *beat*).
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
"""Below it are the names in the certificates of machines: nobody can resolve them, and no other authority vouches for them."""

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
    """An engine as its machine tells it: for people. Nothing that is decided depends on it but whether the engine is there."""

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
    """Of the machine as a whole. load: processes that run or wait, over a minute."""

    cpus: Count = 0
    load: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    memory_bytes: Bytes = 0
    memory_free_bytes: Bytes = 0


class TicketPort(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a machine takes tickets, and which process of it does. address: ADDRESS:PORT. boot: random, new with each start."""

    address: Annotated[str, Meta(max_length=64)]
    boot: Annotated[str, Meta(pattern=r"^[0-9a-f]{16,64}$")]


class DeviceRoom(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """free: bytes; None: not known."""

    device: Annotated[str, Meta(pattern=r"^cuda:\d{1,2}$")]
    free: Bytes | None = None


class PlacedEngine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """An order that the machine has taken. revision: of the settings that it runs or loads. failed: the revision that came to nothing, for
    this reason; the same one where nothing runs, a later one where that was to replace what does."""

    name: EngineLabel
    revision: Revision
    failed: Annotated[str, Meta(max_length=64)] = ""
    reason: Text = ""
    code: Text = ""


class Room(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a machine would take. engines: how many more. memory: bytes of main memory. cpu: whether engines may run there without a GPU."""

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

    What has its default is not said, so that gateways of earlier versions understand a machine that uses nothing newer."""

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
    """certificate, gateways: where it asked for them. drained: an operator sends it no new requests. tickets: the public key that
    verifies tickets, base64; "" where none are given. withdrawn: ids of tickets that it must not run, or not any longer. fences: of engines
    that this gateway places; orders with a lower one are an earlier gateway's, and refused. now: seconds since the epoch by its clock; 0:
    it does not say. replicas: how many serve on its store, itself among them; 0: it does not say."""

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
    """What the store keeps of one. engines: patterns of those that it may serve, from its token. token: the id of that."""

    public_key: str
    engines: tuple[str, ...]
    token: str
    drained: bool = False


class JoinToken(msgspec.Struct, frozen=True, kw_only=True):
    """What the store keeps of one. hash: SHA-256 of the whole token, hex. machines, engines: patterns of names. left: joins that it
    is still good for. expires: seconds since the epoch."""

    hash: str
    machines: tuple[str, ...]
    engines: tuple[str, ...]
    expires: float
    left: int


def signed(path: str, body: bytes) -> bytes:
    """What a machine signs: for this path, and nothing that another protocol could take for its own."""
    return b"gatehouse machine 1\n" + path.encode() + b"\n" + sha256(body).digest()


def host_of(machine: str, engine: str) -> str:
    """The name by which the gateway asks a machine for one of its engines in the TLS handshake; the certificate is for all of these."""
    return f"e{sha256(engine.encode()).hexdigest()[:24]}.{machine}.{DOMAIN}"


def ticket_host_of(machine: str) -> str:
    """The name of a machine's port for tickets, for which its certificate is good, too."""
    return f"tickets.{machine}.{DOMAIN}"


def token_hash(token: str) -> str:
    """What is kept of a join token, which holds 256 random bits: nothing slower is needed."""
    return sha256(token.encode()).hexdigest()
