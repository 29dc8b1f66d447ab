#!/usr/bin/env python3
"""Writes the typed part of the Python client, gatehouse/client/{types,api,aio}, from the tables that the admin API is made of.

usage: python scripts/generate_client.py          a test fails when the files are not what this writes
"""

from __future__ import annotations

import keyword
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from admin.openapi import describe  # noqa: E402
from admin.resources import table  # noqa: E402

CLIENT = ROOT / "gatehouse" / "client"
MADE = "Made by scripts/generate_client.py."
PRIMITIVES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None", "object": "dict[str, Any]"}
VERBS = {"GET": "get", "POST": "create", "PUT": "replace", "PATCH": "update", "DELETE": "delete", "HEAD": "head"}
FOLDERS = ("types", "api", "aio")
STREAMS = {"application/x-ndjson", "text/csv"}
LINES = 450
"""Most lines of a file of types; a resource with more has several."""


def snake(name: str) -> str:
    return re.sub(r"\W", "_", name.lower())


def pascal(name: str) -> str:
    return "".join(word.capitalize() for word in re.split(r"\W|_", name))


def class_name(schema: str) -> str:
    """`admin.resources.status.Caller` is StatusCaller: there are two of them."""
    *modules, name = schema.split(".")
    return pascal(modules[-1]) + name if modules else name


def one_line(text: str) -> str:
    return " ".join(text.split())


def literal(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Types:
    """Names of Python types for schemas. `used` collects the classes that were named."""

    def __init__(self, schemas: dict[str, Any]) -> None:
        self.schemas = schemas
        self.used: set[str] = set()

    def of(self, schema: dict[str, Any]) -> str:
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            self.used.add(name)
            return class_name(name)
        if "anyOf" in schema:
            return " | ".join(dict.fromkeys(self.of(one) for one in schema["anyOf"]))
        if "enum" in schema:
            return f"Literal[{', '.join(literal(v) if isinstance(v, str) else repr(v) for v in schema['enum'])}]"
        kind = schema.get("type")
        if isinstance(kind, list):
            return " | ".join(PRIMITIVES[one] for one in kind)
        if kind == "array":
            return f"list[{self.of(schema['items'])}]" if schema.get("items") else "list[Any]"
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict) and schema["additionalProperties"]:
            return f"dict[str, {self.of(schema['additionalProperties'])}]"
        return PRIMITIVES.get(kind or "", "Any")

    def definition(self, name: str) -> str:
        """The class of a schema."""
        schema = self.schemas[name]
        required = set(schema.get("required", ()))
        fields = {}
        for field, of in schema.get("properties", {}).items():
            kind = self.of(of)
            if of.get("default", ...) is None and "None" not in kind.split(" | ") and field not in required:
                kind += " | None"  # an answer has null where a setting has its default
            fields[field] = kind if field in required else f"NotRequired[{kind}]"
        shown, text = class_name(name), one_line(schema.get("description", ""))
        if any(not field.isidentifier() or keyword.iskeyword(field) for field in fields):
            entries = ", ".join(f"{literal(field)}: {literal(kind)}" for field, kind in fields.items())
            return f"{shown} = TypedDict({literal(shown)}, {{{entries}}})\n" + (f'"""{text}"""\n' if text else "")
        lines = [f"class {shown}(TypedDict):"]
        if text or not fields:
            lines += wrapped(text or "Nothing.", "    ")
        if text and fields:
            lines.append("")
        return "\n".join([*lines, *(f"    {field}: {kind}" for field, kind in fields.items())]) + "\n"


def wrapped(text: str, indent: str) -> list[str]:
    """A docstring of lines that fit."""
    text = text.replace("\\", "\\\\").replace('"""', "'''")
    if len(indent) + len(text) + 6 <= 138:
        return [f'{indent}"""{text}"""']
    lines, line = [], f'{indent}"""'
    for word in text.split(" "):
        if len(line) + len(word) + 1 > 138:
            lines.append(line.rstrip())
            line = indent
        line += word + " "
    return [*lines, line.rstrip(), f'{indent}"""']


@dataclass(frozen=True)
class Method:
    """One operation: the resource and the method of the client, and what it takes and gives."""

    resource: str
    verb: str
    path: str
    described: dict[str, Any]
    name: str

    @property
    def places(self) -> list[str]:
        return re.findall(r"\{(\w+)\}", self.path)

    def parameters(self, where: str) -> list[dict[str, Any]]:
        return [one for one in self.described.get("parameters", ()) if one["in"] == where]


def methods(document: dict[str, Any]) -> dict[str, list[Method]]:
    """By resource. A name says what stands in the path after the resource, or else what is done to it."""
    found: dict[str, list[Method]] = defaultdict(list)
    taken: dict[tuple[str, str], str] = {}
    for path, operations in document["paths"].items():
        short = path.removeprefix("/admin/v1/")
        resource, _, rest = re.match(r"([\w.-]+)([:/]?)(.*)", short).groups()  # type: ignore[union-attr]
        resource = snake(resource)
        words = [snake(word) for word in re.split(r"[/:]", rest) if word and not word.startswith("{")]
        for method, described in operations.items():
            verb = method.upper()
            read = verb == "GET" or (verb == "POST" and "get" not in operations)  # a POST of its own path is what its last word says
            name = "_".join(words if read else [VERBS[verb], *words]) or VERBS[verb]
            if not words and verb == "GET" and is_list(document, described):
                name = "list"
            if not words and verb == "POST":
                name = VERBS[verb]
            if (resource, name) in taken and words:  # one of many, after all of them
                name = f"{VERBS[verb]}_{'_'.join(words)}"
            if (resource, name) in taken:  # two paths to one thing
                name += "_by_" + "_".join(map(snake, re.findall(r"\{(\w+)\}", path))) if "{" in path else "_where"
            assert (resource, name) not in taken, (resource, name, path, taken[resource, name])
            taken[resource, name] = path
            found[resource].append(Method(resource, verb, short, described, name))
    return dict(found)


def answers(described: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """The media type of a success, and the schemas that it may have."""
    for status in ("201", "202", "200"):
        content = described["responses"].get(status, {}).get("content")
        if content:
            media = next(iter(content))
            schema = content[media]["schema"]
            return media, schema.get("anyOf", [schema]) if media == "application/json" else []
    return "", []


def is_list(document: dict[str, Any], described: dict[str, Any]) -> bool:
    _, schemas = answers(described)
    name = schemas[0].get("$ref", "").rpartition("/")[2] if schemas else ""
    return "items" in document["components"]["schemas"].get(name, {}).get("properties", {})


class Writer:
    """Writes the methods of one resource, in one of the two forms."""

    def __init__(self, types: Types, asynchronous: bool) -> None:
        self.types, self.asynchronous = types, asynchronous
        self.define = "async def" if asynchronous else "def"
        self.wait = "await " if asynchronous else ""
        self.iterator = "AsyncIterator" if asynchronous else "Iterator"

    def resource(self, name: str, listed: list[Method]) -> str:
        prefix, connection = ("Async", "AsyncConnection") if self.asynchronous else ("", "Connection")
        lines = [f"class {prefix}{pascal(name)}Api:", f'    """Operations below /{listed[0].path.split("/")[0].split(":")[0]}."""', ""]
        lines += [f"    def __init__(self, connection: {connection}) -> None:", "        self._connection = connection", ""]
        for method in listed:
            lines += [*self.method(method), ""]
        return "\n".join(lines)

    def method(self, m: Method) -> list[str]:
        media, schemas = answers(m.described)
        positional = [f"{snake(place)}: str" for place in m.places]
        fields = self._body(m, positional)
        query = {one["name"]: one for one in m.parameters("query")}
        headers = {one["name"]: one for one in m.parameters("header")}
        named = [self._named(one) for one in sorted(query.values(), key=lambda one: not one["required"]) if one["name"] != "dry_run"]
        named += [self._header(one) for one in headers.values()]
        if headers:
            fields.append("headers={" + ", ".join(f"{literal(name)}: {snake(name)}" for name in headers) + "}")
        if query:
            sent = ", ".join(f"{literal(name)}: {'dry_run or None' if name == 'dry_run' else snake_safe(name)}" for name in query)
            fields.insert(0, f"query={{{sent}}}")
        path = "/" + re.sub(r"\{(\w+)\}", lambda place: f"{{segment({snake(place[1])})}}", m.path)
        call = ", ".join([literal(m.verb), ("f" if m.places else "") + literal(path), *fields])
        text = wrapped(f"{m.described['summary']}. {m.described['description']}", "        ")
        if media in STREAMS or media == "text/event-stream":
            return self._stream(m, media, positional, named, call, text)
        dry = schemas[1] if len(schemas) == 2 and "dry_run" in query else None
        if dry is not None:
            return self._with_dry_run(m, positional, named, call, text, self.types.of(schemas[0]), self.types.of(dry))
        if "dry_run" in query:
            named.append("dry_run: bool = False")
        returns, how = self._result(m, media, schemas)
        lines = [f"    {self.define} {m.name}({self._signature(positional, named)}) -> {returns}:", *text]
        lines.append(self._line(how, call))
        if "cursor" in query and schemas and (item := self._item(schemas[0])):
            lines += ["", *self._iterate(m, positional, named, item)]
        return lines

    def _line(self, how: str, call: str) -> str:
        if how == "json":
            return f"        return {self.wait}self._connection.json(Call({call}))"
        if how == "headers":
            return f"        return dict(({self.wait}self._connection.send(Call({call}))).headers)"
        return f"        return ({self.wait}self._connection.send(Call({call}))).{how}"

    def _result(self, m: Method, media: str, schemas: list[dict[str, Any]]) -> tuple[str, str]:
        if m.verb == "HEAD" or (not media and m.parameters("header")):
            return "dict[str, str]", "headers"
        if media == "application/json":
            return " | ".join(dict.fromkeys(self.types.of(one) for one in schemas)), "json"
        return ("str", "text") if media.startswith("text/") else ("bytes", "content") if media else ("None", "json")

    def _body(self, m: Method, positional: list[str]) -> list[str]:
        content = m.described.get("requestBody", {}).get("content", {})
        if not content:
            return []
        schema = content.get("application/json", {}).get("schema", {})
        if "$ref" in schema:
            positional.append(f"body: {self.types.of(schema)}")
            return ["body=body"]
        media = next(iter(content))
        kind = "str | bytes" if media.startswith("text/") or "yaml" in media else "bytes"
        positional.append(f"content: {kind}")
        return ["content=content", f"media={literal(media)}"]

    def _named(self, one: dict[str, Any]) -> str:
        kind = self.types.of(one["schema"])
        if one["required"]:
            return f"{snake_safe(one['name'])}: {kind}"
        return f"{snake_safe(one['name'])}: {kind} | None = None"

    def _header(self, one: dict[str, Any]) -> str:
        kind = "int | str" if one["name"] == "If-Match" else self.types.of(one["schema"])
        return f"{snake(one['name'])}: {kind}" + ("" if one["required"] else " | None = None")

    @staticmethod
    def _signature(positional: list[str], named: list[str]) -> str:
        return ", ".join(["self", *positional, *(["*", *named] if named else [])])

    def _with_dry_run(
        self, m: Method, positional: list[str], named: list[str], call: str, text: list[str], done: str, tried: str
    ) -> list[str]:
        def head(dry: str, returns: str) -> str:
            return f"    {self.define} {m.name}({self._signature(positional, [*named, dry])}) -> {returns}:"

        return [
            "    @overload",
            head("dry_run: Literal[False] = False", done) + " ...",
            "    @overload",
            head("dry_run: Literal[True]", tried) + " ...",
            head("dry_run: bool = False", f"{done} | {tried}"),
            *text,
            self._line("json", call),
        ]

    def _stream(self, m: Method, media: str, positional: list[str], named: list[str], call: str, text: list[str]) -> list[str]:
        kind, how = ("Event", "events") if media == "text/event-stream" else ("bytes", "parts")
        return [
            f"    def {m.name}({self._signature(positional, named)}) -> {self.iterator}[{kind}]:",
            *text,
            f"        return self._connection.{how}(Call({call}))",
        ]

    def _item(self, schema: dict[str, Any]) -> str:
        of = self.types.schemas.get(schema.get("$ref", "").rpartition("/")[2], {}).get("properties", {}).get("items")
        return self.types.of(of["items"]) if of else ""

    def _items(self) -> list[str]:
        if self.asynchronous:
            return ['            for item in page["items"]:', "                yield item"]
        return ['            yield from page["items"]']

    def _iterate(self, m: Method, positional: list[str], named: list[str], item: str) -> list[str]:
        name = "iterate" if m.name == "list" else f"iterate_{m.name}"
        passed = [one.split(":")[0] for one in positional]
        passed += [f"{one.split(':')[0]}={one.split(':')[0]}" for one in named if not one.startswith("cursor")] + ["cursor=cursor"]
        kept = [one for one in named if not one.startswith("cursor")]
        return [
            f"    {self.define} {name}({self._signature(positional, kept)}) -> {self.iterator}[{item}]:",
            f'        """All of `{m.name}`, page after page; `limit`: of a page."""',
            "        cursor: str | None = None",
            "        while True:",
            f"            page = {self.wait}self.{m.name}({', '.join(passed)})",
            *self._items(),
            '            cursor = page.get("cursor")',
            "            if cursor is None:",
            "                return",
        ]


def snake_safe(name: str) -> str:
    made = snake(name)
    return f"{made}_" if keyword.iskeyword(made) else made


def places_of_types(types: Types, resources: dict[str, list[Method]]) -> dict[str, str]:
    """The module of each schema: that of the resource which needs it first; numbered where one would be too long."""
    place: dict[str, str] = {}
    for resource, listed in resources.items():
        needed: list[str] = []
        for asynchronous in (False, True):
            writer = Writer(types, asynchronous)
            types.used = set()
            writer.resource(resource, listed)
            needed += sorted(types.used)
        size, number = 0, 1
        while needed:
            name = needed.pop(0)
            if name in place:
                continue
            types.used = set()
            size += types.definition(name).count("\n") + 2
            if size > LINES:
                size, number = 0, number + 1
            place[name] = resource if number == 1 else f"{resource}_{number}"
            needed += sorted(types.used - set(place))
    return place


def typing_names(code: str, names: tuple[str, ...]) -> str:
    used = [name for name in names if re.search(rf"\b{name}\b", code)]
    return f"from typing import {', '.join(used)}\n" if used else ""


def imports(used: set[str], place: dict[str, str], own: str) -> str:
    by: dict[str, list[str]] = defaultdict(list)
    for name in used:
        if place[name] != own:
            by[place[name]].append(class_name(name))
    return "".join(f"from gatehouse.client.types.{module} import {', '.join(sorted(names))}\n" for module, names in sorted(by.items()))


def type_files(types: Types, place: dict[str, str]) -> dict[str, str]:
    grouped: dict[str, list[str]] = defaultdict(list)
    for name, module in place.items():
        grouped[module].append(name)
    files = {"types/__init__.py": f'"""Types of what the admin API takes and gives, as plain dictionaries. {MADE}"""\n'}
    for module, names in grouped.items():
        types.used = set()
        code = "\n\n".join(types.definition(name) for name in sorted(names, key=class_name))
        others = imports(types.used, place, module)
        typing = typing_names(code, ("TYPE_CHECKING", "Any", "Literal", "NotRequired", "TypedDict"))
        if others:
            typing = typing.replace("import ", "import TYPE_CHECKING, ", 1)
            others = "\nif TYPE_CHECKING:\n" + "".join(f"    {line}\n" for line in others.splitlines())
        files[f"types/{module}.py"] = (
            f'"""Types of the operations below /{module.rstrip("_0123456789")}. {MADE}"""\n\nfrom __future__ import annotations\n\n'
            f"{typing}{others}\n\n{code}"
        )
    return files


def api_files(types: Types, place: dict[str, str], resources: dict[str, list[Method]], asynchronous: bool) -> dict[str, str]:
    """The modules of one form, and the class that holds them all."""
    folder, prefix = ("aio", "Async") if asynchronous else ("api", "")
    module, connection = ("async_connection", "AsyncConnection") if asynchronous else ("connection", "Connection")
    needed = f"from gatehouse.client.{module} import {connection}\n"
    files = {}
    for resource, listed in resources.items():
        types.used = set()
        code = Writer(types, asynchronous).resource(resource, listed)
        iterator = "AsyncIterator" if asynchronous else "Iterator"
        head = f"from collections.abc import {iterator}\n" if f"{iterator}[" in code else ""
        head += typing_names(code, ("Any", "Literal", "overload")) + "\n" + needed
        head += f"from gatehouse.client.calls import Call{', segment' if 'segment(' in code else ''}\n"
        head += "from gatehouse.client.events import Event\n" if re.search(r"\bEvent\b", code) else ""
        head += imports(types.used, place, "")
        about = f'"""The admin API below /{resource.replace("_", "-")}. {MADE}"""\n\nfrom __future__ import annotations\n\n'
        files[f"{folder}/{resource}.py"] = f"{about}{head}\n\n{code}"
    rows = [(name, pascal(name)) for name in resources]
    code = f'"""All resources of the admin API. {MADE}"""\n\nfrom __future__ import annotations\n\n{needed}'
    code += "".join(f"from gatehouse.client.{folder}.{name} import {prefix}{shown}Api\n" for name, shown in rows)
    code += f'\n\nclass {prefix}Resources:\n    """A resource\'s operations under its name."""\n\n'
    code += f"    def __init__(self, connection: {connection}) -> None:\n"
    code += "".join(f"        self.{name} = {prefix}{shown}Api(connection)\n" for name, shown in rows)
    files[f"{folder}/__init__.py"] = code
    return files


def generate() -> dict[str, str]:
    """The files below gatehouse/client, formatted, by their path there."""
    document = describe(table.operations())
    types, resources = Types(document["components"]["schemas"]), methods(document)
    place = places_of_types(types, resources)
    forms = (api_files(types, place, resources, asynchronous) for asynchronous in (False, True))
    files = {name: code for form in (type_files(types, place), *forms) for name, code in form.items()}
    return formatted(files)


def formatted(files: dict[str, str]) -> dict[str, str]:
    """As ruff sorts and formats them, by the settings of this repository."""
    ruff, settings = [sys.executable, "-m", "ruff"], ["--config", str(ROOT / "pyproject.toml"), "--no-cache", "-q", "."]
    with tempfile.TemporaryDirectory() as directory:
        for name, code in files.items():
            path = Path(directory, name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(code, encoding="utf-8")
        for words in (["check", "--select", "I", "--fix"], ["format"]):
            subprocess.run([*ruff, *words, *settings], check=True, cwd=directory, timeout=120)
        return {name: Path(directory, name).read_text(encoding="utf-8") for name in files}


def main() -> None:
    files = generate()
    for folder in FOLDERS:
        (CLIENT / folder).mkdir(exist_ok=True)
        for path in (CLIENT / folder).glob("*.py"):
            if f"{folder}/{path.name}" not in files:
                path.unlink()
    for name, code in files.items():
        (CLIENT / name).write_text(code, encoding="utf-8")


if __name__ == "__main__":
    main()
