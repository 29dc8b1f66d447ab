"""The typed part of the client is what scripts/generate_client.py makes of the admin API, and reaches every operation of it."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from admin.openapi import describe
from admin.operation import PREFIX
from admin.resources import table
from gatehouse.client.aio import AsyncResources
from gatehouse.client.api import Resources
from gatehouse.client.calls import Call
from gatehouse.client.events import Event

ROOT = Path(__file__).resolve().parents[4]
CLIENT = ROOT / "gatehouse" / "client"


def test_the_files_are_what_the_admin_api_says(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("generate_client", ROOT / "scripts" / "generate_client.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    made = module.generate()
    there = {path.relative_to(CLIENT).as_posix() for folder in module.FOLDERS for path in (CLIENT / folder).glob("*.py")}
    assert there == set(made), "run python scripts/generate_client.py"
    different = [name for name, code in made.items() if (CLIENT / name).read_text(encoding="utf-8") != code]
    assert not different, f"run python scripts/generate_client.py: {different}"


class Answer:
    headers = httpx.Headers()
    content = b""
    text = ""


class Recording:
    """Stands for the connection: notes the calls and answers with an empty page."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def json(self, call: Call) -> Any:
        self.calls.append(call)
        return {"items": [], "cursor": None}

    def send(self, call: Call) -> Any:
        self.calls.append(call)
        return Answer()

    def parts(self, call: Call) -> Iterator[bytes]:
        self.calls.append(call)
        return iter(())

    def events(self, call: Call) -> Iterator[Event]:
        self.calls.append(call)
        return iter(())


class AsyncRecording(Recording):
    async def json(self, call: Call) -> Any:
        return super().json(call)

    async def send(self, call: Call) -> Any:
        return super().send(call)


def arguments(method: Any) -> tuple[list[Any], dict[str, Any]]:
    """Something for every parameter: names that no path may hold as they are, true and numbers for the rest."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in inspect.signature(method).parameters.items():
        value: Any = {"body": {}, "content": b"x"}.get(name, f"a/{name}?")
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = True if name == "dry_run" else value
        else:
            positional.append(value)
    return positional, named


def methods(resources: Any) -> list[Any]:
    apis = vars(resources).values()
    return [method for api in apis for name, method in inspect.getmembers(api, callable) if not name.startswith("_")]


def wanted() -> dict[tuple[str, str], dict[str, Any]]:
    """Every operation, with a path as the methods above are given its places."""
    found = {}
    for path, operations in describe(table.operations())["paths"].items():
        for verb, described in operations.items():
            filled = path.removeprefix(PREFIX)
            for one in described.get("parameters", ()):
                filled = filled.replace(f"{{{one['name']}}}", f"a%2F{one['name']}%3F")
            found[verb.upper(), filled] = described
    return found


async def gathered(resources: Any) -> None:
    for method in methods(resources):
        positional, named = arguments(method)
        outcome = method(*positional, **named)
        if inspect.isawaitable(outcome):
            await outcome
        elif isinstance(outcome, AsyncIterator):
            assert [item async for item in outcome] == []
        elif isinstance(outcome, Iterator):
            assert list(outcome) == []


@pytest.mark.parametrize("form", [Resources, AsyncResources], ids=["synchronous", "asynchronous"])
def test_every_operation_is_reached_with_all_that_it_takes(form: Any) -> None:
    connection = Recording() if form is Resources else AsyncRecording()
    asyncio.run(gathered(form(connection)))
    operations = wanted()
    called: dict[tuple[str, str], Call] = {}
    for call in connection.calls:
        called.setdefault((call.method, call.path), call)
    assert set(called) == set(operations)
    for place, call in called.items():
        described = operations[place]
        parameters = described.get("parameters", ())
        assert set(call.query) >= {one["name"] for one in parameters if one["in"] == "query"}, place
        assert set(call.headers) == {one["name"] for one in parameters if one["in"] == "header"}, place
        assert (call.body is not None or call.content is not None) == ("requestBody" in described), place
        assert call.query.get("dry_run") in (None, True)


def test_both_forms_have_the_same_operations() -> None:
    def names(resources: Any) -> dict[str, dict[str, list[str]]]:
        shown = {}
        for name, api in vars(resources).items():
            listed = [n for n, _ in inspect.getmembers(api, callable) if not n.startswith("_")]
            shown[name] = {method: list(inspect.signature(getattr(api, method)).parameters) for method in listed}
        return shown

    assert names(Resources(Recording())) == names(AsyncResources(AsyncRecording()))  # type: ignore[arg-type]
