"""Reads a Containerfile and says what each of its stages would hold, without a container engine.

Understood is the part of the format that deploy/containers uses; anything else is an error, so that nothing passes unread.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

WORDS = {"FROM", "RUN", "COPY", "WORKDIR", "ARG", "ENV", "USER", "EXPOSE", "VOLUME", "HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD"}


@dataclass
class Stage:
    """A stage and its instructions in order; `base` with its arguments filled in."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, word: str) -> str:
        return next((text for found, text in reversed(self.steps) if found == word), "")


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions, continuation lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            if word not in WORDS:
                raise ValueError(f"unknown instruction: {line}")
            yield word, rest.strip()


def stages(path: Path) -> list[Stage]:
    found: list[Stage] = []
    arguments: dict[str, str] = {}
    for word, rest in instructions(path.read_text(encoding="utf-8")):
        if word == "FROM":
            match = re.fullmatch(r"(\S+)(?: AS (\w+))?", rest)
            if match is None:
                raise ValueError(f"FROM {rest}")
            found.append(Stage(re.sub(r"\$\{(\w+)\}", lambda m: arguments[m[1]], match[1]), match[2] or str(len(found))))
        elif not found:
            if word != "ARG":
                raise ValueError(f"{word} before FROM")
            name, _, value = rest.partition("=")
            arguments[name] = value.strip('"')
        else:
            found[-1].steps.append((word, rest))
    return found


def copies(stage: Stage) -> Iterator[tuple[str | None, list[str], str]]:
    """The COPY instructions: from which stage, which sources, to where."""
    for word, rest in stage.steps:
        if word == "COPY":
            parts = shlex.split(rest)
            origin = parts.pop(0).removeprefix("--from=") if parts[0].startswith("--from=") else None
            yield origin, parts[:-1], parts[-1]


def ignored(root: Path, name: str) -> bool:
    """Whether .dockerignore keeps a path from the builder: the last pattern that matches decides."""
    out = False
    for line in (root / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#"):
            negated, pattern = pattern.startswith("!"), pattern.removeprefix("!").rstrip("/")
            parts = name.split("/")
            heads = ["/".join(parts[: number + 1]) for number in range(len(parts))]
            plain = pattern.removeprefix("**/")
            if any(fnmatch.fnmatchcase(head, pattern) for head in heads) or (
                plain != pattern and any(fnmatch.fnmatchcase(p, plain) for p in parts)
            ):
                out = not negated
    return out


def copied(root: Path, stage: Stage) -> dict[str, Path]:
    """What the stage's COPY instructions bring from the repository: the path in the working directory, and the file. Raises
    FileNotFoundError for a source that is not there or that .dockerignore leaves out."""
    held: dict[str, Path] = {}
    for origin, sources, target in copies(stage):
        if origin is not None:
            continue
        for source in sources:
            path = root / source
            files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
            files = [file for file in files if not ignored(root, file.relative_to(root).as_posix())]
            if not files:
                raise FileNotFoundError(f"COPY {source}: nothing of it reaches the builder")
            for file in files:
                below = file.name if path.is_file() else file.relative_to(path).as_posix()
                if not target.endswith("/"):
                    raise ValueError(f"COPY to {target}: end directories with a slash")
                held[(Path(target) / below).as_posix()] = file
    return held


def listed(text: str) -> list[str]:
    """The exec form of an instruction: a JSON list."""
    parts: list[str] = json.loads(text[text.index("[") :])
    return parts
