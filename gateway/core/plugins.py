"""Plug-ins: the rows, the tables made of them, and the lifecycle of the objects that rows build.

Every kind of plug-in has one table. Each row names a plug-in, declares the settings it takes and builds it:
settings -> `build` -> `start()` -> `aclose()`. `start` and `aclose` are optional coroutine methods of the built object. Third parties add
rows to the same tables through the entry-point group GROUP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from gateway.core.asking import Asker
from gateway.core.clock import Clock, Entropy, SystemClock
from gateway.core.errors import ConfigError
from gateway.core.hooks import Hook
from gateway.core.ports import Authenticator, Guardrail, KeyStore
from gateway.core.pseudonyms import PseudonymFactory
from gateway.core.secret import secret_hook
from gateway.core.specs import AuditSpec, SinkSpec, Spec

GROUP: Final = "gatehouse.plugins"
"""The entry-point group in which third parties register their rows."""
LIFE_SECONDS: Final = 10.0
"""How long one plug-in may take to start, and to close."""
LOOKED_AT: Final = 256
"""Plug-ins that are held before the event loop gets a turn: most need no start."""
log = logging.getLogger("gatehouse.plugins")


# --- the arguments of a build


def no_files(name: str) -> str:
    """The `read` of a context that has no configuration file. Raises FileNotFoundError."""
    raise FileNotFoundError(2, "there is no folder to read it from", name)


def unheard(*what: object) -> None:
    """The `record` and `gauge` of a context without a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Passed to every `build`. name: the plug-in's name in the configuration. read: the text of a file, relative to the configuration's
    folder; raises OSError. local: whether the settings come from that file and not from a remote administrator. clock: the time."""

    name: str
    read: Callable[[str], str] = no_files
    local: bool = True
    clock: Clock = field(default_factory=SystemClock)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailContext(Context):
    """asker: by which a guardrail asks the models of this gateway; None where there is no gateway around it. pseudonyms: makes those of a
    guardrail that asks another service for values; None where there are none."""

    asker: Asker | None = None
    pseudonyms: PseudonymFactory | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticatorContext(Context):
    """keys: the store's API keys, if there is a store. record: (event, target, detail) for the audit log. gauge: (name, value) for the
    metrics. revocations: of tokens (gateway.identity.revocations.Revocations), which every authenticator of tokens asks. token_keys: the
    public keys of gateway tokens (gateway.identity.token_keys.TokenKeys). logins: counts those by password
    (gateway.core.logins.Logins)."""

    keys: KeyStore | None = None
    record: Callable[[str, str, dict[str, Any]], None] = unheard
    gauge: Callable[[str, float], None] = unheard
    revocations: Any = None
    token_keys: Any = None
    logins: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext(Context):
    """audit: the settings of the whole audit log. sink: this one's. state_dir: where the process keeps its files. writer: the id of
    the process that writes."""

    audit: AuditSpec
    sink: SinkSpec
    state_dir: Path
    writer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorContext(Context):
    """members: the pool's (gateway.routing.selectors.Member), two or more. bound: `routing.bound`. ring: the pool's consistent-hash ring,
    for a row that asks for one."""

    members: Sequence[Any]
    bound: float
    entropy: Entropy
    ring: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterContext(Context):
    """scrape: returns the current metrics in the Prometheus text format."""

    scrape: Callable[[], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreContext(Context):
    """url: `store.url`. state_dir: where the process keeps its files. timeout: seconds after which a statement is abandoned."""

    url: str
    state_dir: Path
    timeout: float


# --- rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Base of all rows. name: its name in the configuration, unique in its table. settings: the schema of its settings."""

    kind: ClassVar[str] = ""
    """Its name in errors and in the documentation, such as "guardrail"."""
    name: str
    settings: type[Spec] = Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticatorRow(Row):
    """`build(settings, context)`; ValueError and OSError become a ConfigError with the setting's path, as for every row."""

    kind: ClassVar[str] = "authenticator"
    build: Callable[[Any, AuthenticatorContext], Authenticator]
    last: int = 0
    """Asked after all with a smaller number: it asks somebody else about what nobody knows, or refuses that."""
    within: str = ""
    """It is built from those entries of another row's settings that have a setting of its own name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailRow(Row):
    """judges: what is built is a `ToolGuard` (gateway.core.tools), which judges tools, and its texts' part lets everything pass. shapes:
    the same for a `ShapeJudge` (gateway.core.shapes), which judges the form of whole answers. asks: its attribute `model` is the name of a
    model of this gateway, which it asks. moderates: it is a `Moderator` (gateway.core.moderation)."""

    kind: ClassVar[str] = "guardrail"
    build: Callable[[Any, GuardrailContext], Guardrail]
    judges: bool = False
    shapes: bool = False
    asks: bool = False
    moderates: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRow(Row):
    """What `build` returns is a `Sink` (gateway.audit.sinks.contract), not yet opened."""

    kind: ClassVar[str] = "audit sink"
    build: Callable[[Any, SinkContext], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorRow(Row):
    """What `build` returns is a `Selector` (gateway.routing.selectors). ring: it needs the pool's ring, which takes long to build and is
    handed to it."""

    kind: ClassVar[str] = "routing policy"
    build: Callable[[Any, SelectorContext], Any]
    ring: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterRow(Row):
    """The object that `build` returns exports from its `start` to its `aclose`; it needs no other methods."""

    kind: ClassVar[str] = "metric exporter"
    build: Callable[[Any, ExporterContext], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRow(Row):
    kind: ClassVar[str] = "hook"
    build: Callable[[Any, Context], Hook]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRow(Row):
    """A database for the store; `name` is the scheme of `store.url`, or all of it. `build` returns an SQLAlchemy
    engine that has not connected yet. It has no settings besides the URL."""

    kind: ClassVar[str] = "store"
    build: Callable[[Any, StoreContext], Any]


# --- tables

R = TypeVar("R", bound=Row)


class Table(Generic[R]):
    """All plug-ins of one kind, by name, in order. Immutable. Raises ValueError when two rows have one name."""

    __slots__ = ("_rows", "row")

    def __init__(self, row: type[R], rows: Iterable[R]) -> None:
        self.row = row
        self._rows: dict[str, R] = {}
        for one in rows:
            if one.name in self._rows:
                raise ValueError(f"the {self.kind} {one.name!r} appears twice")
            self._rows[one.name] = one

    @property
    def kind(self) -> str:
        return self.row.kind

    def __iter__(self) -> Iterator[R]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __getitem__(self, name: str) -> R:
        """Raises ConfigError that lists the known names."""
        row = self._rows.get(name)
        if row is None:
            raise ConfigError(f"there is no {self.kind} '{name}'; known: {', '.join(sorted(self._rows)) or 'none'}")
        return row

    def schemas(self) -> Mapping[str, type[Spec]]:
        """The schema of every row's settings, for readers of a configuration."""
        return {row.name: row.settings for row in self}

    def joined(self, rows: Iterable[R]) -> Table[R]:
        """The same table with more rows appended."""
        return Table(self.row, (*self, *rows))


T = TypeVar("T")


def built(build: Callable[[Any, Any], T], schema: type[Spec], settings: Mapping[str, Any] | Spec, context: Context) -> T:
    """Builds a row from its settings. Raises ConfigError with one sentence for any failure."""
    try:
        parsed = settings if isinstance(settings, schema) else msgspec.convert(settings, schema, dec_hook=secret_hook)
        return build(parsed, context)
    except ConfigError:
        raise
    except msgspec.ValidationError as error:
        raise ConfigError(f"{error}; known settings: {', '.join(schema.__struct_fields__) or 'none'}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename}: {error.strerror}" if error.filename else str(error)) from None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except Exception as error:  # boundary: any exception while a plug-in is built refuses the configuration
        log.exception("%s could not be built", context.name)
        raise ConfigError(f"it could not be built: {type(error).__name__}: {error}") from error


# --- lifecycle


class Lives:
    """Starts each plug-in once and closes it when its last holder releases it, so that a retiring Snapshot closes only its own."""

    def __init__(self, seconds: float = LIFE_SECONDS) -> None:
        self._seconds = seconds
        self._holders: dict[int, int] = {}
        self._turn = asyncio.Lock()

    async def hold(self, plugins: Iterable[tuple[str, object]]) -> Hold:
        """Takes (path, plug-in) pairs in starting order; running ones are only held. Raises ConfigError with the path of
        the one that does not start, after undoing everything this call began."""
        holders = self._holders
        async with self._turn, AsyncExitStack() as undo:
            held: list[object] = []
            seen: set[int] = set()
            for path, plugin in plugins:
                if id(plugin) in seen:
                    continue
                seen.add(id(plugin))
                if len(seen) % LOOKED_AT == 0:
                    await asyncio.sleep(0)
                if id(plugin) not in holders:
                    undo.push_async_callback(self._close, plugin)
                    await self._start(path, plugin)
                held.append(plugin)
            undo.pop_all()
            for plugin in held:
                holders[id(plugin)] = holders.get(id(plugin), 0) + 1
            return Hold(self, held)

    async def let_go(self, held: list[object]) -> None:
        """Closes in reverse order. Failures are logged and do not keep the others from being closed."""
        async with self._turn:
            for plugin in reversed(held):
                left = self._holders.get(id(plugin), 1) - 1
                if left:
                    self._holders[id(plugin)] = left
                else:
                    self._holders.pop(id(plugin), None)
                    await self._close(plugin)

    def __len__(self) -> int:
        return len(self._holders)

    async def _start(self, path: str, plugin: object) -> None:
        start = getattr(plugin, "start", None)
        if start is None:
            return
        try:
            await asyncio.wait_for(start(), self._seconds)
        except ConfigError as error:
            raise ConfigError(error.message, path=path) from error
        except TimeoutError:
            raise ConfigError(f"it did not start within {self._seconds:g} s", path=path) from None
        except Exception as error:  # boundary: any exception while a plug-in starts refuses the configuration
            raise ConfigError(f"it did not start: {type(error).__name__}: {error}", path=path) from error

    async def _close(self, plugin: object) -> None:
        aclose = getattr(plugin, "aclose", None)
        if aclose is None:
            return
        try:
            await asyncio.wait_for(aclose(), self._seconds)
        except Exception:  # boundary: the others must still be closed
            log.exception("%s could not be closed", type(plugin).__name__)


class Hold:
    """One holder's share in running plug-ins. `release` it when they are no longer used; releasing again does nothing."""

    def __init__(self, lives: Lives, held: list[object]) -> None:
        self._lives, self._held = lives, held

    async def release(self) -> None:
        held, self._held = self._held, []
        await self._lives.let_go(held)
