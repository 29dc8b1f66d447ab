"""How a configuration is sent to workers: the changes in its lists, in parts that stay small for any size of the store.

The control process remembers the configuration that it sent last. `difference` describes each list of the next one as runs of the old list
and new members. `SettingsPart`s carry this, in order, ahead of the message that puts the configuration into force (`State`,
`ConfigChanged`) and has everything else (`Settings`). For a new worker every member is new. In a worker, `Received` builds the lists as the
parts arrive. An unchanged member stays the same object, so code that builds from it can tell by identity.

Only the order of the feed keeps the two sides equal. So the message also names the version that its parts change, and has a digest of the
names in each changed list. A worker with another version, or other names, exits, and its successor is sent everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from gateway.app.workers.codec import FeedError, revealed
from gateway.config.unchanged import COMPARED, common_end, common_start
from gateway.core.messages import Message
from gateway.core.secret import secret_hook
from gateway.core.slices import Steps, portions
from gateway.core.specs import BindingSpec, ConfigSpec, EngineSpec, GuardrailSpec, HookSpec, LimitSpec, ModelSpec, PriceSpec, RoleSpec

ROLES: Final = "roles"
PARTS: Final = MappingProxyType(
    {
        "engines": EngineSpec,
        "models": ModelSpec,
        "limits": LimitSpec,
        "prices": PriceSpec,
        "guardrails": GuardrailSpec,
        "hooks": HookSpec,
        "bindings": BindingSpec,
    }
)
"""The lists of a configuration, each with the type of its members. The roles, a mapping, are sent as a list of pairs."""
LISTS: Final = (*PARTS, ROLES)
PART_MEMBERS: Final = 64
"""New members in a part, at most. A part is decoded in one step."""
PART_RUNS: Final = 256
PART_BYTES: Final = 64 * 1024
"""Of new members, from which on a part is full; a single member may be larger."""
PORTION: Final = 1024
"""Members that are gone through in one step, where each takes little."""
NOTHING: Final = ConfigSpec(version=1)
"""What a new worker has been told."""

Run = tuple[int, int, list[Raw]]
"""Members of the list before, from this place up to that one, then new ones."""


class Settings(Struct, frozen=True):
    """rest: the configuration with those lists, and the roles, empty. digests: of each list that parts have told anew. since: the version
    that the parts change."""

    rest: ConfigSpec
    digests: dict[str, bytes]
    since: int


class SettingsPart(Message, frozen=True):
    """A list of the next configuration as far as these runs make it, behind those of the parts before."""

    name: str
    runs: list[Run]


class SettingsTold(Message, frozen=True):
    """To a new worker: the parts until here make a whole configuration, and those that follow change it."""


def without_lists(spec: ConfigSpec) -> ConfigSpec:
    empty: dict[str, Any] = dict.fromkeys(PARTS, ())
    return msgspec.structs.replace(spec, **empty, roles={})


def difference(before: ConfigSpec, after: ConfigSpec, found: list[SettingsPart]) -> Steps[dict[str, bytes]]:
    """Appends to `found` the parts that turn the lists of `before` into those of `after`, and returns the digests of the lists that differ.
    Raises TypeError, OverflowError or NotImplementedError for values that cannot be encoded."""
    digests: dict[str, bytes] = {}
    for name in LISTS:
        if getattr(before, name) is getattr(after, name):
            continue
        old = yield from members(before, name)
        new = yield from members(after, name)
        same = yield from common_start(old, new)
        if same == len(old) == len(new):
            continue
        end = yield from common_end(old, new, same)
        yield from _in_parts(name, _runs(old, new, same, end), new, found)
        digests[name] = yield from digest(name, new)
    return digests


def members(spec: ConfigSpec, name: str) -> Steps[Sequence[Any]]:
    """The members of a list; of the roles, pairs."""
    if name != ROLES:
        found: Sequence[Any] = getattr(spec, name)
        return found
    pairs: list[tuple[str, RoleSpec]] = []
    rest = iter(spec.roles.items())
    while some := list(islice(rest, PORTION)):
        pairs += some
        yield
    return pairs


def digest(name: str, members: Sequence[Any]) -> Steps[bytes]:
    """Of the members' names, in their order."""
    made = blake2b(digest_size=16)
    for some in portions(members):
        names = [one[0] for one in some] if name == ROLES else [one.name or "" for one in some]
        made.update("".join([f"{len(one)}:{one}" for one in names]).encode())
        yield
    return made.digest()


def _runs(old: Sequence[Any], new: Sequence[Any], same: int, end: int) -> Iterator[tuple[int, int, int] | None]:
    """The new list from its beginning: runs of the old one (from, up to), and how many new members follow each. None: a pause. same, end:
    how many are the same at the beginning and at the end."""
    start, stop, put = 0, same, 0
    places: dict[Any, int] | None = None
    for number in range(same, len(new) - end):
        member = new[number]
        if put == 0 and stop < len(old) and old[stop] == member:
            stop += 1  # the run goes on
        else:
            if places is None:
                places = {}
                for place in range(same, len(old) - end):
                    places[_name(old[place])] = place
                    if place % COMPARED == 0:
                        yield None
            place = places.get(_name(member), -1)
            if place >= 0 and old[place] == member:
                yield start, stop, put
                start, stop, put = place, place + 1, 0
            else:
                put += 1
        if number % COMPARED == 0:
            yield None
    yield start, stop, put
    if end:
        yield len(old) - end, len(old), 0


def _name(member: Any) -> object:
    return member[0] if isinstance(member, tuple) else member.name


def _in_parts(name: str, runs: Iterator[tuple[int, int, int] | None], new: Sequence[Any], found: list[SettingsPart]) -> Steps[None]:
    encoder = msgspec.msgpack.Encoder(enc_hook=revealed)
    part: list[Run] = []
    place = held = bytes_held = 0
    for run in runs:
        if run is None:
            yield
            continue
        start, stop, put = run
        place += stop - start
        encoded: list[Raw] = []
        part.append((start, stop, encoded))
        for number in range(place, place + put):
            encoded.append(Raw(encoder.encode(new[number])))
            held, bytes_held = held + 1, bytes_held + len(encoded[-1])
            if held >= PART_MEMBERS or bytes_held >= PART_BYTES:
                found.append(SettingsPart(name, part))
                encoded, held, bytes_held = [], 0, 0
                part = [(0, 0, encoded)]
                yield
        place += put
        if len(part) >= PART_RUNS:
            found.append(SettingsPart(name, part))
            part, held, bytes_held = [], 0, 0
            yield
    found.append(SettingsPart(name, part))
    yield


class Whole(Struct, frozen=True):
    """A configuration as it was told. lists: its members, the roles as pairs. fits: whether its parts change what was told before."""

    rest: ConfigSpec
    lists: dict[str, Sequence[Any]]
    fits: bool


class Received:
    """What a worker has been told. Parts make the next lists; `take` or `settle` ends them."""

    def __init__(self) -> None:
        self._lists: dict[str, Sequence[Any]] = dict.fromkeys(LISTS, ())
        """As they were told last."""
        self._version = 0
        """The version of what was told last."""
        self._next: dict[str, list[Any]] = {}
        self._roles: tuple[Sequence[Any], dict[str, RoleSpec]] = ((), {})
        """The roles that were made a mapping last."""
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {
            name: msgspec.msgpack.Decoder(kind, dec_hook=secret_hook) for name, kind in PARTS.items()
        }
        self._decoders[ROLES] = msgspec.msgpack.Decoder(tuple[str, RoleSpec], dec_hook=secret_hook)

    def part(self, part: SettingsPart) -> None:
        """Raises FeedError for one that does not fit what was told before, or cannot be read."""
        decoder = self._decoders.get(part.name)
        if decoder is None:
            raise FeedError(f"the configuration has no list {part.name[:64]!r}")
        made, before = self._next.setdefault(part.name, []), self._lists[part.name]
        try:
            for start, stop, put in part.runs:
                if not 0 <= start <= stop <= len(before):
                    raise FeedError(f"{start} to {stop} of the {len(before)} {part.name} told before were to be kept")
                made += before[start:stop]
                made += [decoder.decode(one) for one in put]
        except (msgspec.MsgspecError, NotImplementedError) as error:
            raise FeedError(f"{part.name} that came over the feed cannot be read: {error}") from None

    def settle(self) -> None:
        """The parts until here make whole lists; what follows changes these."""
        self._lists = {**self._lists, **{name: made if name == ROLES else tuple(made) for name, made in self._next.items()}}
        self._next = {}

    def take(self, rest: ConfigSpec, version: int, since: int = 0) -> Whole:
        """A configuration with the lists that were told; those without a part are as before. since: the version that they change, 0 for the
        first."""
        self.settle()
        fits, self._version = since == self._version, version
        return Whole(rest, self._lists, fits)

    def composed(self, whole: Whole, digests: Mapping[str, bytes]) -> Steps[ConfigSpec]:
        """The settings. Raises FeedError where a list is not the one that the control process has."""
        if not whole.fits:
            raise FeedError("the changes told are those of another version of the configuration")
        for name, wanted in digests.items():
            if name not in LISTS or (yield from digest(name, whole.lists[name])) != wanted:
                raise FeedError(f"the {name[:64]} told are not those of the control process")
        pairs, roles = self._roles
        if pairs is not whole.lists[ROLES]:
            pairs, roles = whole.lists[ROLES], {}
            for some in portions(pairs):
                roles.update(some)
                yield
            self._roles = pairs, roles
        lists: dict[str, Any] = {**whole.lists, ROLES: roles}
        return msgspec.structs.replace(whole.rest, **lists)
