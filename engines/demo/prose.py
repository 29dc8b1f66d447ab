"""Plain English without names, for the demo classifier of names: what this machine has of technical documentation.

The descriptions in botocore's service models (Apache-2.0, among the development dependencies as `moto`'s) and the topics of Python's own
help. They are read when the model is made, and are not part of it or of this repository.
"""

from __future__ import annotations

import gzip
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import botocore

SERVICES = (
    "account", "chime", "connect", "forecast", "gamelift", "groundstation", "healthlake", "invoicing", "iotfleetwise", "location",
    "mediaconvert",
    "mturk", "organizations", "personalize", "polly", "rekognition", "s3", "ses", "snowball", "sns", "textract", "translate", "workmail",
)  # fmt: skip
EACH = 600
"""Sentences of one service."""
_TAG = re.compile(r"<[^>]*>")
_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z])")
_PARAGRAPH = re.compile(r"\n\s*\n")


def prose() -> list[str]:
    """Sentences of 3 to 40 words, each once, always the same on the same machine."""
    found: dict[str, None] = {}
    for name in SERVICES:
        mine = list(dict.fromkeys(_sentences(name)))
        found.update(dict.fromkeys(mine[:: max(1, len(mine) // EACH)]))
    for _, topic in sorted(topics.items()):
        found.update(dict.fromkeys(_split(topic)))
    return list(found)


def _sentences(service: str) -> Iterator[str]:
    folder = Path(botocore.__file__).parent / "data" / service
    for file in sorted(folder.glob("*/service-2.json.gz"))[-1:]:
        for text in _documents(json.loads(gzip.decompress(file.read_bytes()))):
            yield from _split(html.unescape(_TAG.sub(" ", text)))


def _documents(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "documentation" and isinstance(inner, str):
                yield inner
            else:
                yield from _documents(inner)


def _split(text: str) -> Iterator[str]:
    for paragraph in _PARAGRAPH.split(text):
        for sentence in _END.split(" ".join(paragraph.split())):
            if 2 <= sentence.count(" ") < 40:
                yield sentence
