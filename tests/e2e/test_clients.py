"""docs/clients.md: its examples run as they stand, against a gateway."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, ROOT, Gatehouse

PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
BROWSER = """
// What the page needs of a browser, around Node's own WebSocket (the same API): one element, and the place that it was opened at.
globalThis.location = { hash: process.argv[2] };
const element = { textContent: "" };
globalThis.document = { getElementById: () => element };
process.on("exit", () => console.log(element.textContent));
"""


def block(language: str, mark: str) -> str:
    """The block of code in the page that has these words."""
    return next(found for found in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if mark in found)


def test_the_example_in_python(gatehouse: Gatehouse, engine: EngineThread) -> None:
    environ = {**os.environ, "GATEHOUSE_URL": gatehouse.url, "GATEHOUSE_KEY": KEY, "GATEHOUSE_MODEL": "m1"}
    ended = subprocess.run(
        [sys.executable, "-c", block("python", "/v1/stream")], env=environ, text=True, capture_output=True, timeout=60, check=True
    )
    assert ended.stdout.splitlines() == ["answer:  tok0 tok1 tok2 tok3"] * 2


def test_the_page(gatehouse: Gatehouse, engine: EngineThread, tmp_path: Path) -> None:
    script = re.search(r"<script type=\"module\">(.*)</script>", block("html", "/v1/stream"), re.DOTALL)
    assert script is not None
    file = tmp_path / "page.mjs"
    file.write_text(BROWSER + script[1])
    ended = subprocess.run(
        ["node", "--experimental-websocket", str(file), f"#url={gatehouse.url}&token={KEY}&model=m1"],
        text=True,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout.startswith(" tok0 tok1 tok2 tok3\n(closed: 1"), (ended.stdout, ended.stderr)
