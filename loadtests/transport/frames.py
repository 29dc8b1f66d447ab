"""Hostile HTTP/2 at the gRPC port: raw frames, one attack after the other, each on connections of its own, beside a client that calls all
the time. Told for each: frames or bytes that the gateway took, whether it ended the connection, its memory and CPU, and the slowest call
of the client beside it.

usage: python -m loadtests.transport.frames [--seconds 4] [--only NAME]
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

from loadtests.sockets import cpu, resident
from tests.e2e.harness import KEY, Gatehouse
from tests.e2e.test_grpc import SERVICE, address, raw, request, settings
from tests.fakes.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    NO_WINDOW,
    OPENED,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH,
    RESET,
    SETTINGS,
    WINDOW,
    frame,
    literal,
    message,
)  # fmt: skip
from tests.fakes.http2 import head as fields


def head(method: str = "ModelReady", key: str = KEY, **more: str) -> bytes:
    return fields(SERVICE + method, authorization=f"Bearer {key}", **more)


ASKED = message(b"\n\x06double")
INFER = message(request().SerializeToString())


def streams() -> Iterator[int]:
    return iter(range(1, 1 << 31, 2))


# --- attacks: each yields what to send, for ever or until it is done


def settings_flood() -> Iterator[bytes]:
    yield OPENED
    while True:
        yield frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535)) * 100


def settings_that_change_all_windows() -> Iterator[bytes]:
    yield OPENED
    for number, _ in zip(streams(), range(100), strict=False):
        yield frame(HEADERS, END_HEADERS, number, head("ModelStreamInfer"))
    while True:
        yield b"".join(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, size)) for size in (0, 1 << 30)) * 50


def ping_flood() -> Iterator[bytes]:
    yield OPENED
    while True:
        yield frame(PING, 0, 0, b"12345678") * 100


def rapid_reset() -> Iterator[bytes]:
    yield OPENED
    for number in streams():
        yield frame(HEADERS, END_HEADERS, number, head()) + frame(RESET, 0, number, struct.pack(">I", 8))


def rapid_reset_behind_a_message() -> Iterator[bytes]:
    yield OPENED
    for number in streams():
        opened = frame(HEADERS, END_HEADERS, number, head("ModelInfer")) + frame(DATA, END_STREAM, number, INFER)
        yield opened + frame(RESET, 0, number, struct.pack(">I", 8))


def resets_by_the_server() -> Iterator[bytes]:
    """Each stream is made one that the server must reset (window updates of nothing)."""
    yield OPENED
    for number in streams():
        yield frame(HEADERS, END_HEADERS, number, head()) + frame(WINDOW, 0, number, b"\0\0\0\0")


def calls_that_end_at_once() -> Iterator[bytes]:
    """Answers are made, and never read."""
    yield OPENED
    for number in streams():
        yield frame(HEADERS, END_HEADERS, number, head("ServerMetadata")) + frame(DATA, END_STREAM, number, message(b""))


def continuation_flood() -> Iterator[bytes]:
    yield OPENED + frame(HEADERS, 0, 1, head())
    while True:
        yield frame(CONTINUATION, 0, 1, literal("a", "b" * 16000))


def empty_continuations() -> Iterator[bytes]:
    yield OPENED + frame(HEADERS, 0, 1, head())
    while True:
        yield frame(CONTINUATION, 0, 1) * 100


def large_headers() -> Iterator[bytes]:
    yield OPENED
    for number in streams():
        yield frame(HEADERS, END_HEADERS, number, head(**{f"x-{n}": "v" * 1500 for n in range(10)}))


def header_bomb() -> Iterator[bytes]:
    """One field in the table of fields, named thousands of times (RFC 7541, 6.1)."""
    yield OPENED + frame(HEADERS, END_HEADERS, 1, literal("bomb", "b" * 3900, b"\x40") + head())
    for number in streams():
        if number > 1:
            yield frame(HEADERS, END_HEADERS, number, head() + b"\xbe" * 12000)


def tables_that_grow_and_shrink() -> Iterator[bytes]:
    yield OPENED
    for number in streams():
        yield frame(HEADERS, END_HEADERS | END_STREAM, number, b"\x3f\xe1\x1f" + b"\x20" + head())


def no_window_for_answers() -> Iterator[bytes]:
    yield PREFACE + frame(SETTINGS, 0, 0, NO_WINDOW)
    for number in streams():
        yield frame(HEADERS, END_HEADERS, number, head("ModelMetadata")) + frame(DATA, END_STREAM, number, ASKED)


def windows_of_a_byte() -> Iterator[bytes]:
    yield PREFACE + frame(SETTINGS, 0, 0, NO_WINDOW)
    for number, _ in zip(streams(), range(100), strict=False):
        yield frame(HEADERS, END_HEADERS, number, head("ModelMetadata")) + frame(DATA, END_STREAM, number, ASKED)
    while True:
        for number, _ in zip(streams(), range(100), strict=False):
            yield frame(WINDOW, 0, number, b"\0\0\0\1")


def windows_that_overflow() -> Iterator[bytes]:
    yield OPENED
    while True:
        yield frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff") * 100


def empty_data() -> Iterator[bytes]:
    yield OPENED + frame(HEADERS, END_HEADERS, 1, head("ModelStreamInfer"))
    while True:
        yield frame(DATA, 0, 1) * 100


def padding() -> Iterator[bytes]:
    yield OPENED + frame(HEADERS, END_HEADERS, 1, head("ModelStreamInfer"))
    while True:
        yield frame(DATA, PADDED, 1, b"\xff" + b"\0" * 255) * 10


def priorities() -> Iterator[bytes]:
    yield OPENED
    for number in streams():
        yield frame(PRIORITY, 0, number, struct.pack(">IB", 0, 1)) * 50


def unknown_frames() -> Iterator[bytes]:
    yield OPENED
    while True:
        yield frame(0xEE, 0, 0, b"x" * 16000)


def goaways() -> Iterator[bytes]:
    yield OPENED
    while True:
        yield frame(GOAWAY, 0, 0, struct.pack(">II", 1, 0)) * 100


def even_streams_and_pushes() -> Iterator[bytes]:
    yield OPENED + frame(HEADERS, END_HEADERS, 2, head()) + frame(PUSH, END_HEADERS, 1, struct.pack(">I", 2) + head())


def messages_that_promise_much() -> Iterator[bytes]:
    """As many calls as there may be, each of a message of 60 MB that comes slowly."""
    yield OPENED
    for number, _ in zip(streams(), range(128), strict=False):
        yield frame(HEADERS, END_HEADERS, number, head("ModelInfer")) + frame(DATA, 0, number, b"\0" + struct.pack(">I", 60_000_000))
    while True:
        for number, _ in zip(streams(), range(128), strict=False):
            yield frame(DATA, 0, number, b"x" * 1024)


def requests_of_a_stream() -> Iterator[bytes]:
    """One stream of requests, whose answers nobody takes."""
    yield PREFACE + frame(SETTINGS, 0, 0, NO_WINDOW) + frame(HEADERS, END_HEADERS, 1, head("ModelStreamInfer"))
    while True:
        yield frame(DATA, 0, 1, INFER)


FLOODS: tuple[Callable[[], Iterator[bytes]], ...] = (
    settings_flood, settings_that_change_all_windows, ping_flood, rapid_reset, rapid_reset_behind_a_message, resets_by_the_server,
    calls_that_end_at_once, continuation_flood, empty_continuations, large_headers, header_bomb, tables_that_grow_and_shrink,
    no_window_for_answers, windows_of_a_byte, windows_that_overflow, empty_data, padding, priorities, unknown_frames, goaways,
    even_streams_and_pushes, messages_that_promise_much, requests_of_a_stream,
)  # fmt: skip
HALVES = {
    "nothing": b"",
    "half a preface": PREFACE[:10],
    "a preface alone": PREFACE,
    "half a frame's head": OPENED + b"\0\0",
    "a frame that does not come": OPENED + frame(SETTINGS, 0, 0, length=12),
    "headers without an end": OPENED + frame(HEADERS, 0, 1, head()),
    "a call without a message": OPENED + frame(HEADERS, END_HEADERS, 1, head("ModelInfer")),
    "half a message": OPENED + frame(HEADERS, END_HEADERS, 1, head("ModelInfer")) + frame(DATA, 0, 1, INFER[:20]),
}
"""What connections say before they fall silent."""


class Beside:
    """A client that calls all the time; `slowest` in milliseconds, and how many calls failed."""

    def __init__(self, to: str) -> None:
        self._to, self._ends = to, threading.Event()
        self.slowest, self.failed, self.calls = 0.0, 0, 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with grpc.insecure_channel(self._to) as channel:
            while not self._ends.is_set():
                begun = time.perf_counter()
                self.failed += isinstance(raw(channel, "ModelReady", b"\n\x06double"), grpc.RpcError)
                self.slowest, self.calls = max(self.slowest, (time.perf_counter() - begun) * 1000), self.calls + 1
                self._ends.wait(0.02)

    def end(self) -> str:
        self._ends.set()
        self._thread.join()
        return f"beside {self.calls:4d} calls, slowest {self.slowest:5.0f} ms, failed {self.failed}"


def flood(to: tuple[str, int], make: Callable[[], Iterator[bytes]], seconds: float) -> tuple[int, str]:
    """Bytes that were taken, and how it ended. Nothing is read."""
    taken, until = 0, time.monotonic() + seconds
    with socket.create_connection(to, timeout=1) as wire:
        try:
            for data in make():
                wire.sendall(data)
                taken += len(data)
                if time.monotonic() > until:
                    return taken, "went on"
            wire.settimeout(seconds)
            while wire.recv(65536):
                pass
        except TimeoutError:
            return taken, "stopped reading"
        except OSError:
            pass
    return taken, f"closed after {seconds - until + time.monotonic():.1f} s"


def silent(to: tuple[str, int], said: bytes, count: int, seconds: float) -> str:
    """How many of so many silent connections are still there."""
    wires = [socket.create_connection(to, timeout=5) for _ in range(count)]
    for wire in wires:
        wire.sendall(said)
        wire.settimeout(0.01)
    time.sleep(seconds)
    left = 0
    for wire in wires:
        try:
            while wire.recv(65536):
                pass
        except TimeoutError:
            left += 1
        except OSError:
            pass
        wire.close()
    return f"{left} of {count} left after {seconds:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--silence", type=float, default=15)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp())
    listen = {"header_timeout": "5s", "body_timeout": "10s", "keep_alive_timeout": "10s", "max_connections_per_peer": 300}
    with Gatehouse(directory, settings(directory / "state", directory / "double.onnx", listen=listen)) as gatehouse:
        assert gatehouse.process is not None
        pid, to = gatehouse.process.pid, address(gatehouse)
        place = (to.rpartition(":")[0], int(to.rpartition(":")[2]))
        beside = Beside(to)
        time.sleep(1)
        print(f"alone: {beside.end()}", flush=True)
        for make in FLOODS:
            if options.only not in make.__name__:
                continue
            beside, before, begun = Beside(to), resident(pid), cpu(pid)
            taken, how = flood(place, make, options.seconds)
            most = resident(pid)
            spent = cpu(pid) - begun
            told = beside.end()
            name = make.__name__.replace("_", " ")
            after = (resident(pid) - before) / 1e6
            print(f"{name:34s} {taken / 1e6:7.2f} MB {how:18s} memory {(most - before) / 1e6:+6.1f}, then {after:+6.1f} MB  "
                  f"CPU {spent:4.1f} s  {told}", flush=True)  # fmt: skip
        for name, said in HALVES.items():
            if options.only not in name:
                continue
            beside, before = Beside(to), resident(pid)
            left = silent(place, said, 100, options.silence)
            print(f"{name:34s} {left:28s} memory {(resident(pid) - before) / 1e6:+6.1f} MB  {beside.end()}", flush=True)
        print("files of the gateway:", len(os.listdir(f"/proc/{pid}/fd")))


if __name__ == "__main__":
    main()
