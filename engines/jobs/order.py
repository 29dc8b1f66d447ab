"""The messages between the gateway and the process of a job: an `Order` on standard input, then `Progress` and at last an `Outcome` as
files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec

PROGRESS: Final = "told.json"
OUTCOME: Final = "outcome.json"
MAIN: Final = "main.onnx"
"""The graph that a folder was made with, beside the archive of the folder."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One line of JSON on standard input, which then stays open while the job is wanted. source: the model's file or folder. folder: empty,
    the only place that the process may write to. target: the name of the file to make there, or "". seconds: of processor time, for each
    thread."""

    kind: str
    source: str
    folder: str
    target: str
    options: dict[str, Any]
    threads: int
    niceness: int
    memory_bytes: int
    output_bytes: int
    seconds: float


class Progress(msgspec.Struct, frozen=True):
    """How far the job is. progress: from 0 to 1."""

    progress: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the job ended. problem: why it cannot be done, however often it is tried; "" if it was done. result: figures for people."""

    problem: str = ""
    result: dict[str, Any] = {}


def put(folder: Path, name: str, what: msgspec.Struct) -> None:
    """Writes a file of the folder, whole or not at all."""
    beside = folder / f"{name}.new"
    beside.write_bytes(msgspec.json.encode(what))
    os.replace(beside, folder / name)
