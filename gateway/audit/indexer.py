"""The process that keeps the index of an audit log: `python -m gateway.audit.indexer DIRECTORY INDEX`.

A process of its own, because reading a log is work for the interpreter, and its lock would be missed by the requests. It reads a line
`SECONDS` from standard input, indexes what is new for at most that long, and answers with one JSON object (Progress). Between two questions
it looks by itself. It ends when its input does, so that it cannot outlive the gateway.
"""

from __future__ import annotations

import os
import select
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from gateway.audit.entries import entries_of
from gateway.audit.index import Index, IndexBusy
from gateway.audit.ledger import after, end_of, head_at
from gateway.audit.segments import open_segment, segment_size
from gateway.audit.sinks.file import list_segments
from gateway.core.ledger import Position

BLOCK: Final = 2 * 1024 * 1024
LOOK_SECONDS: Final = 2.0
NICE: Final = 10
BUSY: Final = "another process writes the index"

Segments = list[tuple[int, Path]]


class Progress(msgspec.Struct):
    """behind: bytes that were in the log when it was looked at and are not in the index yet. fault: why nothing can be indexed."""

    behind: int = 0
    fault: str = ""


class Indexer:
    """Brings an index up to date with the logs in a directory."""

    def __init__(self, directory: Path, index: Index) -> None:
        self._directory, self._index = directory, index
        self._at = index.positions()
        self._first: dict[str, int] = {}
        """The oldest segment of each writer that was there at the last look."""

    def update(self, go_on: Callable[[], bool]) -> int:
        """Indexes what is new, as long as `go_on()`, and returns how many bytes of it are left. What is logged meanwhile is left to the
        next call, since under traffic there is always more. Raises OSError, sqlite3.Error."""
        writers = list_segments(self._directory) if self._directory.is_dir() else {}
        for gone in self._at.keys() - writers.keys():
            self._index.forget(gone)
            del self._at[gone]
        behind = 0
        for writer, segments in writers.items():
            place = self._place(writer, segments)
            newest = end_of(*segments[-1]).offset
            sizes = [(number, segment_size(path)) for number, path in segments[:-1] if number >= place.segment]
            self._at[writer] = place = self._follow(place, segments, newest, go_on)
            for number, end in (*sizes, (segments[-1][0], newest)):
                if number >= place.segment:
                    behind += max(0, end - (place.offset if number == place.segment else 0))
        return behind

    def _place(self, writer: str, segments: Segments) -> Position:
        """Where to go on. What a writer cut off, and what somebody replaced, is forgotten and read again."""
        place = self._at.get(writer) or Position(writer)
        first, paths = segments[0][0], dict(segments)
        if place.segment and first > self._first.get(writer, 1):
            self._index.forget(writer, before=first)
        self._first[writer] = first
        if place.segment in paths and place.offset and head_at(paths[place.segment], place.offset) != place.head:
            self._index.forget(writer, since=place.segment)
            return Position(writer, place.segment)
        if place.segment and place.segment not in paths:
            later = [number for number, _ in segments if number > place.segment]
            if not later:
                self._index.forget(writer)
                return Position(writer)
            return Position(writer, later[0], 0, place.seq, place.head)
        return place

    def _follow(self, place: Position, segments: Segments, newest: int, go_on: Callable[[], bool]) -> Position:
        """newest: where the last segment ends."""
        for number, path in segments:
            if number < place.segment:
                continue
            if number > place.segment:
                place = Position(place.writer, number, 0, place.seq, place.head)
            end = newest if number == segments[-1][0] else end_of(number, path).offset
            while place.offset < end:
                with open_segment(path) as file:
                    file.seek(place.offset)
                    block = file.read(min(BLOCK, end - place.offset))
                block = block[: block.rfind(b"\n") + 1]
                if not block:
                    break
                then = after(place, block)
                self._index.add(*entries_of(place, block), then)
                place = then
                if not go_on():
                    return place
        return place


def _answer(indexer: Indexer, seconds: float, parent: int) -> Progress:
    end = time.monotonic() + seconds
    try:
        return Progress(indexer.update(lambda: time.monotonic() < end and os.getppid() == parent))
    except (OSError, sqlite3.Error) as error:
        return Progress(fault=str(error))


def main(arguments: list[str]) -> int:
    """Follows the log until standard input ends; returns the exit code."""
    os.nice(NICE)
    parent = os.getppid()
    directory, path = map(Path, arguments)
    try:
        index = Index(path)
    except IndexBusy:
        print(msgspec.json.encode(Progress(fault=BUSY)).decode(), flush=True)
        return 1
    indexer = Indexer(directory, index)
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], LOOK_SECONDS)
        if not ready:
            _answer(indexer, LOOK_SECONDS, parent)
            continue
        line = sys.stdin.readline()
        if not line:
            index.close()
            return 0
        print(msgspec.json.encode(_answer(indexer, float(line), parent)).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
