"""From a chat request to a generation: the rendered prompt's tokens, the grammar, and how to read the answer."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engines.chat import schema, tools
from engines.chat.formats.base import Choice, Format
from engines.chat.formats.table import BY_NAME, GENERIC, REASONING_TAGS, format_of
from engines.chat.gbnf import Check
from engines.chat.output import Dialect
from engines.chat.params import ChatRequest, Common, unsupported
from engines.chat.template import ChatTemplate, normalise
from engines.sidecar.shell import ApiError

_OPEN, _CLOSE = "\U000f5a01", "\U000f5a02"  # private use: a placeholder for the text of a control token inside a client's content
SCHEMA_PARAM = "response_format.json_schema.schema"
MAX_NESTING = 128
"""Lists and objects within each other, in messages, tools and what else a template sees: who reads them recurses."""
_HOLDER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat request, ready to be generated."""

    tokens: list[int]
    grammar: str | None
    dialect: Dialect
    parallel: bool


class Vocabulary(Protocol):
    """A model's tokens, as runtimes know them. Thread-safe."""

    n_vocab: int

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Tokens of a text. add_special: with those that the model puts around one. parse_special: the text of a control token is one."""

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""

    def piece(self, token: int) -> bytes:
        """The text of a token; control tokens have none."""

    def special_piece(self, token: int) -> bytes:
        """The text of a token, also of a control token."""

    def control_texts(self) -> list[str]:
        """The texts of all control tokens."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an answer's form is asked for as: `text`, `grammar` (GBNF), `json_object` or `json_schema`; value: the grammar or the schema."""

    kind: str
    value: Any = None


class Constraints(ABC):
    """Makes grammars in the form that the runtime's `SamplingParams.grammar` takes."""

    @abstractmethod
    def form(self, body: Common, check: Check) -> str | None:
        """Of `grammar` or `response_format`; None: anything may follow. check: of grammars. Raises ApiError 400."""

    @abstractmethod
    def calls(self, form: Format, choice: Choice, *, parallel: bool, check: Check) -> str:
        """The grammar of an answer that consists of tool calls. Raises ApiError 400 if it cannot be expressed."""


class Converser:
    """Prepares chat requests for one model. Thread-safe; takes time that grows with the messages."""

    def __init__(self, vocabulary: Vocabulary, template: ChatTemplate | None, bos: str, form: str | None, constraints: Constraints) -> None:
        self.constraints = constraints
        self._vocabulary = vocabulary
        self._template = template
        self._bos = bos
        source = template.source if template is not None else ""
        self._format = BY_NAME[form] if form is not None else format_of(source)
        controls = [text for text in vocabulary.control_texts() if text]
        held = [*controls, _OPEN, _CLOSE]  # these two as well: in a client's text they are not placeholders
        self._control = re.compile("|".join(sorted(map(re.escape, held), key=len, reverse=True))) if controls else None
        self.markers = _markers(vocabulary, self._format)
        visible = {piece.decode("utf-8", "replace") for piece in self.markers.values()}
        self._reasoning = next((tags for tags in REASONING_TAGS if tags[1] in source or tags[1] in visible), None)

    def prepare(self, body: ChatRequest, check: Check, fits: Callable[[int, str], None] = lambda characters, param: None) -> Conversation:
        """Render, tokenize, choose grammar and dialect. check: of grammars. fits: raises for a prompt with too many characters; it is given
        the parameter's name, too. Raises ApiError 400."""
        template = self._template
        if template is None:
            raise ApiError(400, "this model has no chat template; use /v1/completions", param="messages", code="no_chat_template")
        choice = tools.choose(tools.declared(body.tools), body.tool_choice)
        parallel = body.parallel_tool_calls is not False
        messages = normalise(body.messages, template.source)
        generic = bool(choice.tools) and self._format is GENERIC
        shown: Sequence[Mapping[str, Any]] | None = None
        if generic:
            messages = tools.generic_system(messages, choice)
        elif choice.tools:
            names = {tool.name for tool in choice.tools}
            shown = [tool for tool in body.tools or () if tool["function"]["name"] in names]
        if self._format.ids == "short":
            messages = tools.short_ids(messages)
        texts: list[str] = []
        extra = self._protect(self._extra(body), texts)
        text = template.render(self._protect(messages, texts), tools=self._protect(shown, texts), extra=extra)
        fits(len(text), "messages")
        allowed = {tool.name: tool.parameters for tool in choice.tools}
        inside = self._reasoning is not None and text.rstrip().endswith(self._reasoning[0].rstrip())
        constrained = choice.required or generic
        dialect = Dialect(self._format, allowed, self._reasoning, inside and not constrained)
        grammar = self._grammar(body, choice, constrained, parallel, check)
        return Conversation(self._tokens(text, texts), grammar, dialect, parallel)

    def beginning(self, system: str) -> list[int]:
        """The tokens that every conversation with this system prompt starts with. Raises ApiError if the template refuses it."""
        if self._template is None:
            return []
        messages = [{"role": "system", "content": system}, {"role": "user", "content": _OPEN}]
        text = self._template.render(messages, generate=False).partition(_OPEN)[0]
        return self._tokens(text, [])[:-1]  # the last may merge with what follows

    def _extra(self, body: ChatRequest) -> dict[str, Any]:
        extra = dict(body.chat_template_kwargs or {})
        if body.reasoning_effort is not None:
            if self._template is None or "reasoning_effort" not in self._template.source:
                raise unsupported("reasoning_effort", "this model's chat template does not know it")
            extra["reasoning_effort"] = body.reasoning_effort
        return extra

    def _grammar(self, body: ChatRequest, choice: Choice, constrained: bool, parallel: bool, check: Check) -> str | None:
        own = self.constraints.form(body, check)
        if choice.tools and own is not None:
            raise unsupported("tools", "they cannot be combined with response_format or grammar")
        return self.constraints.calls(self._format, choice, parallel=parallel, check=check) if constrained else own

    def _protect(self, value: Any, texts: list[str], depth: int = 0) -> Any:
        """The value with the text of every control token in its strings replaced: a client's text is never a control token. Raises ApiError
        400 for what is nested too deeply."""
        control = self._control
        if depth > MAX_NESTING:
            raise ApiError(400, f"messages, tools and chat_template_kwargs must not be nested deeper than {MAX_NESTING}")
        if control is None:
            return value
        if isinstance(value, str):

            def hold(match: re.Match[str]) -> str:
                texts.append(match.group())
                return f"{_OPEN}{len(texts) - 1}{_CLOSE}"

            return control.sub(hold, value)
        if isinstance(value, Mapping):
            return {self._protect(key, texts): self._protect(item, texts, depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [self._protect(item, texts, depth + 1) for item in value]
        return value

    def _tokens(self, text: str, texts: list[str]) -> list[int]:
        special = not (self._bos and text.startswith(self._bos))
        if not texts:
            return self._vocabulary.tokenize(text, add_special=special, parse_special=True)
        tokens: list[int] = []
        for at, piece in enumerate(_HOLDER.split(text)):
            if at % 2 == 0:
                if piece or at == 0:
                    tokens += self._vocabulary.tokenize(piece, add_special=special and at == 0, parse_special=True)
            elif int(piece) < len(texts):
                tokens += self._vocabulary.tokenize(texts[int(piece)], add_special=False, parse_special=False)
        return tokens


def format_of_body(body: Common) -> Wanted:
    """What `grammar` or `response_format` asks for. Raises ApiError 400."""
    form = body.response_format
    kind = form.get("type") if form is not None else "text"
    _only(form, {"type", "json_schema"} if kind == "json_schema" else {"type"}, "response_format")
    if body.grammar is not None:
        if kind != "text":
            raise ApiError(400, "grammar and response_format cannot be combined", param="grammar")
        return Wanted("grammar", body.grammar)
    if kind in ("text", "json_object"):
        return Wanted(kind)
    if kind != "json_schema" or form is None:
        raise ApiError(400, "response_format.type must be text, json_object or json_schema", param="response_format.type")
    described = form.get("json_schema")
    if not isinstance(described, dict) or "schema" not in described:
        raise ApiError(400, "response_format.json_schema.schema is required", param="response_format.json_schema")
    _only(described, {"name", "description", "schema", "strict"}, "response_format.json_schema")
    return Wanted("json_schema", described["schema"])


class Gbnf(Constraints):
    """Grammars of llama.cpp."""

    def form(self, body: Common, check: Check) -> str | None:
        wanted = format_of_body(body)
        try:
            if wanted.kind == "grammar":
                schema.check_grammar(wanted.value, check)
                return str(wanted.value)
            if wanted.kind == "json_schema":
                return schema.json_schema(wanted.value, check)
        except schema.SchemaError as exc:
            param, code = ("grammar", "invalid_grammar") if wanted.kind == "grammar" else (SCHEMA_PARAM, "unsupported_schema")
            raise ApiError(400, str(exc), param=param, code=code) from None
        return schema.json_object() if wanted.kind == "json_object" else None

    def calls(self, form: Format, choice: Choice, *, parallel: bool, check: Check) -> str:
        return tools.call_grammar(form, choice, parallel=parallel, check=check)


def _only(value: Mapping[str, Any] | None, known: set[str], where: str) -> None:
    for key, item in (value or {}).items():
        if key not in known and item is not None:
            raise unsupported(f"{where}.{key[:64]}", f"it has {', '.join(sorted(known))}")


def _markers(vocabulary: Vocabulary, form: Format) -> dict[int, bytes]:
    """Control tokens that carry structure (calls, reasoning) and their text, which plain detokenizing would drop."""
    texts = {*form.markers, *(tag for pair in REASONING_TAGS for tag in pair)}
    markers = {}
    for text in sorted(texts):
        tokens = vocabulary.tokenize(text, add_special=False, parse_special=True)
        if len(tokens) == 1 and vocabulary.special_piece(tokens[0]).decode("utf-8", "replace") == text:
            markers[tokens[0]] = text.encode()
    return markers
