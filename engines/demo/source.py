"""Reads the demo model's hand-written data (data/*.yaml) into frozen objects. Unknown and missing keys are errors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from engines.demo.phrasing import Frames

DATA = Path(__file__).parent / "data"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader if PyYAML was built with it: twenty times as fast."""
TOPIC_KEYS = {"id", "what", "how", "ask", "answer", "more"}


class DataError(ValueError):
    """A data file is invalid; the message names the file and the entry."""


@dataclass(frozen=True, slots=True)
class Topic:
    """Something about Gatehouse: how people ask about it, the answer, and what to say when they ask for more."""

    id: str
    seeds: tuple[tuple[str, str], ...]
    """(kind, text) with kind what, how or ask, as `phrasing.framed` takes them."""
    answer: str
    more: str


@dataclass(frozen=True, slots=True)
class Talk:
    """Small talk: whole messages and their answer."""

    id: str
    ask: tuple[str, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class Outside:
    """Questions that the model cannot answer, and its answer to them."""

    answer: str
    frames: tuple[str, ...]
    subjects: tuple[str, ...]
    syllables: tuple[str, ...]
    questions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Systems:
    """System prompts: whole ones, and lists of parts to join."""

    fixed: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Extras:
    """Dialogues whose answers depend on the question: names and counting, and one long story."""

    names: tuple[str, ...]
    introduce: tuple[str, ...]
    introduced: str
    ask_name: tuple[str, ...]
    known_name: str
    unknown_name: str
    count_ask: tuple[str, ...]
    story_ask: tuple[str, ...]
    story: str


@dataclass(frozen=True, slots=True)
class Source:
    """All hand-written data."""

    topics: tuple[Topic, ...]
    talks: tuple[Talk, ...]
    outside: Outside
    frames: Frames
    systems: Systems
    extras: Extras
    heldout: dict[str, tuple[str, ...]]
    """Topic or talk id (or `outside`) -> questions kept out of training."""


def _read(path: Path) -> Any:
    with path.open(encoding="utf-8") as file:
        return yaml.load(file, Loader=LOADER)


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise DataError(f"{where}: expected a list of texts")
    return tuple(value)


def _topic(entry: dict[str, Any], file: str) -> Topic:
    where = f"{file}: {entry.get('id')}"
    if unknown := set(entry) - TOPIC_KEYS:
        raise DataError(f"{where}: unknown keys {sorted(unknown)}")
    seeds = tuple((kind, text) for kind in ("what", "how", "ask") for text in _texts(entry.get(kind, []), where))
    if not seeds or not entry.get("answer") or not entry.get("more", entry["answer"]):
        raise DataError(f"{where}: needs questions, an answer and more to say")
    return Topic(id=entry["id"], seeds=seeds, answer=entry["answer"], more=entry.get("more", ""))


def _read_outside(path: Path) -> Outside:
    entry = _read(path)
    texts = {key: _texts(entry[key], f"{path.name}: {key}") for key in ("frames", "subjects", "syllables", "questions")}
    return Outside(answer=str(entry["answer"]), **texts)


def _read_frames(path: Path) -> Frames:
    entry = _read(path)
    synonyms = {word: _texts(others, f"{path.name}: {word}") for word, others in entry.pop("synonyms").items()}
    return Frames(**{key: _texts(value, f"{path.name}: {key}") for key, value in entry.items()}, synonyms=synonyms)


def _read_systems(path: Path) -> Systems:
    entry = _read(path)
    return Systems(
        fixed=_texts(entry["fixed"], f"{path.name}: fixed"), parts=tuple(_texts(part, f"{path.name}: parts") for part in entry["parts"])
    )


def _read_extras(path: Path) -> Extras:
    entry = _read(path)
    lists = ("names", "introduce", "ask_name", "count_ask", "story_ask")
    return Extras(
        introduced=str(entry["introduced"]),
        known_name=str(entry["known_name"]),
        unknown_name=str(entry["unknown_name"]),
        story=str(entry["story"]),
        **{key: _texts(entry[key], f"{path.name}: {key}") for key in lists},
    )


def _talk(entry: dict[str, Any], file: str) -> Talk:
    return Talk(id=str(entry["id"]), ask=_texts(entry["ask"], f"{file}: {entry['id']}"), answer=str(entry["answer"]))


def load(folder: Path = DATA) -> Source:
    """Reads `folder`. Raises DataError, KeyError for a missing entry, OSError or yaml.YAMLError."""
    topics = tuple(_topic(entry, path.name) for path in sorted(folder.glob("topics-*.yaml")) for entry in _read(path))
    talks = tuple(_talk(entry, "talk.yaml") for entry in _read(folder / "talk.yaml"))
    ids = [topic.id for topic in topics] + [talk.id for talk in talks]
    if len(set(ids)) != len(ids):
        raise DataError("two entries have the same id")
    heldout = {key: _texts(value, f"heldout.yaml: {key}") for key, value in _read(folder / "heldout.yaml").items()}
    if unknown := set(heldout) - set(ids) - {"outside"}:
        raise DataError(f"heldout.yaml: no such topics: {sorted(unknown)}")
    return Source(
        topics=topics,
        talks=talks,
        outside=_read_outside(folder / "outside.yaml"),
        frames=_read_frames(folder / "frames.yaml"),
        systems=_read_systems(folder / "systems.yaml"),
        extras=_read_extras(folder / "extras.yaml"),
        heldout=heldout,
    )
