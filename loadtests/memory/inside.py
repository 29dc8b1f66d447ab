"""What a Python process is made of, told by the process itself: its objects by type, its tasks, its threads, its heaps.

`prepare(folder)` makes a folder for PYTHONPATH: every interpreter that starts with it listens on the Unix socket PID.sock there, in a
thread of its own, and answers each connection with one line of JSON (`ask`). Nothing of the program is changed for it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import socket
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

START = """import sys
sys.path.insert(0, {root!r})
from loadtests.memory import inside
inside.listen({folder!r})
sys.path.remove({root!r})
"""


class _Heaps(ctypes.Structure):
    """glibc's `struct mallinfo2`, in bytes."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def prepare(folder: Path) -> dict[str, str]:
    """The environment of a process that is to answer."""
    folder.mkdir(exist_ok=True)
    root = str(Path(__file__).resolve().parents[2])
    (folder / "sitecustomize.py").write_text(START.format(root=root, folder=str(folder)))
    return {"PYTHONPATH": str(folder)}


def listen(folder: str) -> None:
    if len(sys.orig_argv) > 2 and sys.orig_argv[2].startswith("engines"):
        return  # sidecars stay as they are
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{folder}/{os.getpid()}.sock")
    server.listen()
    threading.Thread(target=_serve, args=(server,), name="inside", daemon=True).start()


def _serve(server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        with connection:
            connection.sendall(json.dumps(account()).encode())


def account() -> dict[str, Any]:
    """blocks: live blocks of Python's own allocator. malloc, mapped: bytes in use of the C library's main heap, and of all its mappings.
    free: bytes of that heap that are not in use. sqlite: of SQLite. types: objects that the collector knows and came after the start."""
    gc.collect()
    known: list[Any] = list(getattr(asyncio.tasks, "_all_tasks", ()))
    tasks = sum(not task.done() for task in known)
    types: Counter[str] = Counter()
    for each in gc.get_objects():
        types[f"{type(each).__module__}.{type(each).__qualname__}"] += 1
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Heaps
    heaps = library.mallinfo2()
    return {
        "blocks": sys.getallocatedblocks(),
        "tasks": tasks,
        "malloc": heaps.uordblks,
        "mapped": heaps.hblkhd,
        "free": heaps.fordblks,
        "sqlite": _sqlite(),
        "types": dict(types),
    }


def _sqlite() -> int:
    """Bytes in use of SQLite: its pages and prepared statements."""
    try:
        library = ctypes.CDLL("libsqlite3.so.0", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return 0  # not loaded, or built in
    library.sqlite3_memory_used.restype = ctypes.c_int64
    return int(library.sqlite3_memory_used())


def ask(folder: Path, pid: int) -> dict[str, Any]:
    """What a process says. Raises OSError if it does not answer within a minute."""
    parts = []
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect(str(folder / f"{pid}.sock"))
        while part := sock.recv(1 << 20):
            parts.append(part)
    return dict(json.loads(b"".join(parts)))
