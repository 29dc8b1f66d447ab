"""What a model file says about itself: read by the inspector in a process of its own, handed over as one JSON line."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Question(Struct, frozen=True):
    """What the inspector is asked to look at: a model's file or folder. reader: `MODULE:FUNCTION`, as `RuntimeRow.inspect` names it."""

    path: str
    reader: str


class Port(Struct, frozen=True):
    """An input or output of a graph; a dimension is a length, a name, or unknown."""

    name: str
    type: str
    shape: tuple[int | str | None, ...]


class Facts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """problem: why the file cannot be used; everything else is then unknown.

    GGUF: title (the file's own name for itself), parameters (their number), quantisation (of most weights), context (tokens), template
    (whether it has one for chats), part and parts of a split model. ONNX: opsets by domain, graph (the file's path in the folder), labels
    (their number).
    task: chat, completion or embeddings; for ONNX embeddings, classification or tensor.
    """

    problem: str | None = None
    architecture: str | None = None
    title: str | None = None
    task: str | None = None
    parameters: int | None = None
    quantisation: str | None = None
    context: int | None = None
    layers: int | None = None
    vocabulary: int | None = None
    template: bool | None = None
    part: int = 0
    parts: int = 0
    graph: str | None = None
    producer: str | None = None
    opsets: dict[str, int] = {}
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    labels: int = 0

    def shown(self) -> dict[str, Any]:
        """The fields of the admin API; unknown ones are null."""
        return {
            "architecture": self.architecture,
            "title": self.title,
            "task": self.task,
            "parameters": self.parameters,
            "quantisation": self.quantisation,
            "context": self.context,
            "layers": self.layers,
            "chat_template": self.template,
            "opsets": self.opsets or None,
            "inputs": [{"name": p.name, "type": p.type, "shape": list(p.shape)} for p in self.inputs],
            "outputs": [{"name": p.name, "type": p.type, "shape": list(p.shape)} for p in self.outputs],
        }
