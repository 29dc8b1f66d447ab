"""The documentation names every setting, metric, command and error code, and every example configuration loads."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from admin.cli.moved import moved
from gateway.app.configuration.plugins import OURS
from gateway.app.main import app
from gateway.app.offline import check
from gateway.app.telemetry.engine_gauges import REPORTED
from gateway.config.load import load
from gateway.core import specs
from gateway.core.specs import Spec
from gateway.telemetry.metrics import PHASES, Metrics, ModelMeter
from tests.deploy.expressions import documented

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOT_CONFIGURED = {"Spec", "SidecarSpec"}


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", sorted(n for n, s in vars(specs).items() if n.endswith("Spec") and isinstance(s, type) and n not in NOT_CONFIGURED)
)
def test_every_setting_is_documented(name: str) -> None:
    spec = getattr(specs, name)
    assert issubclass(spec, Spec)
    documented = text("configuration.md")
    missing = [field for field in spec.__struct_encode_fields__ if not re.search(rf"`{re.escape(field)}`", documented)]
    assert not missing, f"docs/configuration.md does not name {missing} of {name}"


def test_every_metric_is_documented() -> None:
    metrics = Metrics()
    metrics.models["m"] = ModelMeter("m")
    named = {family.name + ("_total" if family.type == "counter" else "") for family in metrics.collect()}
    folders = (ROOT / "gateway" / "app", ROOT / "gateway" / "telemetry")
    source = "".join(path.read_text(encoding="utf-8") for folder in folders for path in sorted(folder.rglob("*.py")))
    for kind, name in re.findall(r'(Counter|Gauge|Histogram)MetricFamily\(\s*"([a-z_]+)"', source):
        named.add(name + ("_total" if kind == "Counter" else ""))
    named |= {name for _, name, _ in REPORTED}
    assert len(named) > 10 and PHASES
    documented = text("metrics.md")
    assert [name for name in sorted(named) if f"`{name}`" not in documented] == []
    known = re.findall(r"^\| `(gatehouse_\w+)`", documented, re.MULTILINE)
    assert [name for name in known if name not in named] == []


def given(node: ast.expr | None, function: ast.AST) -> list[str] | None:
    """A list of labels as the source of a function gives it; None where it is made as it runs."""
    if isinstance(node, ast.Name):
        assigned = [a.value for a in ast.walk(function) if isinstance(a, ast.Assign) and ast.unparse(a.targets[0]) == node.id]
        return given(assigned[0], function) if len(assigned) == 1 else None
    if not isinstance(node, ast.List):
        return [] if node is None else None
    found: list[str] = []
    for one in node.elts:
        inner = given(one.value, function) if isinstance(one, ast.Starred) else [one.value] if isinstance(one, ast.Constant) else None
        if inner is None:
            return None
        found += map(str, inner)
    return found


def test_every_metric_has_the_labels_that_are_documented() -> None:
    """Dashboards and alerts are compared with the documented ones (tests/deploy/test_monitoring.py)."""
    known, seen, wrong = documented(text("metrics.md")), 0, []
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            calls = [n for n in ast.walk(function) if isinstance(n, ast.Call)] if isinstance(function, ast.FunctionDef) else []
            for call in calls:
                kind = ast.unparse(call.func).removesuffix("MetricFamily").lower()
                if f"{kind}metricfamily" != ast.unparse(call.func).lower() or not isinstance(call.args[0], ast.Constant):
                    continue
                name = f"{call.args[0].value}" + ("_total" if kind == "counter" else "")
                if kind in ("lazygauge", "lazyhistogram"):
                    continue  # its readers give the labels; a real scrape shows them
                labels = given(next((k.value for k in call.keywords if k.arg == "labels"), None), function)
                seen += 1
                if name not in known or known[name].kind != kind or labels is None or set(labels) != known[name].labels:
                    wrong.append(f"{name}: a {kind} with {labels}, documented: {known.get(name)}")
    assert seen > 130 and wrong == []


def test_every_test_that_assurance_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+?\.py)(?:::(\w+))?`", text("assurance.md"))
    assert len(named) > 60
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / file).is_file() or (test and f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8"))
    ]
    assert missing == []


def error_codes() -> set[str]:
    """Every literal `code=` and `default_code` in the gateway's source."""
    found: set[str] = set()
    for path in (ROOT / "gateway").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.keyword)
                and node.arg == "code"
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                found.add(node.value.value)
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
                and any(isinstance(t, ast.Name) and t.id == "default_code" for t in node.targets)
            ):
                found.add(node.value.value)
    return found


def test_every_error_code_is_documented() -> None:
    documented = text("errors.md")
    codes = error_codes()
    assert len(codes) > 20
    assert [code for code in sorted(codes) if f"`{code}`" not in documented] == []


def test_every_command_is_documented() -> None:
    documented = text("cli.md")

    def walk(command: object, path: str) -> list[str]:
        children = getattr(command, "commands", None)
        if not children:
            return [path]
        return [name for key, child in children.items() for name in walk(child, f"{path} {key}")]

    names = walk(typer.main.get_command(app), "gatehouse")
    assert len(names) >= 2
    assert [name for name in names if f"`{name}`" not in documented] == []


def test_every_command_line_on_a_page_is_one_that_exists() -> None:
    root: Any = typer.main.get_command(app)
    wrong, seen = [], 0
    for page in [*sorted(DOCS.glob("*.md")), ROOT / "README.md"]:
        whole = page.read_text(encoding="utf-8")
        for line in re.findall(r"`(gatehouse [^`\n]+)`", whole) + re.findall(r"^ *\$? ?(gatehouse [a-z][^\n]*)$", whole, re.MULTILINE):
            words = moved(re.split(r"\s[|>&;#(]|[,;[|]|\.\.\.|\bor\b", line)[0].split()[1:])
            command, seen = root, seen + 1
            for word in words:
                if word.isupper() or re.fullmatch(r".*[ ]1(\\n)?", line):
                    break  # stands for a command; or a context that signatures begin with
                if hasattr(command, "commands"):
                    command = command if word.startswith("-") else command.commands.get(word.strip("'\""))
                    if command is None:
                        wrong.append(f"{page.name}: {line}: no command {word}")
                        break
                elif word.startswith("--"):
                    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
                    if word.split("=")[0] not in known | {"--help"}:
                        wrong.append(f"{page.name}: {line}: no option {word}")
    assert seen > 350 and wrong == []


def test_every_event_that_a_page_searches_for_is_one_that_is_recorded() -> None:
    """A name that no event has finds nothing, and that reads as if nothing had happened."""
    asked = [
        (page.name, event)
        for page in sorted(DOCS.glob("*.md"))
        for event in re.findall(r"gatehouse audit (?:search|export|report)\b[^\n`]*? --event '?([\w.*]+)", page.read_text(encoding="utf-8"))
    ]
    sources = "".join(path.read_text(encoding="utf-8") for top in ("gateway", "admin") for path in sorted((ROOT / top).rglob("*.py")))
    assert len(asked) >= 2
    wrong = [(page, event) for page, event in asked if f'"{event.removesuffix("*")}' + ("" if event.endswith("*") else '"') not in sources]
    assert wrong == []


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_every_example_configuration_loads(path: Path) -> None:
    environ = {name: "example-secret-0123456789abcdef0123456789abcdef-" + name for name in re.findall(r"\$\{env:(\w+)\}", path.read_text())}
    spec = load(path, environ, OURS.schemas()).spec
    assert spec.models or path.name == "gateway-only.yaml"
    code, said = check(path, environ)
    assert code == 0 or "cannot be read: No such file" in said, said  # certificates, which only the site has


def test_the_configuration_of_the_readme_is_the_example_and_has_eleven_lines() -> None:
    example = (ROOT / "configs" / "external.yaml").read_text(encoding="utf-8")
    assert len(example.splitlines()) == 11
    assert example in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_row_of_a_table_has_a_cell_for_each_column() -> None:
    """A row with a cell too many is shown without it."""
    wrong, tables = [], 0
    for page in [*sorted(DOCS.glob("*.md")), *sorted(ROOT.glob("*.md"))]:
        columns = fenced = 0
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            fenced ^= line.startswith("```")
            cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") and not fenced else 0
            if cells and columns and cells != columns:
                wrong.append(f"{page.name}:{number}: {line}")
            tables += bool(cells) and not columns
            columns = cells and (columns or cells)
    assert tables > 200 and wrong == []


def test_links_between_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_test_that_the_page_on_security_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / "docs" / "security.md").read_text())
    assert len(named) > 40
    texts = {file: (ROOT / file).read_text() for file, _ in named}
    assert [(file, name) for file, name in named if f"def {name}(" not in texts[file]] == []


def test_a_database_whose_certificate_is_checked_has_an_authority() -> None:
    """libpq looks for one in the home directory where `sslrootcert` names none, and refuses the connection: the gateway would not start."""
    pages = [path for top in (DOCS, ROOT / "deploy") for path in sorted(top.rglob("*")) if path.suffix in (".md", ".yaml", ".tf")]
    urls = [(path.name, url) for path in pages for url in re.findall(r"\S*sslmode=verify-\S*", path.read_text(encoding="utf-8"))]
    assert len(urls) >= 4 and [where for where in urls if "&sslrootcert=" not in where[1]] == []
