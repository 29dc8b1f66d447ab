"""Every setting reaches a reader: a field of a Spec is read, by attribute, in code that acts on it. Nothing is accepted and ignored.

mypy resolves the types, so that `spec.timeout` counts for the one Spec that `spec` is. Reading, checking and merging the configuration
(gateway.core.specs, gateway.config) does not count as acting on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mypy import build
from mypy.find_sources import create_source_list
from mypy.nodes import AssignmentStmt, CallExpr, ClassDef, MemberExpr, MypyFile, NameExpr, Node, StrExpr, TypeInfo
from mypy.options import Options
from mypy.types import Instance, Type, TypeVarType, UnionType, get_proper_type

ROOT = Path(__file__).resolve().parent.parent
TOP = ("gateway", "engines", "policies", "admin")
_FILES = sorted((ROOT / "gateway" / "core" / "specs").glob("[a-z]*.py"))
SPECS = ("gateway.core.specs", *(f"gateway.core.specs.{path.stem}" for path in _FILES))
SPEC = "gateway.core.specs.base.Spec"
# Settings without such a read, and why that is right.
REFUSED = "refused by gateway.config.validate: this version has nothing that would honour it"
EXCEPTIONS = {
    "ConfigSpec.version": "the format of the file; only 1 can be read",
    "RoleSpec.description": "shown by the admin API, which reads the configuration as plain values",
    **{
        owner: "read by the admin API's reports, which read the configuration as plain values"
        for owner in ("CostCentreSpec.key", "CostCentreSpec.name", "CostCentreSpec.tenant", "CostCentreSpec.user", "UsageSpec.cost_centres")
    },
    **{
        f"MachineFile.{name}": "read by gateway.config.machine, which makes a ConfigSpec of it"
        for name in ("version", "engines", "state_dir", "model_dirs", "model_signatures", "telemetry", "accepts")
    },
    "CommandOptions.memory_bytes": "read by engines.host.memory_ledger, by the name that the runtime's row declares",
    "ScaleSpec.devices": "read by gateway.config.expand, which makes the copies",
    "PriceSpec.reference": "shown by the admin API, which reads the configuration as plain values",
}


def read_packages(root: Path) -> build.BuildResult:
    """Our own packages with the types of their expressions. Everything else counts as Any: ten times as fast, and enough."""
    options = Options()
    options.export_types = options.preserve_asts = options.ignore_errors = True
    options.incremental = False
    options.follow_imports = "skip"
    options.mypy_path = [str(root)]
    return build.build(create_source_list([str(root / top) for top in TOP if (root / top).is_dir()], options), options)


def below(file: MypyFile) -> Iterator[Node]:
    """Every node of a module, definitions in it included, those that names refer to left out."""
    elsewhere = ("node", "info", "type", "analyzed", "unanalyzed_type", "type_annotation")
    waiting: list[Any] = list(file.defs)
    seen: set[int] = set()
    parts_of: dict[type, list[str]] = {}
    while waiting:
        node = waiting.pop()
        if isinstance(node, list | tuple):
            waiting.extend(node)
        elif isinstance(node, Node) and not isinstance(node, TypeInfo | MypyFile) and id(node) not in seen:
            seen.add(id(node))
            yield node
            if (kind := type(node)) not in parts_of:
                names = (name for name in dir(kind) if not name.startswith("_") and name not in elsewhere)
                parts_of[kind] = [name for name in names if not callable(getattr(kind, name))]
            parts = (getattr(node, name, None) for name in parts_of[kind])
            waiting.extend(part for part in parts if isinstance(part, Node | list | tuple))


def classes(kind: Type | None) -> Iterator[str]:
    """The names of the classes that a value of this type may be, and of their bases."""
    kind = get_proper_type(kind)
    if isinstance(kind, Instance):
        yield from (base.fullname for base in kind.type.mro)
    elif isinstance(kind, UnionType):
        for item in kind.items:
            yield from classes(item)
    elif isinstance(kind, TypeVarType):
        yield from classes(kind.upper_bound)


def fields(spec: ClassDef) -> Iterator[str]:
    for line in spec.defs.body:
        if isinstance(line, AssignmentStmt) and line.type is not None and isinstance(target := line.lvalues[0], NameExpr):
            yield target.name


def key_read(node: CallExpr) -> str | None:
    """The key in `spec.options.get("key", ...)`: the shell of all sidecars reads what every runtime's options have."""
    match node:
        case CallExpr(callee=MemberExpr(name="get", expr=MemberExpr(name="options")), args=[StrExpr(value=key), *_]):
            return key
    return None


def unread(root: Path) -> set[str]:
    """`Class.field` of every field of a Spec that nothing reads."""
    result = read_packages(root)
    declared: set[tuple[str, str]] = set()
    read: set[tuple[str, str]] = set()
    by_key: set[str | None] = set()
    for name, file in result.files.items():
        if name.split(".")[0] not in TOP:
            continue
        acts = name not in SPECS and not name.startswith("gateway.config")
        for node in below(file):
            if isinstance(node, ClassDef) and any(base.fullname == SPEC for base in node.info.mro):
                declared |= {(node.fullname, field) for field in fields(node)}
            elif acts and isinstance(node, MemberExpr):
                read |= {(owner, node.name) for owner in classes(result.types.get(node.expr))}
            elif acts and isinstance(node, CallExpr):
                by_key.add(key_read(node))
    left = {(owner.rpartition(".")[2], field) for owner, field in declared - read}
    return {f"{owner}.{field}" for owner, field in left if not (owner.endswith("Options") and field in by_key)}


def test_every_setting_is_read_by_something_that_acts_on_it() -> None:
    found = unread(ROOT)
    assert found - set(EXCEPTIONS) == set(), "settings that nothing reads"
    assert set(EXCEPTIONS) - found == set(), "these are read by now: they are no exceptions"


def test_a_setting_that_nothing_reads_is_found(tmp_path: Path) -> None:
    files = {
        "gateway/core/specs/base.py": "class Spec: ...\n",
        "gateway/core/specs/__init__.py": "from gateway.core.specs.base import Spec\nclass A(Spec):\n"
        "    used: int = 1\n    checked: int = 1\n    dead: int = 1\n"
        "class B(Spec):\n    dead: int = 1\n    inner: A = A()\n",
        "gateway/config/validate.py": "from gateway.core.specs import A\n\ndef check(spec: A) -> bool:\n    return spec.checked > 0\n",
        "gateway/reader.py": "from gateway.core.specs import A, B\n\ndef act(spec: B | None) -> int:\n"
        "    return 0 if spec is None else spec.dead + spec.inner.used\n",
        "policies/plugin.py": "from gateway.core.specs.base import Spec\n\nclass Settings(Spec):\n    phrases: int = 1\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in [path.parent, *path.parent.parents]:
            if folder == tmp_path:
                break
            (folder / "__init__.py").touch()
        path.write_text(text)
    assert unread(tmp_path) == {"A.checked", "A.dead", "Settings.phrases"}
