"""A sidecar that plays a script, for test_supervisor.py. `options.lives`: what each start does; the last one stays for all further ones.

ready: loads, is ready, and ends when asked. fail: reports a failed load. exit: ends at once with code 3. crash: by a signal.
deaf: is ready, and answers no health check once the file `options.deaf` exists. stubborn: does not end when asked.
load: is loading until the file `options.gate` exists. sick: is ready, and says that it failed once the file `options.sick` exists.
mute: is ready, and refuses every request; hold: answers none. silent: never listens. short: reports that its model does not fit.
Requests other than health checks are written to the file NAME.asked, one path a line.
"""

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import BinaryIO


def main() -> int:
    spec = json.loads(sys.stdin.readline())
    options = spec["options"]
    log = Path(spec["state_dir"]) / f"{spec['name']}.starts"
    with log.open("a") as file:
        told = {key: spec[key] for key in ("device", "socket", "model", "options")}
        file.write(json.dumps({"pid": os.getpid(), **told}) + "\n")
    lives = options["lives"]
    life = lives[min(len(log.read_text().splitlines()), len(lives)) - 1]
    if life == "exit":
        return 3
    if life == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if life == "silent":
        sys.stdin.read()
        return 0
    if life == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server = socket.socket(socket.AF_UNIX)
    Path(spec["socket"]).unlink(missing_ok=True)
    server.bind(spec["socket"])
    server.listen(16)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    while True:
        connection, _ = server.accept()
        threading.Thread(target=answer, args=(connection, life, options, spec), daemon=True).start()


def answer(connection: socket.socket, life: str, options: dict, spec: dict) -> None:
    with connection, connection.makefile("rb") as stream:
        while path := read_request(stream):
            deaf = options.get("deaf")
            if life == "deaf" and deaf and Path(deaf).exists():
                stream.read()
                return
            if path != "/health":
                with (Path(spec["state_dir"]) / f"{spec['name']}.asked").open("a") as file:
                    file.write(f"{os.getpid()} {path}\n")
            if life == "hold" and path != "/health":
                stream.read()  # until the other side gives up
                return
            refuses = life == "mute" and path != "/health"
            connection.sendall(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n" if refuses else report(life, options, spec))


def read_request(stream: BinaryIO) -> str:
    """The path of the next request, read to the end of its body; empty at the end of the connection."""
    line, length = stream.readline(), 0
    while (header := stream.readline().lower()) not in (b"\r\n", b""):
        if header.startswith(b"content-length:"):
            length = int(header.partition(b":")[2])
    stream.read(length)
    return line.split(b" ")[1].decode() if line else ""


def report(life: str, options: dict, spec: dict) -> bytes:
    found = {"state": "ready", "slots": 5, "device": spec["device"]}
    if life == "fail":
        found = {"state": "failed", "reason": "the file is no model"}
    elif life == "short":
        found = {"state": "failed", "reason": "no room", "reason_code": "insufficient_memory"}
    elif life == "sick" and Path(options["sick"]).exists():
        found = {"state": "failed", "reason": "three steps in a row failed", "reason_code": "engine_failed"}
    elif life == "load" and not Path(options["gate"]).exists():
        found = {"state": "loading"}
    body = json.dumps(found).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


if __name__ == "__main__":
    sys.exit(main())
