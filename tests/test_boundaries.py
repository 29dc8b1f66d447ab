"""Who catches everything says at that line why this is a boundary, or raises it again: the rule that a linter does not know."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP = ("gateway", "engines", "policies", "admin", "gatehouse")


def unexplained(source: str) -> list[int]:
    """Lines of the handlers that catch everything, go on, and do not say why with `boundary: ...`."""
    lines = source.splitlines()
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = ast.unparse(node.type).strip("()").split(", ") if node.type is not None else ["BaseException"]
        end = node.body[-1]
        again = isinstance(end, ast.Raise) and end.exc is None
        if {"Exception", "BaseException"} & set(caught) and not again and "boundary: " not in lines[node.lineno - 1]:
            found.append(node.lineno)
    return found


def test_every_broad_except_is_a_boundary_or_raises_again() -> None:
    files = [path for top in TOP for path in sorted((ROOT / top).rglob("*.py"))]
    assert len(files) > 100
    assert [f"{path.relative_to(ROOT)}:{line}" for path in files for line in unexplained(path.read_text())] == []


@pytest.mark.parametrize(
    ("caught", "rest", "found"),
    [
        (" Exception", "    pass", [3]),
        (" BaseException as error", "    log(error)", [3]),
        ("", "    pass", [3]),
        (" (OSError, Exception)", "    pass", [3]),
        (" Exception", "    pass  # boundary: too late", [3]),
        (" BaseException", "    undo()\n    raise", []),
        (" BaseException as error", "    raise Other from error", [3]),
        (" OSError", "    pass", []),
    ],
)
def test_what_is_found(caught: str, rest: str, found: list[int]) -> None:
    assert unexplained(f"try:\n    work()\nexcept{caught}:\n{rest}\n") == found
    assert unexplained(f"try:\n    work()\nexcept{caught}:  # boundary: why\n{rest}\n") == []
