"""From messages to a prompt: the chat template of the GGUF, rendered by jinja2 in its sandbox."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from engines.chat.bounds import MOST_CHARS, MOST_SECONDS, bounded, exceeded, held, made
from engines.chat.growth import listing
from engines.chat.needs import Needs, adapted, find
from engines.chat.params import unsupported
from engines.chat.sandbox import BoundedSandbox, odd, undeclared
from engines.sidecar.shell import ApiError

ROLES = frozenset({"system", "user", "assistant", "tool"})
FIELDS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning"})
"""Message fields that templates may show; any other is accepted if the model's template names it."""
MOST_INDENT = 64
MOST_FORM = 256
"""Characters of the form of a date."""
MOST_MESSAGE = 4096
"""Characters of what a template says when it refuses messages."""
PROBE_SECONDS = 0.5
"""Processor time for each of the small conversations that show what a template needs."""


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    """The filter that chat templates expect: plain JSON, without jinja's HTML escapes."""
    if indent is not None and not (isinstance(indent, int) and -1 <= indent <= MOST_INDENT):
        exceeded(f"asks for JSON with an indent other than 0 to {MOST_INDENT}")
    if options.get("separators") is not None and any(len(separator) > MOST_INDENT for separator in options["separators"]):
        exceeded(f"asks for JSON with a separator of more than {MOST_INDENT} characters")
    text = json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, default=_plain, **options)
    made(len(text))  # of a text it makes a longer one, of that one longer still
    return text


def _plain(value: Any) -> Any:
    """Jinja's filters and `items` give iterators."""
    if isinstance(value, Iterator):
        return held(listing(value))
    raise TypeError(f"{type(value).__name__} is not JSON")


def _raise(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message)[:MOST_MESSAGE])


def _now(form: str) -> str:
    if len(form) > MOST_FORM:
        exceeded(f"asks for a date in a form of more than {MOST_FORM} characters")
    return datetime.datetime.now().strftime(form)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part for training (Hugging Face); in a prompt it is nothing but its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja's interface

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _environment(*, odd: bool = False) -> BoundedSandbox:
    made = BoundedSandbox(
        odd=odd, trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation], autoescape=False
    )  # fmt: skip
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = _now
    if odd:
        made.weigh_all()
    return made


class ChatTemplate:
    """A compiled template. `render` is thread-safe and takes time that grows with the messages: do not call it on the event loop.

    `error`: why the template is invalid, or None.
    """

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        self.source = source
        self._special = {"bos_token": bos, "eos_token": eos}
        self.error: str | None = None
        self._wanted: set[str] = set()
        self.needs = Needs()
        try:
            environment = _environment()
            tree = environment.parse(source)
            if odd(tree):
                environment = _environment(odd=True)
            self._template = environment.from_string(source)
            self._wanted = undeclared(tree)
        except (jinja2.TemplateError, ApiError, RecursionError, SyntaxError) as exc:  # Python's own: statements that are nested too deeply
            self.error = str(exc)
        else:
            self.needs = find(lambda messages, tools: self._render(messages, tools, seconds=PROBE_SECONDS))

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None,
        generate: bool = True, extra: Mapping[str, Any] | None = None,
    ) -> str:  # fmt: skip
        """The prompt for these messages. Raises ApiError 400 if the template refuses them or fails."""
        if self.error is not None:
            raise ApiError(400, f"the model's chat template is broken: {self.error}", param="messages", code="chat_template_failed")
        try:
            return self._render(adapted(messages, self.needs), tools, generate, extra)
        except ApiError:
            raise
        except Exception as exc:  # noqa: BLE001 - boundary: a template is a program of the model's author; it fails its request only
            raise ApiError(400, f"the chat template refused: {exc}", param="messages", code="chat_template_failed") from None

    def _render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, generate: bool = True,
        extra: Mapping[str, Any] | None = None, seconds: float = MOST_SECONDS,
    ) -> str:  # fmt: skip
        if not tools:
            tools = [] if self.needs.no_tools else tools
        values = {
            **(extra or {}), **self._special, "messages": messages, "tools": tools, "add_generation_prompt": generate, **self._old(tools)
        }  # fmt: skip
        parts = []
        size = 0
        try:
            with bounded(seconds):
                for part in self._template.generate(values):
                    size += len(part)
                    if size > MOST_CHARS:
                        raise ApiError(400, "the prompt is too long", param="messages", code="context_length_exceeded")
                    parts.append(part)
        except Exception as exc:  # noqa: BLE001 - boundary: raised again; what the template held ends now
            raise exc.with_traceback(None) from None
        return "".join(parts)

    def _old(self, tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
        """Variables of templates (FireFunction) that are older than `tools`."""
        values: dict[str, Any] = {}
        if "functions" in self._wanted and "tools" not in self._wanted:
            values = {"functions": json.dumps(list(tools or ()), indent=4, ensure_ascii=False), "datetime": _now("%b %d %Y %H:%M:%S GMT")}
        return values


def normalise(messages: Sequence[Mapping[str, Any]], template: str = "") -> list[dict[str, Any]]:
    """Messages as templates expect them: text parts joined, `developer` as `system`, tool arguments as objects. Raises ApiError 400."""
    return [_message(message, f"messages[{at}]", template) for at, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str, template: str) -> dict[str, Any]:
    for key, value in message.items():
        if key not in FIELDS and value not in (None, [], {}) and key not in template:
            raise unsupported(f"{where}.{key[:64]}", "this model's chat template does not know it")
    role = message.get("role")
    if role == "developer":
        role = "system"
    if not isinstance(role, str) or role not in ROLES:
        raise ApiError(400, f"{where}.role must be one of developer, system, user, assistant, tool", param=f"{where}.role")
    result = {**message, "role": role, "content": _content(message.get("content"), f"{where}.content", role)}
    calls = message.get("tool_calls")
    if calls is None:
        result.pop("tool_calls", None)
    else:
        result["tool_calls"] = _calls(calls, f"{where}.tool_calls")
    if role == "tool" and not isinstance(message.get("tool_call_id", ""), str):
        raise ApiError(400, f"{where}.tool_call_id must be a string", param=f"{where}.tool_call_id")
    return result


def _content(content: Any, where: str, role: str) -> str:
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, list) or not content:
        raise ApiError(400, f"{where} must be a text or a list of parts", param=where)
    texts = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise unsupported(f"{where}[{at}]", "only parts of type text are")
        if not isinstance(part.get("text"), str):
            raise ApiError(400, f"{where}[{at}].text must be a string", param=f"{where}[{at}].text")
        extra = next((key for key, value in part.items() if key not in ("type", "text") and value is not None), None)
        if extra is not None:
            raise unsupported(f"{where}[{at}].{extra[:64]}", "a part has type and text")
        texts.append(part["text"])
    return "\n".join(texts)


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Tool calls of an earlier turn, with their arguments decoded, as most templates want them."""
    if not isinstance(calls, list):
        raise ApiError(400, f"{where} must be a list", param=where)
    result = []
    for at, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ApiError(400, f"{where}[{at}].function needs a name", param=f"{where}[{at}].function")
        arguments = function.get("arguments", "{}")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                raise ApiError(400, f"{where}[{at}].function.arguments is not JSON", param=f"{where}[{at}].function.arguments") from None
        result.append({**call, "type": "function", "function": {**function, "arguments": arguments}})
    return result
