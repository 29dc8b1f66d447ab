"""The compiled hot path is used only while it is what the sources say."""

import ast
import json
import os
import subprocess
import sys
import sysconfig
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from gateway.app import compiled
from gateway.app.compiled import MANIFEST, MODULES, ROOT, CompiledFinder, extension, fault, place


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "a.py").write_text("x = 1\n")
    return tmp_path


def manifest(tree: Path, **changes: object) -> Path:
    """A build's directory that notes the tree's one source as it is now."""
    directory = tree / "build"
    directory.mkdir(exist_ok=True)
    digest = sha256((tree / "gateway" / "a.py").read_bytes()).hexdigest()
    noted = {"suffix": EXTENSION_SUFFIXES[0], "modules": list(MODULES), "sources": {"gateway/a.py": digest}}
    (directory / MANIFEST).write_text(json.dumps({**noted, **changes}))
    return directory


def test_a_build_of_these_sources_is_used(tree: Path) -> None:
    assert fault(manifest(tree), tree) is None


def test_a_build_is_not_used_after_a_source_has_changed(tree: Path) -> None:
    directory = manifest(tree)
    (tree / "gateway" / "a.py").write_text("x = 2\n")
    assert fault(directory, tree) == "gateway/a.py has changed since the build"


def test_a_build_is_not_used_after_a_source_is_gone(tree: Path) -> None:
    directory = manifest(tree)
    (tree / "gateway" / "a.py").unlink()
    assert fault(directory, tree) == "there is no a.py"


def test_without_a_build_the_sources_run(tmp_path: Path) -> None:
    assert fault(tmp_path / "nothing") == f"there is no {MANIFEST}"


@pytest.mark.parametrize("changes", [{"suffix": ".cpython-27.so"}, {"modules": ["gateway.a"]}])
def test_a_build_for_something_else_is_not_used(tree: Path, changes: dict[str, object]) -> None:
    assert fault(manifest(tree, **changes), tree) == "the build is for another Python or for other modules"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sources": 1}', "\xff"])
def test_a_manifest_that_makes_no_sense_is_not_used(tree: Path, text: str) -> None:
    directory = manifest(tree)
    (directory / MANIFEST).write_text(text)
    assert "cannot be read" in (fault(directory, tree) or "")


def test_the_environment_says_where_or_whether() -> None:
    assert place({"GATEHOUSE_COMPILED": "0"}) is None
    assert place({"GATEHOUSE_COMPILED": "/somewhere"}) == Path("/somewhere")
    assert place({"GATEHOUSE_COMPILED": "1"}) == place({}), "on, and not a folder of that name"
    assert place({}) == Path(compiled.sysconfig.get_path("platlib")) / "gatehouse_compiled"


def test_only_the_modules_of_the_build_are_found(tmp_path: Path) -> None:
    finder = CompiledFinder(tmp_path)
    assert finder.find_spec("gateway.app.gateway", None) is None
    assert finder.find_spec("gateway.core", None) is None
    found = finder.find_spec("gateway.core.waiting", None)
    assert found is not None and found.origin == str(extension(tmp_path, "gateway.core.waiting"))


def test_every_module_of_the_table_exists_and_defines_no_struct() -> None:
    """msgspec's Structs need the interpreter's own class creation."""
    for name in MODULES:
        tree = ast.parse((ROOT / Path(*name.split("."))).with_suffix(".py").read_text())
        bases = {ast.unparse(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases}
        assert not bases & {"Struct", "msgspec.Struct", "Spec"}, name


def test_no_source_inherits_from_a_compiled_class() -> None:
    """Compiled code reads its own attributes and calls its own methods directly, past what such a class overrides."""
    classes: dict[str, list[tuple[str, set[str]]]] = {}
    for top in ("gateway", "policies", "engines", "admin"):
        for file in (ROOT / top).rglob("*.py"):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ClassDef):
                    bases = {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
                    classes.setdefault(node.name, []).append((module, bases))
    native = {name for name, places in classes.items() for module, _ in places if module in MODULES}
    found = {
        f"{module}.{name}": sorted(bases & native) for name, places in classes.items() for module, bases in places if module not in MODULES
    }
    assert not {name: bases for name, bases in found.items() if bases}


SLICES = {
    "gateway/audit/chain.py": {
        "line[begin:end]": "begin < end was asked before",
        "line[-_TAIL:-_TAIL + len(_MARK)]": "two constants",
        "line[-67:-3]": "two constants",
        "encoded[1:-1]": "a JSON object has two characters at least",
        "encode(record)[1:-1]": "a JSON object has two characters at least",
    },
    "gateway/audit/journal.py": {
        "memory[begin:begin + size]": "a mapped file, and size is positive",
        "memory[_START + offset:_START + offset + _HEAD_SIZE]": "a mapped file",
        "data[begin + _HEAD_SIZE:begin + _HEAD_SIZE + length]": "length is unsigned, and the header ends within the ring",
        "self._map[8:_START]": "a mapped file",
        "data[8:_START]": "two constants, and the file is longer",
    },
    "gateway/audit/sealing.py": {
        "data[position:end]": "end was looked for from position on",
        "data[end + 2:end + 2 + size]": "size is positive",
    },
    "gateway/caches/keys.py": {"part[start:start + PIECE]": "PIECE is positive"},
    "gateway/limits/redis/advance.py": {
        "found[place + count:place + 2 * count]": "a list",
        "found[place:place + count]": "a list",
    },
    "gateway/limits/redis/shared.py": {"found[place + 2:after]": "a list", "pots[first:first + MOST_NOTES]": "a list"},
    "gateway/pipeline/nested_stream.py": {"text[at:at + PIECE]": "a str", "text[at:end]": "a str"},
    "gateway/telemetry/tracing.py": {name: "constants" for name in ("value[3:35]", "value[36:52]", "value[53:55]")},
    "gateway/transport/repeated.py": {
        "data[place:end]": "returned before",
        "data[end:end + len(after)]": "the end is not beyond the data, and the length is not negative",
    },
    "gateway/wire/anthropic/answers.py": {
        "data[begin:end]": "returned before",
    },
    "gateway/wire/oip/api.py": {"data[start:end]": "a comma was looked for from start on, or it is the end"},
    "gateway/wire/passages.py": {
        "self.texts[number:number + 2]": "a list",
        "self.texts[number:number + count]": "a list",
        "texts[number:number + 2]": "a list",
        "texts[number:number + count]": "a list",
    },
    "gateway/wire/responses/chat_stream.py": {
        "_ENCODER.encode(given)[1:-1]": "a JSON text has two characters at least",
        "_ENCODER.encode(text)[1:-1]": "a JSON text has two characters at least",
        "_ENCODER.encode(self._item)[1:-1]": "a JSON text has two characters at least",
    },
    "gateway/wire/responses/events.py": {
        "event[end:end + len(_DATA)]": "end is not negative",
        "event[len(BEGINS):end]": "the first line end is behind what the event begins with",
    },
    "gateway/wire/responses/stream.py": {
        "data[len(known):len(data) - 2]": "it ends with two line ends, which are behind what it begins with: that ends with a brace",
        "text[at:at + most]": "a str",
    },
    "gateway/wire/shapes.py": {
        "data[start:end]": "start is before end",
        "msgspec.json.encode(text)[1:-1]": "the JSON of a text has two quotes at least",
    },
    "gateway/wire/sse.py": {
        "event[6:first]": "the first line end is behind what the event begins with",
        "event[first:first + 7]": "first is the place of a line end",
        "event[first + 7:size - 2]": "the line that ends at size - 2 begins with `data: `",
        "body[start:end]": "end was looked for from start on, or found nowhere, which ends the loop",
    },
    "gateway/wire/anthropic/stream.py": {
        "data[start:end]": "returned before",
        "text[at:at + most]": "a str",
    },
    "gateway/wire/openai/media.py": {"value[begin:begin + _HEAD]": "a constant is added to where the beginning ends"},
    "gateway/wire/openai/passages.py": {"self.texts[at:at + 2]": "a list", "texts[at:at + 2]": "a list"},
    "gateway/wire/openai/tokenizing.py": {"data[1:-1]": "a JSON array has two brackets"},
    "gateway/wire/openai/usage.py": {
        "data[begin:end]": "end < begin was asked before",
        "body[found + 7:found + 13]": "found is 0 or more, so neither bound is negative",
    },
    "gateway/wire/openai/stream.py": {
        "data[0 if begin == 1 else begin:end]": "the event begins before the mark that was found, and whole events end behind it",
        "data[start:end]": "end < start was asked before",
        "data[begin:begin + 4]": "two numbers, and `begin` is within",
        "text[start:start + most]": "`start` counts up to the length of the text",
    },
    "gateway/wire/scan.py": {"body[at:at + SEGMENT]": "SEGMENT is positive"},
    "gateway/server/reading.py": {"read[place:place + 6]": "two numbers; the method and the target end within the read"},
    "gateway/routing/selectors.py": {
        "owners[end - _WALK:end]": "a list",
        "self._endpoints[turn:turn + min(size, _WINDOW)]": "a tuple",
    },
    "policies/guardrails/folding.py": {
        "text[position:start]": "a str",
        "text[start:end]": "a str",
    },
    "policies/guardrails/injection/decoding.py": {
        "text[start:end]": "a str",
        "text[turned.start() + 1:turned.start() + 513]": "a str",
    },
    "policies/guardrails/phrase_stream.py": {
        "before[-2:-1]": "a str",
        "self._held[self._done:cut]": "a str",
        "self._held[self._done:first.start - self._base]": "a str",
        "self._held[start - self._base:end - self._base]": "a str",
        "text[max(0, cut - 2 * _MAX_PENDING_MARKS):cut]": "a str",
        "text[position:end]": "a str",
        "text[position:position + window]": "a str",
    },
    "policies/guardrails/pii/iban.py": {
        "text[2:4]": "a str",
    },
    "policies/guardrails/pii/national.py": {
        "code[9:11]": "a str",
        "digits[-10:-6]": "a str",
        "digits[-6:-4]": "a str",
        "digits[2:4]": "a str",
        "digits[4:6]": "a str",
        "number[3:5]": "a str",
        "text[7:10]": "a str",
    },
    "policies/guardrails/pii/phone.py": {
        "digits[1:3]": "a str",
        "digits[4:6]": "a str",
        "text[place + 1:place + 2]": "a str",
    },
    "policies/guardrails/pii/ssn.py": {
        "digits[3:5]": "a str",
    },
    "policies/guardrails/recognition/finder.py": {
        "data[start:end]": "a match is not empty",
        "folded[start:end]": "a str",
    },
    "policies/guardrails/recognition/words.py": {
        "data[begin:place]": "marks come in order, one behind the other",
    },
    "policies/guardrails/recognition/stream.py": {
        "data[low:end]": "low is end - _BEFORE or 0",
        "folded[low:end]": "a str",
        "folded[match.start:match.end]": "a str",
        "seen[start:cut]": "a str",
        "text[done:cut]": "a str",
        "text[done_before:first]": "a str",
        "text[first:done]": "a str",
    },
    "policies/guardrails/secrets/randomness.py": {
        "text[prefix:end]": "a str",
    },
}
"""Every slice of the compiled modules with both a start and an end, and why its start cannot lie behind its end, or need not."""


def test_no_slice_starts_behind_its_end() -> None:
    """`bytes[start:end]` with the start behind the end is b"" in Python and raises SystemError where it is compiled."""
    found: dict[str, set[str]] = {}
    for name in MODULES:
        file = Path(*name.split(".")).with_suffix(".py")
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and node.slice.lower and node.slice.upper:
                found.setdefault(file.as_posix(), set()).add(ast.unparse(node))
    assert found == {file: set(slices) for file, slices in SLICES.items()}


def sources_only() -> set[str]:
    """The table in tests/conftest.py."""
    for node in ast.parse((ROOT / "tests" / "conftest.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SOURCES_ONLY":
            return set(ast.literal_eval(node.value))
    raise AssertionError("there is no SOURCES_ONLY")


def functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_the_tests_that_need_the_sources_exist() -> None:
    for name in sources_only():
        file, _, function = name.partition("::")
        assert not function or function in {node.name for node in functions(ast.parse((ROOT / file).read_text()))}, name


def replaced(tree: ast.Module) -> set[str]:
    """The functions of a test file that replace a name of a compiled module."""
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if f"{node.module}.{alias.name}" in MODULES
    }
    found = set()
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "setattr" and call.args:
                target = call.args[0]
                by_text = isinstance(target, ast.Constant) and str(target.value).rpartition(".")[0] in MODULES
                if by_text or (isinstance(target, ast.Name) and target.id in imported):
                    found.add(function.name)
    return found


def test_a_test_that_replaces_a_name_of_a_compiled_module_is_listed() -> None:
    """Compiled code does not look such a name up: the test would fail in the compiled pass of scripts/test."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        name = file.relative_to(ROOT).as_posix()
        assert {f"{name}::{function}" for function in replaced(ast.parse(file.read_text()))} <= sources_only(), name


def test_the_build_that_was_asked_for_is_the_one_under_test() -> None:
    """tests/conftest.py activates the build; nothing of it may have been imported as a source by then."""
    assert compiled.active() is (os.environ.get("GATEHOUSE_TEST_COMPILED") == "1")


def test_the_test_script_tests_every_compiled_module_compiled() -> None:
    script = (ROOT / "scripts" / "test").read_text().replace("\\\n", "")
    (run,) = (line for line in script.splitlines() if 'GATEHOUSE_TEST_COMPILED=1 run_pass "the compiled modules"' in line)
    for name in MODULES:
        assert f" tests/unit/{name.split('.')[0]} " in run, name


PROGRAM = """
import gateway.app.start, gateway.app.compiled, gateway.pipeline.pipeline as hot
print(gateway.app.compiled.active(), type(hot.__loader__).__name__)
"""


@pytest.mark.parametrize(("value", "expected"), [("0", "False SourceFileLoader"), (None, "True ExtensionFileLoader")])
def test_the_environment_of_the_tests_has_a_build_that_is_used(value: str | None, expected: str) -> None:
    """scripts/test compiles before it tests; so the end-to-end tests run what operators run."""
    environment = {"PATH": "/usr/bin:/bin", **({} if value is None else {"GATEHOUSE_COMPILED": value})}
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.split("\n")[0] == expected, done.stderr


def test_the_build_has_none_of_the_assertions_of_c() -> None:
    build = Path(sysconfig.get_path("platlib")) / "gatehouse_compiled"
    assert b"__assert_fail" not in extension(build, f"{compiled.GROUP}__mypyc").read_bytes()


def test_nothing_is_awaited_while_an_error_is_handled() -> None:
    """Compiled, an `await` within `except` that really waits loses track of the error: a bare `raise` after it ends the process."""
    found = []
    for module in MODULES:
        path = ROOT / (module.replace(".", "/") + ".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Try):
                handled = [*node.finalbody, *(statement for handler in node.handlers for statement in handler.body)]
                inner = [one for statement in handled for one in ast.walk(statement)]
                found += [f"{path}:{one.lineno}" for one in inner if isinstance(one, ast.Await | ast.Yield | ast.YieldFrom)]
    assert found == []
