"""The port of wire formats: a request's format-specific data, and the base classes that each folder of gateway.wire implements.

A `WireApi` is one operation of one format; it alone knows the format's paths, fields, events and error bodies. The classes are native where
the hot path is compiled (gateway.app.compiled), so implementations must be, too: an interpreted class cannot inherit from a compiled one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Raw

from gateway.core.errors import EngineError, GatehouseError
from gateway.core.moderation import Judgement
from gateway.core.prices import Price
from gateway.core.slices import Steps
from gateway.core.tools import CallReader, ToolUse
from gateway.core.values import UNLABELLED, Headers, ResponseHead, Usage

HashBody = Callable[[bytes | memoryview], str]
"""A keyed hash in hex, or "" when body hashes are off."""
JSON: Final = b"content-type: application/json\r\n"
MAX_EVENT_BYTES: Final = 256 * 1024
"""Of one event, where its format does not say otherwise."""
Path = tuple[Any, ...]
"""Names one text within a choice of an answer, the same in every chunk of a stream."""


class InferenceRequest:
    """The typed view of a request: `view` is what policy reads; what is forwarded is `fields` (JSON: top-level keys with the
    client's own bytes as values) or `raw` (tensors).

    operation: the api's, by which policies name it. model: the public name asked for. prompt_tokens: an estimate until the engine counts
    (for tensors: elements). max_tokens: the bound on what may be generated (0: nothing is). content: the header lines about the body that
    the engine gets. version: of the model, where the path names one. unknown: the places of fields that `models[].unknown_fields` decides
    about. size: of the body in bytes. choices: how many answers it asks for.
    foreign: the endpoint of the present attempt does not speak the format, so it gets the request as an OpenAI one.
    asked: the name of the model that was asked for, if `model` is no longer it.
    labels: of its data; an engine that is not cleared for all of them never gets it (gateway.core.labels).
    memory: of the conversation that the request goes on with, or is to be kept for; None for most.
    expected: tokens reserved for what is generated. guess: at the prompt, before anything that was learned corrected it.
    counted: of the prompt, where its engine was asked for them; else 0. most: that the
    prompt can have, whatever it says; 0 where nobody will count it. Where there is plenty, that much is reserved, and always if `cautious`;
    `unsure`: a guess was reserved instead, so the prompt is to be counted. price: the model's when the request began; set before quota is
    reserved, None if it has none.
    """

    __slots__ = (
        "api",
        "asked",
        "cautious",
        "choices",
        "content",
        "counted",
        "expected",
        "fields",
        "foreign",
        "guess",
        "include_usage",
        "labels",
        "max_tokens",
        "memory",
        "model",
        "most",
        "operation",
        "path",
        "price",
        "prompt_tokens",
        "raw",
        "size",
        "stream",
        "unknown",
        "unsure",
        "version",
        "view",
    )

    def __init__(
        self,
        api: WireApi,
        path: bytes,
        model: str,
        fields: dict[str, Raw],
        view: Any,
        stream: bool = False,
        include_usage: bool = False,
        prompt_tokens: int = 0,
        max_tokens: int = 0,
        content: bytes = JSON,
        raw: bytes = b"",
        version: str = "",
    ) -> None:
        self.api, self.operation = api, api.operation
        self.path, self.model = path, model
        self.fields, self.view = fields, view
        self.stream, self.include_usage = stream, include_usage
        self.prompt_tokens, self.max_tokens = prompt_tokens, max_tokens
        self.content, self.raw, self.version = content, raw, version
        self.unknown: tuple[str, ...] = ()
        self.asked = ""
        self.labels: frozenset[str] = UNLABELLED
        self.foreign = False
        self.choices = 1
        self.size = self.expected = self.counted = self.guess = self.most = 0
        self.cautious = self.unsure = False
        self.price: Price | None = None
        self.memory: Memory | None = None


class Memory:
    """What is kept of conversations for a request. previous: the identifier of the answer that it goes on with; "" for none. keeps: its own
    answer is to be kept, as `identity`. items: of the conversation, before the request's own. referred: items of earlier answers that it
    names, in its order."""

    __slots__ = ("identity", "items", "keeps", "previous", "referred")

    def __init__(self, previous: str, keeps: bool, identity: str = "", referred: Sequence[str] = ()) -> None:
        self.previous, self.keeps, self.identity, self.referred = previous, keeps, identity, referred
        self.items: list[Raw] = []


class RequestTexts:
    """The texts of one request that guardrails read. They may be replaced one by one; `write` puts them into what is forwarded."""

    __slots__ = ("texts",)

    def __init__(self) -> None:
        self.texts: list[str] = []

    def replace(self, texts: Sequence[str]) -> None:
        """Replaces each text. Raises GuardrailViolation if one cannot be rewritten."""
        raise NotImplementedError

    def write(self) -> None:
        """Writes the replaced texts into the forwarded fields."""

    def sources(self) -> list[str]:
        """Of each text who said it: system, user, assistant, tool, other; empty where the format does not say."""
        return []


class WholeAnswer:
    """The texts of one whole answer that guardrails read, and the answer's part of the audit record. usage, finish: what the engine
    reports, where reading the texts has shown it already."""

    __slots__ = ("body", "finish", "texts", "usage")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.texts: list[str] = []
        self.usage: Usage | None = None
        self.finish = ""

    def replaced(self, texts: Sequence[str]) -> bytes:
        """The answer with each text replaced. Raises GuardrailViolation if one cannot be rewritten."""
        raise NotImplementedError

    def evidence(self) -> bytes | memoryview:
        """The part of the body that the record's body hash covers."""
        return self.body

    def detail(self, hash_body: HashBody) -> dict[str, Any] | None:
        """Further facts for the audit record."""
        return None


class TextFilter:
    """Passes the texts of one stream through the guardrails. A text is named by its choice and its path within it."""

    def feed(self, choice: Any, path: Path, text: str) -> str:
        """The part of the held and the new text that may be released now."""
        raise NotImplementedError

    def whole(self, text: str) -> str:
        """Passes on a text that never comes in pieces."""
        raise NotImplementedError

    def holds(self, choice: Any) -> bool:
        """Whether any text of the choice is held."""
        return False

    def finish(self, choice: Any) -> list[tuple[Path, str]]:
        """Ends the texts of a choice; returns the held part of each."""
        raise NotImplementedError

    def finish_all(self) -> list[tuple[Any, Path, str]]:
        """Ends every text; returns (choice, path, held part) for each."""
        raise NotImplementedError


class EventReader:
    """Reads one event stream of a format, in whole events with `\\n` as line end.

    usage: what the engine has reported so far. untold: the event that tells it, which the client did not ask for. finish: why it stopped
    generating, "" where it has not said so. ended: the format's end marker has been forwarded. error: the engine reported a failure.
    largest: bytes of one event. inspects: guardrails read the events.
    """

    __slots__ = ("ended", "error", "finish", "inspects", "largest", "untold", "usage")

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.finish, self.untold = "", b""
        self.ended = self.inspects = False
        self.largest = MAX_EVENT_BYTES
        self.error: EngineError | None = None

    def plain(self, data: bytes) -> int:
        """The number of events in `data` if they are whole and may be forwarded unread; 0 if they must be read."""
        raise NotImplementedError

    def translated(self, data: bytes) -> bytes:
        """What one whole event of another format becomes in this one, where it need not be parsed; b"" where it must be read."""
        return b""

    def read(self, data: bytes) -> bytes:
        """Reads usage and errors; returns the bytes to forward. If the engine failed, sets `error` and returns what came before."""
        raise NotImplementedError

    def forwarded(self, data: bytes) -> int:
        """Sees what is forwarded after `read`, to notice the end marker. Returns its number of events, without comments."""
        raise NotImplementedError

    def inspected(self, event: bytes, texts: TextFilter) -> bytes:
        """One event after its texts went through the guardrails, preceded by anything due before it; b"" if it is dropped or withheld.

        Only what was read passes, no comments and no further fields of the event. Raises EngineError for one that cannot be read.
        """
        raise NotImplementedError

    def spoken(self, data: bytes, texts: TextFilter) -> bytes:
        """The same for one whole event that differs from one before only in its text, so that it need not be parsed. b"" for other data, of
        which the filter has seen nothing: it must be read."""
        return b""

    def smaller(self, event: bytes, most: int) -> list[bytes]:
        """A large event as several that say the same, with at most so many characters of each text; itself where that cannot be.

        Guardrails read one after the other, with other work in between. Raises EngineError for an event that cannot be read.
        """
        return [event]

    def rest(self, texts: TextFilter) -> bytes:
        """Events with everything still held or withheld at the end of the stream."""
        raise NotImplementedError

    def end_of(self, data: bytes) -> int:
        """Where the end marker ends in these whole events, as the engine sent them; 0 where they have none."""
        return 0

    def is_end(self, rest: bytes) -> bool:
        """Whether an unfinished event is the end marker without its empty line."""
        return False

    def unsaid(self) -> bytes:
        """The end marker, where it is missing behind the reason why the engine stopped and must be read to make the end; else b""."""
        return b""

    def whole(self, marked: bool) -> bool:
        """Whether the engine may end the stream here. marked: its end marker has come."""
        return True

    def result(self) -> dict[str, Any] | None:
        """The whole answer as it was passed on, where it is to be kept and its last event waits for that (`ending` has it)."""
        return None

    def failed(self, error: GatehouseError) -> bytes:
        """The events that end the stream with an error; b"" where they do not depend on what came before."""
        return b""

    def ending(self) -> bytes:
        """The bytes that end the client's stream if the engine did not."""
        raise NotImplementedError

    def estimate(self, events: int) -> int:
        """Generated tokens, from the number of events, for a stream without usage."""
        return max(0, events - 1)


class WireApi:
    """One operation of one wire format.

    operation: its name in policies, limits, metrics and the audit log. paths: where clients call it; patterns are for `matches`.
    prefix: error bodies for every path below it are this format's, whether or not there is such a path (b"": none).
    generates: whether it generates text, so that tokens can be estimated from bytes. describes: whether whole answers are read for the
    audit record even where no guardrail reads them. moderates: a guardrail answers it, where one is configured for the model
    (gateway.core.moderation). forms: its requests are forms with a file, which is passed on as it arrives
    (gateway.pipeline.uploading). dialect: the name of the format in `engines[].apis`, if not every engine speaks it; for others it is
    translated. remembers_any: a request may go on with an answer that was kept, or have its own kept. counts: it only asks how many tokens
    a prompt has. Two formats may share an operation: then policies and limits do not tell them apart.
    """

    __slots__ = ("counts", "describes", "dialect", "forms", "generates", "moderates", "operation", "paths", "prefix", "remembers_any")

    def __init__(
        self,
        operation: str,
        paths: tuple[bytes, ...] = (),
        *,
        prefix: bytes = b"",
        generates: bool = False,
        describes: bool = False,
        moderates: bool = False,
        dialect: str = "",
    ) -> None:
        self.operation, self.paths, self.prefix, self.dialect = operation, paths, prefix, dialect
        self.generates, self.describes, self.moderates = generates, describes, moderates
        self.remembers_any = self.forms = self.counts = False

    def __repr__(self) -> str:
        return f"<{self.operation}>"

    # --- requests

    def matches(self, path: bytes) -> bool:
        """Whether a path outside `paths` belongs to this operation."""
        return False

    def parse(self, path: bytes, body: bytes, headers: Headers, max_depth: int, max_nodes: int) -> InferenceRequest:
        """The typed view of a request. max_nodes: see gateway.wire.scan. Raises RequestError naming the field."""
        raise NotImplementedError

    def parse_steps(self, path: bytes, body: bytes, headers: Headers, max_depth: int, max_nodes: int) -> Steps[InferenceRequest]:
        """The same for a large body, with a pause after every few milliseconds."""
        raise NotImplementedError

    def form(self, path: bytes, fields: bytes, headers: Headers) -> InferenceRequest:
        """The typed view of a request that is a form with a file. fields: its texts as a JSON object. Raises RequestError."""
        raise NotImplementedError

    def unanswerable(self, request: InferenceRequest) -> str:
        """Why no answer to this request could be inspected; "" where one may be."""
        return ""

    def settle_unknown(self, request: InferenceRequest, policy: str, tools: Sequence[str] = ()) -> None:
        """Applies the model's `unknown_fields` and `engine_tools` to the request's unknown fields. Raises RequestError."""
        raise NotImplementedError

    def rename(self, request: InferenceRequest, model: str) -> None:
        """Replaces an alias by the model it names."""
        request.model = model

    def target(self, request: InferenceRequest, name: str | None, salt: bytes = b"") -> tuple[bytes, bytes]:
        """(path, body) for an engine that knows the model by `name` (None: by its public one). salt: of the caller's isolation
        domain, where the engine takes it as a field of the body."""
        raise NotImplementedError

    def unreadable(self, request: InferenceRequest) -> str:
        """Why guardrails cannot read this request; "" when they can."""
        return ""

    def texts(self, request: InferenceRequest) -> RequestTexts:
        """The request's texts for the guardrails. Raises RequestError if they cannot be read."""
        raise NotImplementedError

    def strings(self, request: InferenceRequest) -> list[Raw] | None:
        """JSON values in which each of `texts` stands as one string; None where one may be made of several, or is elsewhere."""
        return None

    def texts_steps(self, request: InferenceRequest) -> Steps[RequestTexts]:
        """The same for a large request, with a pause after every few milliseconds."""
        yield
        return self.texts(request)

    def evidence(self, request: InferenceRequest, body: bytes) -> bytes | memoryview:
        """The part of the body that the audit record's body hash covers."""
        return body

    def detail(self, request: InferenceRequest, hash_body: HashBody) -> dict[str, Any] | None:
        """Further facts for the audit record."""
        return None

    # --- conversations that are kept

    def remembers(self, request: InferenceRequest, keeping: bool) -> Memory | None:
        """What a request needs of the conversations that are kept; None for nothing. keeping: whether any are. Raises RequestError for what
        it asks in vain."""
        return None

    def recalled(self, request: InferenceRequest, items: Sequence[Raw]) -> None:
        """Puts the conversation so far in front of the request."""

    def referred(self, request: InferenceRequest, items: Sequence[Raw]) -> None:
        """Puts the items of earlier answers where the request names them, in its order."""

    def said(self, request: InferenceRequest) -> list[Raw]:
        """The request's own part of the conversation, as it was asked before anything was put in front of it."""
        return []

    # --- inputs of routing keys

    def messages(self, request: InferenceRequest) -> Sequence[Any] | None:
        """The turns of a conversation, each with `role` and `content`; None when the request is not a conversation."""
        return None

    def turns(self, request: InferenceRequest) -> Sequence[Any] | None:
        """The turns of a conversation, each with `role` and, where it calls tools, `tool_calls`, each with a `function`; None when the
        request is not a conversation."""
        return self.messages(request)

    def opening(self, request: InferenceRequest) -> Any:
        """The text that a request without turns begins with: a string, or a list of strings, token ids and parts; None without texts."""
        return None

    def tools(self, request: InferenceRequest) -> list[str]:
        """The names of the tools that the request offers to the model, all that an engine may read as one; the type of one without."""
        return []

    def tool_uses(self, request: InferenceRequest) -> Sequence[ToolUse]:
        """The tools that a request offers, and the results that it brings. Raises RequestError."""
        return ()

    def label(self, request: InferenceRequest) -> str:
        """The label that the client gives the request's data; "" without one. Raises RequestError for one that cannot be read."""
        return ""

    def user(self, request: InferenceRequest) -> str:
        """The user named by the request; "" when it names none."""
        return ""

    # --- answers

    def received(self, request: InferenceRequest, body: bytes) -> bytes:
        """A whole answer in this format, as an engine gave it. Raises EngineError if it does not follow the engine's format."""
        return body

    def answer_lines(self, head: ResponseHead, length: int) -> bytes:
        """The header lines about the body of a whole answer of `length` bytes, each with its CRLF."""
        return b"content-type: application/json\r\ncontent-length: %d\r\n" % length

    def answer_usage(self, request: InferenceRequest, body: bytes) -> Usage | None:
        """The cost of a whole answer: the engine's count, else an estimate; None for a body that is not an answer."""
        raise NotImplementedError

    def answer_finish(self, body: bytes) -> str:
        """Why the engine stopped generating, as a whole answer says it; "" where the format does not."""
        return ""

    def answer(self, request: InferenceRequest, head: ResponseHead, body: bytes, inspected: bool) -> WholeAnswer:
        """A whole answer for the audit record and, when it is `inspected`, for guardrails: then with its texts. Raises EngineError."""
        raise NotImplementedError

    def tool_calls(self, body: bytes) -> tuple[bytes, Sequence[ToolUse]]:
        """A whole answer as every client reads it the same way, and the tools that it calls. Raises EngineError."""
        return body, ()

    def answer_schema(self, request: InferenceRequest) -> bytes | None:
        """The JSON schema that a request asks its answer to follow; b"" for any JSON object; None where it asks for neither."""
        return None

    def contents(self, body: bytes) -> Sequence[str]:
        """The contents of a whole answer, without those of choices that call tools or refuse. Raises EngineError."""
        return ()

    def repair(self, request: InferenceRequest, content: str, advice: str) -> bool:
        """Makes of a request one that goes on with an answer of this content and the advice on it. False where it has no such form."""
        return False

    def call_reader(self) -> CallReader | None:
        """What follows the calls in one stream; None where a stream has none."""
        return None

    def replayed(self, body: bytes, events: bool, stream: bool, include_usage: bool) -> bytes:
        """A kept answer, whole or a stream's `events`, as a whole one or as a `stream`, as it is asked for. Raises EngineError."""
        raise EngineError("A kept answer of this operation has one form only.")

    def whole_steps(self, events: bytes) -> Steps[bytes]:
        """Events as a whole answer, in slices. Raises EngineError."""
        raise EngineError("A kept answer of this operation has one form only.")

    def error_body(self, error: GatehouseError, headers: Headers, request_id: bytes = b"") -> bytes:
        """The body of an error. headers: the request's."""
        return error.body()

    def error_status(self, error: GatehouseError) -> int:
        """The HTTP status that tells of an error."""
        return error.status

    def identity_lines(self, request_id: bytes) -> bytes:
        """The header lines in which answers tell the request's identifier, besides `x-request-id`."""
        return b""

    def judged(self, request: InferenceRequest) -> list[str]:
        """The texts that a request wants to have judged, one for each result."""
        raise NotImplementedError

    def judgement(self, request: InferenceRequest, identity: str, results: Sequence[Judgement]) -> bytes:
        """The answer that says what was found in each of these texts. identity: of the request."""
        raise NotImplementedError

    # --- event streams

    def reader(self, request: InferenceRequest) -> EventReader:
        """The reader of one stream, for requests with `stream`."""
        raise NotImplementedError

    def error_event(self, error: GatehouseError) -> bytes:
        """The events that end a stream that failed."""
        raise NotImplementedError
