"""Claude Code and Codex from npm, headless, through a gateway: a whole turn with one tool call each, against a scripted engine that speaks
chat completions only. Nothing is asked of the internet once they are installed.

    npm install --prefix DIRECTORY @anthropic-ai/claude-code @openai/codex
    (Claude Code's own binary: node DIRECTORY/node_modules/@anthropic-ai/claude-code/install.cjs)
    python -m loadtests.agents DIRECTORY

Prints what each said, what the engine was asked, and what the audit log has; exit code 1 where a turn did not come to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from admin.cli.kits import kit
from tests.e2e.harness import KEY, Gatehouse, configuration, external

WORD = "hello-from-a-tool"
TOOLS = {"Bash": {"command": f"echo {WORD}", "description": "Says a word"}, "exec_command": {"cmd": f"echo {WORD}"}}
"""The tools that run commands, by the names that the agents give them, with the arguments of the one call."""
SECONDS = 120


class Engine(BaseHTTPRequestHandler):
    """Calls the tool that it finds among those offered, and repeats what the tool said."""

    protocol_version = "HTTP/1.1"
    asked: list[dict[str, Any]]

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._answer(json.dumps({"object": "list", "data": [{"id": "m1", "object": "model"}]}).encode(), "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body)
        offered = [tool["function"]["name"] for tool in body.get("tools", ()) if "function" in tool]
        said = [message for message in body["messages"] if message["role"] == "tool"]
        tool = next((name for name in TOOLS if name in offered), None)
        delta: dict[str, Any] = {"role": "assistant", "content": f"The tool said {WORD if WORD in str(said) else 'nothing'}."}
        if not said and tool is not None:
            call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": tool, "arguments": json.dumps(TOOLS[tool])}}
            delta = {"role": "assistant", "content": None, "tool_calls": [call]}
        base = {"id": "c1", "created": 1, "model": "m1"}
        finish = "tool_calls" if "tool_calls" in delta else "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        if not body.get("stream"):
            whole = {
                **base,
                "object": "chat.completion",
                "choices": [{"index": 0, "message": delta, "finish_reason": finish}],
                "usage": usage,
            }
            self._answer(json.dumps(whole).encode(), "application/json")
            return
        base["object"] = "chat.completion.chunk"
        events = [
            {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
            {**base, "choices": [], "usage": usage},
        ]
        lines = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        self._answer(lines + b"data: [DONE]\n\n", "text/event-stream")

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def claude(programs: Path, home: Path, url: str) -> tuple[list[str], dict[str, str]]:
    """The command and the variables of its kit, as a shell would set them."""
    lines = kit("claude-code", url, "m1").splitlines()
    pairs = dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))
    pairs["ANTHROPIC_AUTH_TOKEN"] = KEY
    return [str(programs / "claude"), "-p", f"Run echo {WORD}", "--allowedTools", "Bash"], pairs


def codex(programs: Path, home: Path, url: str) -> tuple[list[str], dict[str, str]]:
    (home / ".codex").mkdir(parents=True, exist_ok=True)
    (home / ".codex" / "config.toml").write_text(kit("codex", url, "m1"))
    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return [str(programs / "codex"), "exec", *options, f"Run echo {WORD}"], {"GATEHOUSE_KEY": KEY}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where npm has installed them")
    options = parser.parse_args()
    programs = options.directory.resolve() / "node_modules" / ".bin"
    asked: list[dict[str, Any]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Scripted", (Engine,), {"asked": asked}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home, ended = Path(tempfile.mkdtemp()), 0
    config = configuration(
        home / "state", engines=[external("scripted", server.server_port, slots=16)], models=[{"name": "m1", "pool": ["scripted"]}]
    )
    with Gatehouse(home, config) as gatehouse:
        for name, prepared in (("Claude Code", claude), ("Codex", codex)):
            command, variables = prepared(programs, home, gatehouse.url)
            before, environ = len(asked), {"PATH": os.environ["PATH"], "HOME": str(home), **variables}
            done = subprocess.run(
                command, cwd=home, env=environ, text=True, capture_output=True, timeout=SECONDS, stdin=subprocess.DEVNULL, check=False
            )
            passed = done.returncode == 0 and f"The tool said {WORD}." in done.stdout
            outcome = "a whole turn" if passed else "NO whole turn"
            print(f"{name}: {outcome}, exit {done.returncode}, {len(asked) - before} requests to the engine")
            if not passed:
                ended = 1
                print(done.stdout[-1000:], done.stderr[-1000:], sep="\n")
        for record in gatehouse.audit():
            if record["kind"] == "outcome":
                print("audit:", record.get("operation", "-"), record["status"], record.get("code", ""), record.get("detail", ""))
    server.shutdown()
    return ended


if __name__ == "__main__":
    raise SystemExit(main())
