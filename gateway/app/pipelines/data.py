"""What steps of pipelines read of a chat and of engines' answers, and what they make of it. Raises msgspec.MsgspecError for what an engine
should not have answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import mul
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct, ValidationError

from gateway.core.errors import RequestError
from gateway.core.specs.pipelines import DOCUMENTS, RankStep

MOST_DOCUMENTS: Final = 128
"""The most documents of one request."""
TURN: Final = 8
"""Vectors that are compared before other requests have their turn."""
ask: Final = msgspec.json.Encoder().encode


class _Part(Struct):
    type: str = "text"
    text: str = ""


class _Message(Struct):
    role: str = ""
    content: str | list[_Part] | None = None


class _Document(Struct):
    text: str
    title: str = ""


class _Class(Struct):
    label: str
    probs: list[float]


class _Classes(Struct):
    data: Annotated[list[_Class], Meta(min_length=1, max_length=1)]


class _Vector(Struct):
    index: int
    embedding: list[float]


class _Vectors(Struct):
    data: list[_Vector]


class _Rank(Struct):
    index: int
    relevance_score: float


class _Ranks(Struct):
    results: list[_Rank]


class _Said(Struct):
    content: str


class _Choice(Struct):
    message: _Said


class _Chat(Struct):
    choices: Annotated[list[_Choice], Meta(min_length=1)]


_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])
_MESSAGES: Final = msgspec.json.Decoder(list[_Message])
_RAWS: Final = msgspec.json.Decoder(list[Raw])
_DOCUMENTS: Final = msgspec.json.Decoder(list[str | _Document] | None)
_CLASSES: Final = msgspec.json.Decoder(_Classes)
_VECTORS: Final = msgspec.json.Decoder(_Vectors)
_RANKS: Final = msgspec.json.Decoder(_Ranks)
_CHAT: Final = msgspec.json.Decoder(_Chat)


# --- of the request


def chat_of(body: bytes) -> dict[str, Raw]:
    """The fields of a chat, which has been checked."""
    return _FIELDS.decode(body)


def prompt_of(fields: dict[str, Raw]) -> str:
    """The text of the last message of a user; "" without one."""
    for message in reversed(_MESSAGES.decode(fields["messages"])):
        if message.role == "user":
            content = message.content
            if content is None or isinstance(content, str):
                return content or ""
            return "\n".join(part.text for part in content if part.type == "text" and part.text)
    return ""


def documents_of(fields: dict[str, Raw]) -> list[str]:
    """The documents of a chat: texts, or objects with `text` and, if they like, `title`. Raises RequestError."""
    given = fields.get(DOCUMENTS)
    if given is None:
        return []
    try:
        found = _DOCUMENTS.decode(given) or []
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise RequestError("documents: write a list of texts, or of objects with text and title.", param=DOCUMENTS) from None
    if len(found) > MOST_DOCUMENTS:
        raise RequestError(f"documents: there are {len(found)}; a request has {MOST_DOCUMENTS} at most.", param=DOCUMENTS)
    texts = [one if isinstance(one, str) else f"{one.title}\n{one.text}" if one.title else one.text for one in found]
    return [text for text in texts if text]


def with_documents(fields: dict[str, Raw], text: str | None, documents: Sequence[str], system: str | None) -> Raw:
    """The messages of a step that generates: the conversation, or one text in its place. Documents are a message of the user's before the
    last one of theirs: what stands in them is no word of the operator's."""
    if text is None and not documents and system is None:
        return fields["messages"]
    messages = _RAWS.decode(fields["messages"]) if text is None else [_message("user", text)]
    if documents:
        roles = ["user"] if text is not None else [message.role for message in _MESSAGES.decode(fields["messages"])]
        place = len(roles) - 1 - roles[::-1].index("user") if "user" in roles else len(roles)
        numbered = "\n\n".join(f"[{number}] {document}" for number, document in enumerate(documents, 1))
        messages.insert(place, _message("user", f"Documents:\n\n{numbered}"))
    if system is not None:
        messages.insert(0, _message("system", system))
    return Raw(ask(messages))


def _message(role: str, content: str) -> Raw:
    return Raw(ask({"role": role, "content": content}))


# --- of engines' answers


def labelled(body: bytes) -> tuple[str, float]:
    """A classifier's label, and how sure it is."""
    found = _CLASSES.decode(body).data[0]
    return found.label, max(found.probs, default=0.0)


def said(body: bytes) -> str:
    """The text of a chat's answer."""
    return _CHAT.decode(body).choices[0].message.content


def ranked(body: bytes, documents: Sequence[str], step: RankStep) -> list[str]:
    """The documents by a reranker's scores."""
    return _best([(one.relevance_score, one.index) for one in _RANKS.decode(body).results], documents, step)


async def nearest(body: bytes, documents: Sequence[str], step: RankStep) -> list[str]:
    """The documents by the cosine of their vectors with the first one, that of the query."""
    vectors = sorted(_VECTORS.decode(body).data, key=lambda one: one.index)
    if [one.index for one in vectors] != list(range(len(documents) + 1)):
        raise ValidationError("not every text has a vector")
    query = vectors[0].embedding
    length = _length(query)
    scores: list[tuple[float, int]] = []
    for number, one in enumerate(vectors[1:]):
        if len(one.embedding) != len(query):
            raise ValidationError("the vectors are not equally long")
        bottom = length * _length(one.embedding)
        scores.append((sum(map(mul, query, one.embedding)) / bottom if bottom else 0.0, number))
        if number % TURN == TURN - 1:
            await asyncio.sleep(0)
    return _best(scores, documents, step)


def _length(vector: list[float]) -> float:
    total: Any = sum(map(mul, vector, vector))
    return float(total**0.5)


def _best(scores: list[tuple[float, int]], documents: Sequence[str], step: RankStep) -> list[str]:
    found = [(-score, index) for score, index in scores if step.min_score is None or score >= step.min_score]
    indices = [index for _, index in found]
    if len(set(indices)) != len(indices) or any(not 0 <= index < len(documents) for index in indices):
        raise ValidationError("a document has no such number")
    return [documents[index] for _, index in sorted(found)[: step.top]]
