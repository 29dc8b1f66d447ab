"""Whoever catches msgspec's errors around a `decode` also catches what msgspec raises besides: the rule that a linter does not know."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP = ("gateway", "engines", "policies", "admin", "gatehouse")
OF_MSGSPEC = {"msgspec.MsgspecError", "msgspec.DecodeError", "msgspec.ValidationError", "MsgspecError", "DecodeError", "ValidationError"}
BROAD = {"UNREADABLE", "Exception", "BaseException"}
TEXT = {"UnicodeDecodeError", "UnicodeError", "ValueError"}
DEPTH = {"RecursionError", "RuntimeError"}
CONVERT = "msgspec.convert"
"""Raises such errors for values that have been decoded: no text is read, and their depth is bounded."""
REQUESTS = (
    "gateway/caches/keys.py",
    "gateway/wire/anthropic/api.py",
    "gateway/wire/anthropic/calls.py",
    "gateway/wire/anthropic/chat.py",
    "gateway/wire/json_api.py",
    "gateway/wire/openai/api.py",
    "gateway/wire/openai/calls.py",
    "gateway/wire/openai/schemas.py",
    "gateway/wire/responses/api.py",
    "gateway/wire/responses/calls.py",
    "gateway/wire/responses/chat.py",
)
"""Read fields of requests again: `JsonApi.parse` has bounded the depth of the whole and read it as UTF-8."""
OWN = (
    "engines/host/catalogue/",
    "engines/sidecar/shell.py",
    "gateway/app/audit/index.py",
    "gateway/app/audit/reveals.py",
    "gateway/app/limits/",
    "gateway/app/operator_jobs/child.py",
    "gateway/app/quickstart.py",
    "gateway/app/upgrade/",
    "gateway/app/workers/",
    "gateway/caches/registry.py",
    "gateway/config/additions.py",
    "gateway/limits/redis/",
    "gateway/store/",
)
"""Read what this program wrote, in files and from processes that are its own, or values that have been decoded."""
INNER = ("admin/values.py", "gateway/wire/openai/answers.py")
"""Have one `try` within another, which catches the rest."""


def _caught(node: ast.Try) -> set[str]:
    kinds = [handler.type for handler in node.handlers]
    parts = [part for kind in kinds if kind is not None for part in (kind.elts if isinstance(kind, ast.Tuple) else [kind])]
    return {ast.unparse(part) for part in parts}


def _calls(node: ast.Try) -> Iterator[str]:
    for part in node.body:
        yield from (ast.unparse(inner.func) for inner in ast.walk(part) if isinstance(inner, ast.Call))


def careless(source: str) -> list[int]:
    """Lines of the `try` that catch an error of msgspec's and let a text that is not UTF-8, or too deep, pass as another error."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Try):
            continue
        caught, calls = _caught(node), set(_calls(node))
        if not caught & OF_MSGSPEC or caught & BROAD or (CONVERT in calls and not any("decode" in call for call in calls)):
            continue
        if not (caught & TEXT and caught & DEPTH):
            found.append(node.lineno)
    return found


def test_whoever_reads_json_catches_all_that_unreadable_json_raises() -> None:
    files = [path for top in TOP for path in sorted((ROOT / top).rglob("*.py"))]
    assert len(files) > 100
    found = [f"{path.relative_to(ROOT)}:{line}" for path in files for line in careless(path.read_text())]
    excused = (*REQUESTS, *OWN, *INNER)
    assert [place for place in found if not place.startswith(excused)] == []
    assert [name for name in excused if not any(place.startswith(name) for place in found)] == []


@pytest.mark.parametrize(
    ("work", "caught", "found"),
    [
        ("decoder.decode(body)", "msgspec.DecodeError", [1]),
        ("read(body)", "(msgspec.MsgspecError, UnicodeDecodeError)", [1]),
        ("decoder.decode(body)", "(msgspec.DecodeError, RecursionError)", [1]),
        ("msgspec.json.decode(msgspec.convert(a, bytes))", "msgspec.ValidationError", [1]),
        ("decoder.decode(body)", "(msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError)", []),
        ("decoder.decode(body)", "(msgspec.DecodeError, ValueError, RecursionError)", []),
        ("decoder.decode(body)", "UNREADABLE", []),
        ("msgspec.convert(value, Kind)", "msgspec.ValidationError", []),
        ("decoder.decode(body)", "KeyError", []),
    ],
)
def test_what_is_found(work: str, caught: str, found: list[int]) -> None:
    assert careless(f"try:\n    {work}\nexcept {caught}:\n    pass\n") == found


def test_handlers_of_one_try_count_together() -> None:
    source = "try:\n    decoder.decode(body)\nexcept msgspec.ValidationError:\n    pass\nexcept UNREADABLE:\n    pass\n"
    assert careless(source) == []
