"""Who may import whom, and the house rules that a linter does not know (docs/architecture.md).

The checker reads the source with `ast` and imports nothing of it. `check(root)` returns every violation as one readable
line; the tests run it over this repository, and over small trees with planted violations, to show that it finds them.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP = ("gateway", "engines", "policies", "admin", "gatehouse")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MADE = ("gatehouse.client.api.", "gatehouse.client.aio.")  # by a script, from parameters: as long as these are many

# The folders of the engine runtimes, each a process of its own, and what each uses besides its shell and the core.
SIDECARS: dict[str, tuple[str, ...]] = {
    "llamacpp": ("engines.chat", "engines.facts", "engines.windows", "engines.confinement"),
    # What an ONNX file reveals is read in one place, and loads no library.
    "genai": ("engines.chat", "engines.facts", "engines.confinement", "engines.onnx.modelfile"),
    "onnx": ("gateway.wire", "engines.facts", "engines.confinement"),
    "command": ("engines.confinement",),
}
BASE = ("gateway.core", "gateway.wire", "gateway.telemetry")
EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class Tier:
    number: int
    allowed: tuple[str, ...]


# The table of docs/architecture.md. A module belongs to the longest name here that it starts with; it may always import its own package.
TIERS: dict[str, Tier] = {
    "gateway": Tier(0, ()),
    "gateway.core": Tier(0, ()),
    "gateway.wire": Tier(1, ("gateway.core",)),
    "gateway.telemetry": Tier(1, ("gateway.core",)),
    "gateway.transport": Tier(1, ("gateway.core",)),
    "policies": Tier(1, ("gateway.core",)),
    **{
        f"gateway.{name}": Tier(2, (*BASE, "gateway.transport"))
        for name in ("identity", "limits", "guardrails", "routing", "audit", "store", "config", "caches", "batches")
    },
    "engines": Tier(2, ()),
    "engines.facts": Tier(2, ()),
    "engines.windows": Tier(2, ()),
    "engines.environment": Tier(2, ()),
    "engines.confinement": Tier(2, ()),
    # Names the sidecars' modules and imports nothing of them but the schemas of their options.
    "engines.runtimes": Tier(2, ("gateway.core", *(f"engines.{name}.options" for name in SIDECARS))),
    "engines.host": Tier(
        2,
        (*BASE, "gateway.transport", "engines.runtimes", "engines.facts", "engines.windows", "engines.environment", "engines.confinement"),
    ),
    "engines.sidecar": Tier(2, ("gateway.core", "gateway.wire", "engines.confinement")),
    "engines.chat": Tier(2, ("gateway.core", "engines.sidecar")),
    **{f"engines.{name}": Tier(2, ("gateway.core", "engines.sidecar", *others)) for name, others in SIDECARS.items()},
    "engines.convert": Tier(2, ("engines.onnx.protobuf", "engines.facts")),  # untrusted files: it imports nothing that could do anything
    "engines.jobs": Tier(
        2, ("gateway.core", "engines.confinement", "engines.llamacpp", "engines.convert")
    ),  # each job a process of its own
    "engines.demo": Tier(2, ()),
    "gatehouse": Tier(2, ()),  # of other programs: it speaks to a gateway over HTTP alone
    "admin": Tier(2, ("gateway.core", "gateway.wire", "admin.cli.run")),
    "admin.cli.run": Tier(
        2, ("gateway.core", "gateway.wire", "admin", "engines.runtimes", "engines.environment")
    ),  # starts a sidecar itself
    "gateway.pipeline": Tier(3, BASE),
    "gateway.server": Tier(4, ("gateway.pipeline", *BASE, "gateway.transport", "policies")),
    "gateway.app": Tier(5, (EVERYTHING,)),
    "gateway.__main__": Tier(6, ("gateway.app",)),
}
# The composition root: nobody imports it but the interpreter's entry.
ROOT_PACKAGE, ENTRY = "gateway.app", "gateway.__main__"
CORE_MAY_USE = ("msgspec",)  # beside the standard library
POLICIES_MAY_NOT_USE = (
    "asyncio",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "http.client",
    "urllib.request",
    "httpx",
    "redis",
    "sqlalchemy",
)
# Tasks are started through gateway.core.tasks.TaskOwner. Who else may, and why: it keeps the task, and cancels or awaits it.
TASK_OWNERS = {
    "gateway.core.tasks": "this is the owner",
    "engines.host.process": "watches the end of a sidecar's process, and cancels the watch when it leaves",
    "engines.sidecar.shell": "races the loading of the model against the signal to stop, and cancels the loser",
    "admin.rechecking": "waits for the next part of an answer while it checks the reader's rights, and cancels that when the reader leaves",
    "engines.sidecar.http": "watches for a client that leaves; the request cancels its watcher",
}
# Who may import our own modules inside a function, and why.
LATE_IMPORTERS = {
    "gateway.app.start": "decides which half of the house a process loads at all: the one that serves, or the command line",
    "admin.cli.fleet": "`engines run` alone needs the runtimes, which take as long to load as half the command line",
    "gateway.app.main": "a command loads what it needs; most talk to a running gateway, and loading what could serve takes a second",
}
MUTABLE_CALLS = {"dict", "list", "set", "bytearray", "deque", "defaultdict", "OrderedDict", "Counter", "WeakValueDictionary", "WeakSet"}
MUTATORS = {
    *("append", "appendleft", "extend", "insert", "remove", "pop", "popleft", "popitem"),
    *("add", "discard", "update", "setdefault", "clear", "sort", "reverse"),
}


@dataclass(frozen=True, slots=True)
class Import:
    target: str
    line: int
    local: bool  # inside a function


@dataclass(slots=True)
class Module:
    name: str
    path: str
    tree: ast.Module
    lines: int
    is_package: bool
    imports: list[Import] = field(default_factory=list)


def unit_of(module: str) -> str | None:
    """The row of the table that a module belongs to; None for a module that the table does not know."""
    fitting = [unit for unit in TIERS if within(module, unit)]
    best = max(fitting, key=len, default=None)
    # The bare package `gateway` is a row only for its own __init__: a folder that is new needs a row of its own.
    return None if best == "gateway" != module else best


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@cache
def read_tree(root: Path) -> dict[str, Module]:
    modules = {}
    for top in TOP:
        for path in sorted((root / top).rglob("*.py")):
            relative = path.relative_to(root)
            is_package = path.name == "__init__.py"
            name = ".".join((relative.parent if is_package else relative.with_suffix("")).parts)
            text = path.read_text(encoding="utf-8")
            modules[name] = Module(name, relative.as_posix(), ast.parse(text, str(relative)), len(text.splitlines()), is_package)
    return modules


def walk(node: ast.AST, inside: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below, with whether it stands inside a function."""
    for child in ast.iter_child_nodes(node):
        yield child, inside
        yield from walk(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def imports_of(module: Module, names: set[str]) -> Iterator[Import]:
    for node, local in walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, local)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield Import(full if full in names else node.module, node.lineno, local)
        elif isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"} and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and argument.value.split(".")[0] in TOP:
                yield Import(argument.value, node.lineno, True)


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""


def check(root: Path) -> list[str]:
    modules = read_tree(root)
    found = []
    for module in modules.values():
        module.imports = list(imports_of(module, set(modules)))
        for rule in (tier_violations, outside_violations, size_violations, task_violations, global_violations, style_violations):
            found += [f"{module.path}:{line} {text}" for line, text in rule(module)]
    return found + cycles(modules)


def tier_violations(module: Module) -> Iterator[tuple[int, str]]:
    unit = unit_of(module.name)
    if unit is None:
        yield 1, f"{module.name} stands in no tier: give it a row in the table of docs/architecture.md and of tests/test_layering.py"
        return
    tier = TIERS[unit]
    for imported in module.imports:
        if imported.target.split(".")[0] not in TOP:
            continue
        target = unit_of(imported.target)
        refusal = f"{module.path} may not import {imported.target}"
        if target in (ROOT_PACKAGE, ENTRY) and target != unit:
            if (unit, target) != (ENTRY, ROOT_PACKAGE):
                yield imported.line, f"{refusal} (nobody imports {imported.target})"
        elif target is None or target == unit or EVERYTHING in tier.allowed:
            continue
        elif not any(within(imported.target, allowed) for allowed in tier.allowed):
            yield imported.line, f"{refusal} ({reason(unit, target)})"


def reason(unit: str, target: str) -> str:
    ours, theirs = TIERS[unit].number, TIERS[target].number
    if ours == theirs:
        return f"tier {ours} packages do not know each other"
    if theirs > ours:
        return f"{unit} is of tier {ours}, {target} above it of tier {theirs}"
    return f"{unit} may import only {', '.join(TIERS[unit].allowed)}"


def outside_violations(module: Module) -> Iterator[tuple[int, str]]:
    for imported in module.imports:
        top = imported.target.split(".")[0]
        if within(module.name, "gateway.core") and top not in TOP and top not in sys.stdlib_module_names and top not in CORE_MAY_USE:
            yield imported.line, f"{module.path} may not import {imported.target} (core uses the standard library and msgspec only)"
        if within(module.name, "policies") and any(within(imported.target, name) for name in POLICIES_MAY_NOT_USE):
            yield imported.line, f"{module.path} may not import {imported.target} (policies decide; they do no I/O)"


def size_violations(module: Module) -> Iterator[tuple[int, str]]:
    if module.lines > MAX_FILE_LINES:
        yield 1, f"has {module.lines} lines, more than {MAX_FILE_LINES}"
    for node, _ in walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if not module.name.startswith(MADE) and length > MAX_FUNCTION_LINES:
                yield node.lineno, f"{node.name}() has {length} lines, more than {MAX_FUNCTION_LINES}"


def task_violations(module: Module) -> Iterator[tuple[int, str]]:
    """A task group's `create_task` is structured and fine; the loop's own leaves a task that nobody owns."""
    dropped = {id(node.value) for node, _ in walk(module.tree) if isinstance(node, ast.Expr)}
    for node, _ in walk(module.tree):
        if not isinstance(node, ast.Call) or called(node) not in {"create_task", "ensure_future"}:
            continue
        holder = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if holder not in ("", "asyncio") and not holder.rstrip("()").endswith("loop"):
            continue
        if id(node) in dropped:
            yield node.lineno, f"{called(node)}() and the task is dropped: nobody owns, awaits or cancels it"
        elif module.name not in TASK_OWNERS:
            yield (
                node.lineno,
                f"{called(node)}() outside the owners of tasks: use TaskOwner.spawn, or say why this module owns it in TASK_OWNERS",
            )


def global_violations(module: Module) -> Iterator[tuple[int, str]]:
    names = mutable_globals(module.tree)
    for node, inside in walk(module.tree):
        if isinstance(node, ast.Global):
            yield node.lineno, f"global {', '.join(node.names)}: state belongs to an object that somebody owns"
        elif isinstance(node, ast.expr) and inside and (name := mutated(node)) in names:
            yield node.lineno, f"changes the module global {name}: state belongs to an object that somebody owns"


def mutable_globals(tree: ast.Module) -> set[str]:
    names = set()
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        display = isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)
        if display or (isinstance(value, ast.Call) and called(value) in MUTABLE_CALLS):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def mutated(node: ast.expr) -> str | None:
    """The plain name that this node changes in place: `x[..] = `, `del x[..]`, `x.append(..)`."""
    holder = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        holder = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        holder = node.func.value
    return holder.id if isinstance(holder, ast.Name) else None


def style_violations(module: Module) -> Iterator[tuple[int, str]]:
    for node, _ in walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, "relative import: write the absolute name"
    for imported in module.imports:
        if imported.local and imported.target.split(".")[0] in TOP and module.name not in LATE_IMPORTERS:
            yield imported.line, f"{imported.target} is imported inside a function: import it at the top, or cut the dependency"


def loaded(target: str) -> Iterator[str]:
    """The module and the packages that it lies in: Python runs these first."""
    parts = target.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def cycles(modules: dict[str, Module]) -> list[str]:
    """One line for every circle of imports, found depth first; imports for type checking count too, and the packages around a module."""
    graph = {
        name: sorted({each for i in module.imports for each in loaded(i.target) if each in modules and not within(name, each)})
        for name, module in modules.items()
    }
    found: list[str] = []
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> None:
        if name in path:
            circle = path[path.index(name) :]
            found.append("circular import: " + " -> ".join([*circle, name]))
        elif name not in done:
            path.append(name)
            for target in graph[name]:
                visit(target)
            path.pop()
            done.add(name)

    for name in graph:
        visit(name)
    return found


# --- this repository -------------------------------------------------------------------------------------------------


def test_the_source_keeps_its_layers_and_house_rules() -> None:
    violations = check(ROOT)
    assert not violations, "\n" + "\n".join(violations)


def test_the_checker_reads_the_whole_source() -> None:
    modules = read_tree(ROOT)
    assert {"gateway", "gateway.core", "engines", "policies", "admin"} <= set(modules)
    assert all(unit_of(name) for name in modules)


# --- the checker itself, on small trees with planted violations ------------------------------------------------------


def plant(root: Path, files: dict[str, str]) -> list[str]:
    """Writes the files, with an __init__.py in every folder on the way, and checks the tree."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.parents:
            if folder == root:
                break
            (folder / "__init__.py").touch()
        path.write_text(text, encoding="utf-8")
    return check(root)


ALLOWED = {
    "core reaches the standard library and msgspec": {"gateway/core/a.py": "import msgspec\nimport os.path\n"},
    "its own package": {"gateway/routing/a.py": "from gateway.routing import b\n", "gateway/routing/b.py": ""},
    "tier 2 reaches tiers 0 and 1": {
        "gateway/audit/a.py": "from gateway.core import b\nimport gateway.wire.c\nfrom gateway.transport.d import e\n",
        "gateway/core/b.py": "",
        "gateway/wire/c.py": "",
        "gateway/transport/d.py": "e = 1\n",
    },
    "a sidecar reaches its shell": {
        "engines/onnx/a.py": "from engines.sidecar.shell import App\n",
        "engines/sidecar/shell.py": "App = 1\n",
    },
    "the supervisor's side reaches the transport": {
        "engines/host/supervisor.py": "import gateway.transport.a\n",
        "gateway/transport/a.py": "",
    },
    "the server reaches the pipeline": {"gateway/server/a.py": "import gateway.pipeline.b\n", "gateway/pipeline/b.py": ""},
    "the composition root reaches everything": {
        "gateway/app/gateway.py": "import admin.a\nimport engines.host.b\nimport policies.c\nimport gateway.server.d\n",
        "gateway/app/main.py": "import gateway.app.process\nimport admin.a\n",
        "gateway/app/process.py": "import gateway.app.gateway\n",
        "gateway/__main__.py": "import gateway.app.start\n",
        "gateway/app/start.py": "def main():\n    import gateway.app.main\n    import gateway.app.process\n",
        "admin/a.py": "",
        "engines/host/b.py": "",
        "policies/c.py": "",
        "gateway/server/d.py": "",
    },
    "a task group owns its tasks": {"gateway/pipeline/a.py": "async def f(group):\n    group.create_task(f(group))\n"},
    "the owner of tasks may start them": {"gateway/core/tasks.py": "import asyncio\n\ndef f(c):\n    return asyncio.create_task(c)\n"},
    "a constant table is read": {"policies/a.py": "TABLE = {1: 2}\n\ndef f(x):\n    y = {}\n    y[x] = TABLE[x]\n    return y\n"},
    "a function of 60 lines": {"policies/a.py": "def f():\n" + "    x = 1\n" * 59},
    "a file of 500 lines": {"policies/a.py": "x = 1\n" * 500},
}


@pytest.mark.parametrize("files", ALLOWED.values(), ids=ALLOWED)
def test_what_is_allowed_passes(tmp_path: Path, files: dict[str, str]) -> None:
    assert plant(tmp_path, files) == []


FORBIDDEN: dict[str, tuple[dict[str, str], str]] = {
    "tier 2 packages": (
        {"gateway/routing/x.py": "\nimport gateway.audit.y\n", "gateway/audit/y.py": ""},
        "gateway/routing/x.py:2 gateway/routing/x.py may not import gateway.audit.y (tier 2 packages do not know each other)",
    ),
    "tier 2 packages, by name from the package": (
        {"gateway/limits/x.py": "from gateway import store\n", "gateway/store/y.py": ""},
        "may not import gateway.store (tier 2 packages do not know each other)",
    ),
    "gateway and engines": (
        {"gateway/routing/x.py": "from engines.host.supervisor import Supervisor\n", "engines/host/supervisor.py": "Supervisor = 1\n"},
        "gateway/routing/x.py may not import engines.host.supervisor (tier 2 packages do not know each other)",
    ),
    "admin and the transport": (
        {"admin/x.py": "import gateway.transport.y\n", "gateway/transport/y.py": ""},
        "(admin may import only gateway.core, gateway.wire, admin.cli.run)",
    ),
    "a sidecar and the transport": (
        {"engines/onnx/x.py": "import gateway.transport.y\n", "gateway/transport/y.py": ""},
        "(engines.onnx may import only gateway.core, engines.sidecar, gateway.wire, engines.facts, engines.confinement)",
    ),
    "a sidecar and the supervisor": (
        {"engines/onnx/x.py": "import engines.host.supervisor\n", "engines/host/supervisor.py": ""},
        "engines.host.supervisor",
    ),
    "two sidecars": ({"engines/onnx/x.py": "import engines.llamacpp.y\n", "engines/llamacpp/y.py": ""}, "tier 2 packages do not know"),
    "core and what is above it": (
        {"gateway/core/x.py": "import gateway.wire.y\n", "gateway/wire/y.py": ""},
        "gateway.wire above it of tier 1",
    ),
    "core and other packages": (
        {"gateway/core/x.py": "import httpx\n"},
        "may not import httpx (core uses the standard library and msgspec only)",
    ),
    "the pipeline and an implementation": (
        {"gateway/pipeline/x.py": "import gateway.transport.y\n", "gateway/transport/y.py": ""},
        "gateway/pipeline/x.py may not import gateway.transport.y",
    ),
    "for type checking too": (
        {
            "policies/x.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gateway.wire import y\n",
            "gateway/wire/y.py": "",
        },
        "policies/x.py may not import gateway.wire.y",
    ),
    "policies and I/O": ({"policies/x.py": "import asyncio\n"}, "policies/x.py may not import asyncio (policies decide; they do no I/O)"),
    "policies and I/O, from a package": ({"policies/x.py": "from urllib.request import urlopen\n"}, "urllib.request"),
    "the composition root": (
        {"admin/x.py": "import gateway.app.gateway\n", "gateway/app/gateway.py": ""},
        "(nobody imports gateway.app.gateway)",
    ),
    "the interpreter's entry": (
        {"gateway/app/gateway.py": "import gateway.__main__\n", "gateway/__main__.py": ""},
        "(nobody imports gateway.__main__)",
    ),
    "the entry and what is behind the composition root": (
        {"gateway/__main__.py": "import gateway.wire.x\n", "gateway/wire/x.py": ""},
        "gateway/__main__.py may not import gateway.wire.x",
    ),
    "a module without a row": ({"gateway/novel.py": ""}, "gateway.novel stands in no tier"),
    "an import inside a function": (
        {"gateway/wire/x.py": "def f():\n    from gateway.core import y\n    return y\n", "gateway/core/y.py": ""},
        "gateway/wire/x.py:2 gateway.core.y is imported inside a function",
    ),
    "an import by name": (
        {"gateway/wire/x.py": "import importlib\nimportlib.import_module('gateway.core.y')\n", "gateway/core/y.py": ""},
        "gateway.core.y is imported inside a function",
    ),
    "a relative import": ({"policies/x.py": "from . import y\n", "policies/y.py": ""}, "policies/x.py:1 relative import"),
    "a circle": (
        {
            "policies/x.py": "from policies.y import b\na = 1\n",
            "policies/y.py": "from policies import z\n",
            "policies/z.py": "import policies.x\n",
        },
        "circular import: policies.x -> policies.y -> policies.z -> policies.x",
    ),
    "a long file": ({"policies/x.py": "x = 1\n" * 501}, "policies/x.py:1 has 501 lines, more than 500"),
    "a long function": ({"policies/x.py": "def f():\n" + "    x = 1\n" * 60}, "f() has 61 lines, more than 60"),
    "a long method": ({"policies/x.py": "class A:\n    async def f(self):\n" + "        x = 1\n" * 60}, "f() has 61 lines"),
    "a bare task": (
        {"gateway/audit/x.py": "import asyncio\n\ndef f(c):\n    asyncio.create_task(c)\n"},
        "gateway/audit/x.py:4 create_task() and the task is dropped",
    ),
    "a bare task of the loop": ({"admin/x.py": "def f(self, c):\n    self._loop.create_task(c)\n"}, "create_task() "),
    "a bare task of the running loop": (
        {"admin/x.py": "import asyncio\n\ndef f(c):\n    asyncio.get_running_loop().create_task(c)\n"},
        "create_task() ",
    ),
    "a bare task by its own name": (
        {"admin/x.py": "from asyncio import ensure_future\n\ndef f(c):\n    ensure_future(c)\n"},
        "ensure_future() ",
    ),
    "a kept task outside an owner": (
        {"gateway/audit/x.py": "import asyncio\n\ndef f(c):\n    return asyncio.create_task(c)\n"},
        "gateway/audit/x.py:4 create_task() outside the owners of tasks",
    ),
    "a dropped task in an owner": (
        {"gateway/core/tasks.py": "import asyncio\n\ndef f(c):\n    asyncio.create_task(c)\n"},
        "gateway/core/tasks.py:4 create_task() and the task is dropped",
    ),
    "a global statement": ({"policies/x.py": "n = 0\n\ndef f():\n    global n\n    n += 1\n"}, "policies/x.py:4 global n"),
    "a global that is written to": (
        {"policies/x.py": "SEEN: dict[int, int] = {}\n\ndef f(x):\n    SEEN[x] = 1\n"},
        "changes the module global SEEN",
    ),
    "a global that is deleted from": ({"policies/x.py": "SEEN = dict()\n\ndef f(x):\n    del SEEN[x]\n"}, "changes the module global SEEN"),
    "a global that is appended to": ({"policies/x.py": "SEEN = [1]\n\ndef f(x):\n    SEEN.append(x)\n"}, "changes the module global SEEN"),
}


@pytest.mark.parametrize(("files", "expected"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_what_is_forbidden_is_found(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    violations = plant(tmp_path, files)
    assert len(violations) == 1, violations
    assert expected in violations[0]


def test_every_circle_is_named_once(tmp_path: Path) -> None:
    files = {"policies/a.py": "import policies.b\n", "policies/b.py": "import policies.a\n", "policies/c.py": "import policies.a\n"}
    assert plant(tmp_path, files) == ["circular import: policies.a -> policies.b -> policies.a"]


def test_a_package_that_imports_what_imports_its_module_is_a_circle(tmp_path: Path) -> None:
    files = {"policies/a/__init__.py": "import policies.b\n", "policies/a/c.py": "", "policies/b.py": "import policies.a.c\n"}
    assert plant(tmp_path, files) == ["circular import: policies.a -> policies.b -> policies.a"]
