"""Why a process ended: what the kernel counts, and what the process says last."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.host.ending import OUT_OF_MEMORY, Kills, ending


class Machine:
    """The files of a system, under a folder."""

    def __init__(self, root: Path, group: str, counters: dict[str, str]) -> None:
        self.root = root
        self.put("proc/7/cgroup", group)
        for path, text in counters.items():
            self.put(path, text)

    def put(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)


V2 = "sys/fs/cgroup/system.slice/g.service/memory.events"
V1 = "sys/fs/cgroup/memory/g/memory.oom_control"
ROOT_OF_V1 = "sys/fs/cgroup/memory/memory.oom_control"
VMSTAT = "proc/vmstat"


@pytest.mark.parametrize(
    ("group", "counter", "where"),
    [
        ("0::/system.slice/g.service\n", V2, "the control group {root}/sys/fs/cgroup/system.slice/g.service"),
        ("9:name=systemd:/\n4:cpu,memory:/g\n0::/\n", V1, "the control group {root}/sys/fs/cgroup/memory/g"),
        ("4:memory:/not-seen-from-here\n", ROOT_OF_V1, "the control group {root}/sys/fs/cgroup/memory"),
        ("0::/\n", VMSTAT, "this machine"),
        ("", VMSTAT, "this machine"),
    ],
)
def test_the_kernels_count_tells_its_kills_from_those_of_others(tmp_path: Path, group: str, counter: str, where: str) -> None:
    machine = Machine(tmp_path, group, {VMSTAT: "oom_kill 9\n", counter: "low 0\noom 3\noom_kill 2\n"})
    kills, log = Kills(7, tmp_path), tmp_path / "log"
    assert ending(-9, kills, log, 0) == (f"the process ended with code -9 (SIGKILL), see {log}", None)
    machine.put(counter, "oom_kill 3\n")
    expected = f"memory ran out: the kernel ended the process (SIGKILL, counted by {where.format(root=tmp_path)}); see {log}"
    assert ending(-9, kills, log, 0) == (expected, OUT_OF_MEMORY)
    assert ending(-15, kills, log, 0).code is None
    kills.seen(kills.now())  # it lived on: another process was meant
    assert ending(-9, kills, log, 0).code is None


def test_where_nothing_is_counted_nothing_is_claimed(tmp_path: Path) -> None:
    kills = Kills(7, tmp_path)
    assert not kills.another()
    assert ending(-9, kills, tmp_path / "log", 0).code is None
    assert ending(-9, None, tmp_path / "log", 0).code is None


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n", "what():  std::bad_alloc"),
        (
            1,
            "Traceback:\nnumpy._core._exceptions._ArrayMemoryError: Unable to allocate 2 GiB\n",
            "numpy._core._exceptions._ArrayMemoryError:",
        ),
        (134, "CUDA error: out of memory\n", "CUDA error: out of memory"),
        (-11, "ggml: failed to allocate buffer\n" + "x" * 3000 + "\n", "ggml: failed to allocate buffer"),
        (-11, "ggml: failed to allocate buffer\n" + "x" * 5000 + "\n", None),
        (-11, "loaded\n", None),
        (-15, "out of memory\n", None),
        (0, "out of memory\n", None),
    ],
)
def test_the_last_words_of_this_life(tmp_path: Path, code: int, said: str, words: str | None) -> None:
    log = tmp_path / "log"
    earlier = b"an earlier life: out of memory\n"
    log.write_bytes(earlier + said.encode())
    found = ending(code, None, log, len(earlier))
    assert (found.code is None) == (words is None)
    assert words is None or words in found.reason
    log.write_bytes(said.encode())  # emptied meanwhile, because it was large
    assert ending(code, None, log, 1 << 30).code == found.code


@pytest.mark.parametrize(
    ("code", "said", "reason"),
    [
        (
            -6,
            "loading\n/build/vendor/llama.cpp/ggml/src/ggml.c:4014: GGML_ASSERT(a / b) failed\n",
            "the process ended with code -6 (SIGABRT) after it had said 'ggml.c:4014: GGML_ASSERT(a / b) failed'; see {log}",
        ),
        (
            -6,
            "/build/ggml-cpu/binary-ops.cpp:138: unsupported types\nlast\n",
            "the process ended with code -6 (SIGABRT) after it had said 'binary-ops.cpp:138: unsupported types'; see {log}",
        ),
        (-11, "loading with llama.cpp: b1\n", "the process ended with code -11 (SIGSEGV), see {log}"),
        (-15, "GGML_ASSERT(a) failed\n", "the process ended with code -15 (SIGTERM), see {log}"),
    ],
)
def test_what_a_library_says_before_it_ends_the_process(tmp_path: Path, code: int, said: str, reason: str) -> None:
    (log := tmp_path / "log").write_text(said)
    assert ending(code, None, log, 0) == (reason.format(log=log), None)
