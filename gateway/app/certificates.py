"""The certificates of both listeners: read at the start, watched, and exchanged while connections go on.

Files that cannot be used never take the place of those in force: a renewal may be under way, or may have failed. The process with the
configuration reads them; workers are told of what it has read, so that a worker that starts later has the last good ones.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec, ListenSpec, TlsSpec
from gateway.core.stamps import Stamps, stamps
from gateway.core.tasks import TaskOwner
from gateway.identity import mtls
from gateway.server.tls import Contexts, ListenerContext, Material, context_of, read

log = logging.getLogger("gatehouse.tls")

LISTENERS: Final = ("tls", "admin_tls")
"""The settings below `listen`."""
POLL_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 30.0
"""Between two looks at files that could not be used: a certificate that is not valid yet becomes so without a change."""
SOON_SECONDS: Final = 7 * 86400.0
"""A certificate that ends within this time is warned about, once a day."""
Record = Callable[..., None]


@dataclass(slots=True)
class Listener:
    """What one listener has in force, and what its files looked like when they were last read. seen: at the last look.

    failed: why those files could not be used, or "". retry, warn: monotonic times.
    """

    spec: TlsSpec
    material: Material
    contexts: Contexts
    read_at: Stamps
    seen: Stamps
    failed: str = ""
    retry: float = 0.0
    warn: float = 0.0


@dataclass(frozen=True, slots=True)
class Fresh:
    """What has been read: from these settings, when the files looked like that."""

    spec: TlsSpec
    stamps: Stamps
    material: Material
    context: ListenerContext


class Certificates:
    """The certificates of one process. Life: `open`, `watch`. record: (event, target, detail, outcome=) for the audit log.

    on_change: called with the setting's name below `listen` and its material, after it was put into force.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._listeners: dict[str, Listener] = {}
        self._prepared: dict[str, Fresh] = {}
        self._turn = asyncio.Lock()
        self.on_change: list[Callable[[str, Material], None]] = []
        self.reloads: dict[tuple[str, str], int] = {}
        """Numbers of reloads, by setting and outcome."""

    async def open(self, listen: ListenSpec, handed: Mapping[str, Material]) -> None:
        """Reads the files for the first time. handed: what the program before this one had in force, for files that cannot be used now.
        Raises ConfigError."""
        for name in LISTENERS:
            spec: TlsSpec | None = getattr(listen, name)
            if spec is None:
                continue
            try:
                fresh = await asyncio.to_thread(_read, spec, name)
            except ConfigError as error:
                held = handed.get(name)
                if held is None or held.expires <= time.time():
                    raise
                log.error("%s; the certificate of the previous program stays in use", error)
                fresh = Fresh(spec, (), held, await asyncio.to_thread(context_of, held))
            self._listeners[name] = Listener(spec, fresh.material, Contexts(fresh.context), fresh.stamps, fresh.stamps)

    def watch(self, owner: TaskOwner) -> None:
        """Looks at the files every few seconds from now on."""
        if self._listeners:
            owner.every(POLL_SECONDS, self.poll, name="watch certificates")

    def contexts(self, name: str) -> Contexts | None:
        """What a listener's connections get; None for one without TLS. name: of the setting below `listen`."""
        found = self._listeners.get(name)
        return None if found is None else found.contexts

    def material(self, name: str) -> Material | None:
        found = self._listeners.get(name)
        return None if found is None else found.material

    def all(self) -> dict[str, Material]:
        """For the program that takes this one's place."""
        return {name: listener.material for name, listener in self._listeners.items()}

    # --- with a change of the configuration

    async def prepare(self, listen: ListenSpec) -> None:
        """Reads the files that a configuration names, for `apply`. Raises ConfigError for other files than before that cannot be used; if
        the same files cannot be used now, those in force go on."""
        prepared: dict[str, Fresh] = {}
        async with self._turn:
            for name, listener in self._listeners.items():
                spec: TlsSpec | None = getattr(listen, name)
                if spec is None:
                    continue
                try:
                    if (fresh := await self._fresh(name, listener, spec)) is not None:
                        prepared[name] = fresh
                except ConfigError as error:
                    if spec != listener.spec:
                        raise
                    self._refused(name, listener, error)
        self._prepared = prepared

    def apply(self) -> None:
        """Puts into force what was prepared."""
        prepared, self._prepared = self._prepared, {}
        for name, fresh in prepared.items():
            self._put(name, self._listeners[name], fresh)

    # --- with a change of the files

    async def poll(self) -> None:
        """Looks at the files once. They must look the same twice before they are read, lest they are still being written."""
        async with self._turn:
            for name, listener in self._listeners.items():
                self._warn(name, listener)
                seen = await asyncio.to_thread(_stamps, listener.spec)
                at_rest, listener.seen = seen == listener.seen, seen
                due = listener.failed and time.monotonic() >= listener.retry
                if not at_rest or (seen == listener.read_at and not due):
                    continue
                try:
                    fresh = await self._fresh(name, listener, listener.spec)
                except ConfigError as error:
                    self._refused(name, listener, error)
                else:
                    if fresh is not None:
                        self._put(name, listener, fresh)

    async def _fresh(self, name: str, listener: Listener, spec: TlsSpec) -> Fresh | None:
        """None if nothing has changed. Raises ConfigError."""
        if spec == listener.spec and not listener.failed and await asyncio.to_thread(_stamps, spec) == listener.read_at:
            return None
        return await asyncio.to_thread(_read, spec, name)

    def _put(self, name: str, listener: Listener, fresh: Fresh) -> None:
        changed = fresh.material != listener.material
        listener.spec, listener.read_at, listener.seen, listener.failed = fresh.spec, fresh.stamps, fresh.stamps, ""
        if not changed:
            return
        listener.material, listener.contexts.current, listener.warn = fresh.material, fresh.context, 0.0
        self._count(name, "applied")
        detail = {"subject": fresh.material.subject, "expires": fresh.material.expires, "sha256": fresh.material.fingerprint}
        self._record("certificate_changed", f"listen.{name}", detail)
        log.info("listen.%s: new connections get the certificate %s, valid until %s", name, detail["subject"], _day(fresh.material.expires))
        for hear in self.on_change:
            hear(name, fresh.material)

    def _refused(self, name: str, listener: Listener, error: ConfigError) -> None:
        """Keeps what is in force; says so once for each reason."""
        listener.read_at, listener.retry = listener.seen, time.monotonic() + RETRY_SECONDS
        if str(error) == listener.failed:
            return
        listener.failed = str(error)
        self._count(name, "refused")
        self._record("certificate_refused", f"listen.{name}", {"reason": str(error)}, outcome="refused")
        log.error("%s; the certificate in force stays, until %s", error, _day(listener.material.expires))

    def _warn(self, name: str, listener: Listener) -> None:
        left = listener.material.expires - time.time()
        if left > SOON_SECONDS or time.monotonic() < listener.warn:
            return
        listener.warn = time.monotonic() + 86400.0
        state = "has expired" if left <= 0 else "expires"
        log.warning("listen.%s: the certificate in force %s at %s: renew its files", name, state, _day(listener.material.expires))

    def _count(self, name: str, outcome: str) -> None:
        self.reloads[name, outcome] = self.reloads.get((name, outcome), 0) + 1

    def troubles(self) -> Iterator[tuple[str, str, str]]:
        """For gateway.app.telemetry.troubles."""
        for name, listener in self._listeners.items():
            expires = listener.material.expires
            if listener.failed:
                yield "certificate", f"listen.{name}", f"new files are refused: {listener.failed}; the one in force expires {_day(expires)}"
            elif (left := expires - time.time()) <= SOON_SECONDS:
                yield "certificate", f"listen.{name}", f"{'has expired' if left <= 0 else 'expires'} {_day(expires)}: renew its files"

    def collect(self) -> Iterable[Metric]:
        """For Metrics.gauges."""
        expiry = GaugeMetricFamily(
            "gatehouse_tls_certificate_expiry_seconds",
            "When the certificate in force expires, in seconds since the epoch",
            labels=["listener"],
        )
        refused = GaugeMetricFamily("gatehouse_tls_refused", "Whether the newest certificate files are refused", labels=["listener"])
        reloads = CounterMetricFamily("gatehouse_tls_reloads", "Certificates read again", labels=["listener", "outcome"])
        for name, listener in self._listeners.items():
            expiry.add_metric([_listener(name)], listener.material.expires)
            refused.add_metric([_listener(name)], float(bool(listener.failed)))
            for outcome in ("applied", "refused"):
                reloads.add_metric([_listener(name), outcome], self.reloads.get((name, outcome), 0))
        yield from (expiry, refused, reloads)


def _listener(name: str) -> str:
    return "data" if name == "tls" else "admin"


def _read(spec: TlsSpec, name: str) -> Fresh:
    """Blocks. Raises ConfigError."""
    stamps = _stamps(spec)
    material = read(spec, f"listen.{name}")
    return Fresh(spec, stamps, material, context_of(material))


def _stamps(spec: TlsSpec) -> Stamps:
    return stamps(name for name in (spec.cert, spec.key, spec.client_ca) if name is not None)


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))


def check_files(spec: ConfigSpec) -> None:
    """Raises ConfigError for files that a start would refuse. Blocks."""
    for name in LISTENERS:
        tls: TlsSpec | None = getattr(spec.listen, name)
        if tls is not None:
            read(tls, f"listen.{name}")
    if spec.identity.mtls is not None:
        mtls.check(spec.identity.mtls)
