"""A server that misbehaves in a chosen way, for engines with `runtime: command`: `python -m tests.fakes.command_server HOW PORT [FOLDER]`.

well: answers. crash: ends with code 7 at once. never: is never healthy. hang: is well until the file `hang` exists, then answers nothing.
stubborn: ignores SIGTERM. leaves: as stubborn, with a child that ignores it too. die: ends with code 9 when asked for a completion.
flood: writes 80 MiB to its log.
The numbers of its processes are written to FOLDER/pids, a line each.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    how = "well"
    folder = Path(".")

    def do_GET(self) -> None:
        if self.how == "hang" and (self.folder / "hang").exists():
            time.sleep(3600)
        self._send(503 if self.how == "never" else 200, b'{"status": "ok"}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.how == "die":
            os._exit(9)
        (self.folder / "asked").write_text(json.dumps({"headers": {k.lower(): v for k, v in self.headers.items()}, "body": body}))
        message = {"role": "assistant", "content": f"pid {os.getpid()}"}
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        answer = {"id": "x", "object": "chat.completion", "created": 1, "model": body["model"], "usage": usage}
        self._send(200, json.dumps({**answer, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        print(format % args, flush=True)


def flood() -> None:
    for _ in range(80):
        os.write(1, b"a line of the flood\n" * 52429)


def note(folder: Path) -> None:
    with (folder / "pids").open("a") as file:
        file.write(f"{os.getpid()}\n")


def main() -> None:
    how, port, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    note(folder)
    print(f"this is the log of {how}", flush=True)
    if how == "crash":
        sys.exit(7)
    if how in ("stubborn", "leaves"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how == "leaves" and os.fork() == 0:
        note(folder)
        threading.Event().wait()
    if how == "flood":
        threading.Thread(target=flood, daemon=True).start()
    Handler.how, Handler.folder = how, folder
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
