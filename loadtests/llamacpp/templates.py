"""Renders every chat template that llama.cpp's source carries, with and without tools, with a system message and with a round of calls.

    python -m loadtests.llamacpp.templates FOLDER

FOLDER is `vendor/llama.cpp/models/templates` of llama-cpp-python's source. Prints formats and failures; exits with 1 if any fails.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.chat.formats.base import Choice, Tool
from engines.chat.formats.table import GENERIC, format_of
from engines.chat.template import ChatTemplate
from engines.chat.tools import generic_system, short_ids
from engines.sidecar.shell import ApiError

CITY = {"type": "object", "properties": {"city": {"type": "string", "description": "a city"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "the weather", "parameters": CITY}}]
CALLS = [{"id": f"call_{n}", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}} for n in (1, 2)]
TALK: list[dict[str, Any]] = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
ROUND: list[dict[str, Any]] = [
    *TALK, {"role": "assistant", "content": "", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "sun"},
    {"role": "tool", "tool_call_id": "call_2", "name": "weather", "content": "rain"},
]  # fmt: skip


def failures(source: str) -> list[str]:
    """What of the three conversations a template refuses."""
    template = ChatTemplate(source, bos="<s>", eos="</s>")
    form = format_of(source)
    cases: tuple[tuple[str, Sequence[Mapping[str, Any]], bool], ...] = (
        ("no tools", TALK, False), ("tools", TALK, True), ("calls", ROUND, True)
    )  # fmt: skip
    found = []
    for name, messages, with_tools in cases:
        if form is GENERIC and with_tools:
            messages, with_tools = generic_system(messages, Choice((Tool("weather", "the weather", CITY),), False)), False
        if form.ids == "short":
            messages = short_ids(messages)
        try:
            template.render(messages, tools=TOOLS if with_tools else None)
        except ApiError as exc:
            found.append(f"{name}: {exc}")
    return found


def main(folder: Path) -> int:
    """Print the table."""
    bad = 0
    files = sorted(folder.glob("*.jinja"))
    for file in files:
        source = file.read_text()
        found = failures(source)
        bad += bool(found)
        print(f"{file.stem:60} {format_of(source).name:14} {'; '.join(found) or 'ok'}")
    print(f"{len(files) - bad} of {len(files)} render")
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
