"""What the control process has told workers of the configuration, and what it tells them of the next one (gateway.app.workers.settings)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.app.workers.channel import Channel
from gateway.app.workers.codec import CHANGE, TELL, Codec, FeedError
from gateway.app.workers.messages import ConfigChanged
from gateway.app.workers.settings import NOTHING, Settings, SettingsPart, SettingsTold, difference, without_lists
from gateway.core.errors import ConfigError
from gateway.core.slices import Steps, in_slices
from gateway.core.specs import ConfigSpec

AT_ONCE: Final = 4 * 1024 * 1024
"""Bytes of its first configuration that may wait for a new worker."""
LOOK_SECONDS: Final = 0.005
LARGEST: Final = 2**63 - 1
"""Of numbers, the one that takes the most room in a frame."""


@dataclass(frozen=True)
class Telling:
    """From one configuration to another: frames with its parts, and what follows them."""

    before: ConfigSpec
    after: ConfigSpec
    frames: list[bytes]
    settings: Settings


class Teller:
    """What workers are told. codec: of the feed."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.spec, self.version = NOTHING, 0
        """What workers have been told last."""
        self.digests: dict[str, bytes] = {}
        """Digests of the lists that the newest worker was given."""

    def told(self, spec: ConfigSpec, version: int) -> None:
        """Notes what workers have been told; a new worker gets it as a whole."""
        self.spec, self.version = spec, version

    def fits(self, ready: Telling, after: ConfigSpec) -> bool:
        """Whether `ready` leads from what workers were told last to `after`."""
        return ready.before is self.spec and ready.settings.since == self.version and ready.after is after

    async def prepare(self, after: ConfigSpec) -> Telling:
        """What workers are to be told of a configuration. Raises ConfigError for what cannot be sent to them."""
        try:
            return await in_slices(self.steps(after))
        except FeedError as error:
            raise ConfigError(f"workers cannot be told of this configuration: {error.message}") from None

    def steps(self, after: ConfigSpec) -> Steps[Telling]:
        """Raises FeedError."""
        before, frames = self.spec, list[bytes]()
        since = self.version
        settings = Settings(without_lists(after), (yield from self._framed(before, after, frames)), since)
        message = ConfigChanged(settings=settings, version=LARGEST)
        self._codec.encode(CHANGE, LARGEST, message)  # refuses what is too large, before anything is in force
        return Telling(before, after, frames, settings)

    def _framed(self, before: ConfigSpec, after: ConfigSpec, frames: list[bytes]) -> Steps[dict[str, bytes]]:
        parts: list[SettingsPart] = []
        steps = difference(before, after, parts)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                digests: dict[str, bytes] = done.value
                break
            except (TypeError, NotImplementedError, OverflowError, msgspec.MsgspecError) as error:
                raise FeedError(f"settings cannot be sent over the feed: {error}") from None
            frames += [self._codec.encode(TELL, 0, part) for part in parts]
            parts.clear()
            yield
        frames += [self._codec.encode(TELL, 0, part) for part in parts]
        return digests

    async def introduce(self, channel: Channel) -> None:
        """Tells a new worker all lists, however large, no faster than it reads them. When this returns, they are those of `spec`, and
        `digests` are theirs. Raises FeedError."""
        told, digests = NOTHING, dict[str, bytes]()
        while told is not self.spec and channel.ended is None:
            if told is not NOTHING:
                channel.tell(SettingsTold())
            wanted = self.spec
            digests.update(await self._tell(channel, told, wanted))
            told = wanted
        self.digests = digests

    async def _tell(self, channel: Channel, before: ConfigSpec, after: ConfigSpec) -> dict[str, bytes]:
        frames: list[bytes] = []
        steps = self._framed(before, after, frames)
        found: dict[str, bytes] | None = None
        while found is None:
            try:
                next(steps)
            except StopIteration as done:
                found = done.value
            for frame in frames:
                channel.send(frame)
            frames.clear()
            await asyncio.sleep(0)
            while channel.backlog > AT_ONCE:  # a channel that has ended has none, and one whose worker is late is ended
                await asyncio.sleep(LOOK_SECONDS)
        return found
