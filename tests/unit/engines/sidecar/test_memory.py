"""How much memory there is, as a container sees it."""

from __future__ import annotations

from pathlib import Path

from engines.sidecar.memory import all_memory

GIB = 1 << 30


def test_the_smallest_of_machine_and_container_counts(tmp_path: Path) -> None:
    assert all_memory(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemFree: 1 kB\nMemTotal:       {8 * GIB // 1024} kB\n")
    assert all_memory(tmp_path) == 8 * GIB
    (tmp_path / "sys/fs/cgroup/memory").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert all_memory(tmp_path) == 8 * GIB
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{2 * GIB}\n")
    assert all_memory(tmp_path) == 2 * GIB
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text(f"{GIB}\n")
    assert all_memory(tmp_path) == GIB
