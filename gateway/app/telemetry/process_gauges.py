"""What a process costs and how promptly its loop turns: CPU, memory, disk, open files, loop lag; and the machine's disks and network. From
Linux's /proc and getrusage(2); elsewhere only CPU, the loop's lag and the disks' space."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.audit.sinks import local_sink
from gateway.core.specs import ConfigSpec
from gateway.pipeline.plane import SWEEP_SECONDS, DataPlane
from gateway.telemetry.metrics import Histogram

LAG_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Seconds by which a sweep came late."""
FILES_SECONDS: Final = 15.0
"""Between two counts of the open files: with ten thousand of them a count takes milliseconds."""
BLOCK: Final = 512
"""Bytes of a block in getrusage(2)."""

RECEIVED, SENT = 0, 8
"""Fields of a line of /proc/net/dev, after the interface's name."""


def resident_bytes(folder: Path) -> int | None:
    """Memory of the process with this folder in /proc; None where that is not known."""
    try:
        return int((folder / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None


class ProcessGauges:
    """`Metrics.gauges` calls `collect`. name: of the process, `control` or a worker's id."""

    def __init__(self, plane: DataPlane, name: str, proc: Path = Path("/proc/self"), clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._proc, self._clock = name, proc, clock
        self._lag = Histogram(LAG_BOUNDS)
        self._swept: float | None = None
        self._files, self._counted = 0, float("-inf")
        plane.listeners.append(self._tick)

    def _tick(self) -> None:
        now = self._clock()
        if self._swept is not None:
            self._lag.observe(max(0.0, now - self._swept - SWEEP_SECONDS))
        self._swept = now

    def collect(self) -> Iterable[Metric]:
        lag = HistogramMetricFamily("gatehouse_loop_lag_seconds", "By how much the event loop's regular work came late")
        lag.add_metric([], buckets=self._lag.buckets(), sum_value=self._lag.sum)
        yield lag
        times = os.times()
        yield CounterMetricFamily("gatehouse_cpu_seconds", "CPU time of the gateway's processes", value=times.user + times.system)
        yield from self._disk()
        resident = resident_bytes(self._proc)
        if resident is None:
            return
        memory = GaugeMetricFamily("gatehouse_resident_bytes", "Memory of the gateway's processes", labels=["process"])
        memory.add_metric([self._name], float(resident))
        yield memory
        try:
            self._count_files()
        except OSError:
            return
        files = GaugeMetricFamily("gatehouse_open_files", "Open files and connections of the gateway's processes", labels=["process"])
        files.add_metric([self._name], float(self._files))
        yield files

    def _disk(self) -> Iterable[Metric]:
        """What /proc/self/io says too: that file, only root may open once the process has hidden itself (engines.confinement.hide)."""
        if sys.platform != "linux":
            return
        usage = resource.getrusage(resource.RUSAGE_SELF)
        yield CounterMetricFamily(
            "gatehouse_disk_read_bytes", "Bytes that the gateway's processes had read from disks", value=usage.ru_inblock * BLOCK
        )
        yield CounterMetricFamily(
            "gatehouse_disk_written_bytes", "Bytes that the gateway's processes had written to disks", value=usage.ru_oublock * BLOCK
        )

    def _count_files(self) -> None:
        if (now := self._clock()) >= self._counted + FILES_SECONDS:
            self._files, self._counted = len(os.listdir(self._proc / "fd")), now


class MachineGauges:
    """`Metrics.gauges` calls `collect`. state_dir, audit: whose disks are meant; the audit log's only if it is another one."""

    def __init__(self, state_dir: Path, audit: Path, proc: Path = Path("/proc")) -> None:
        self._state_dir, self._audit, self._proc = state_dir, audit, proc
        self._network: dict[str, tuple[int, int]] = {}
        """What each interface has carried, as of the last look."""
        self._carried = (0, 0)
        """What interfaces carried that are gone, or have begun anew: their bytes must not go from the sum."""

    @classmethod
    def of(cls, spec: ConfigSpec) -> MachineGauges:
        return cls(Path(spec.state_dir), local_sink(spec.audit, spec.state_dir, "0").directory)

    def _disks(self) -> Iterable[Metric]:
        free = GaugeMetricFamily("gatehouse_disk_free_bytes", "Room on the disks that the gateway writes to", labels=["disk"])
        size = GaugeMetricFamily("gatehouse_disk_size_bytes", "Size of the disks that the gateway writes to", labels=["disk"])
        seen: set[int] = set()
        for name, directory in (("state", self._state_dir), ("audit", self._audit)):
            try:
                device, disk = directory.stat().st_dev, os.statvfs(directory)
            except OSError:
                continue
            if device not in seen:
                seen.add(device)
                free.add_metric([name], disk.f_bavail * disk.f_frsize)
                size.add_metric([name], disk.f_blocks * disk.f_frsize)
        if seen:
            yield from (free, size)

    def collect(self) -> Iterable[Metric]:
        yield from self._disks()
        try:
            lines = (self._proc / "self/net/dev").read_text().splitlines()[2:]
        except OSError:
            return
        now: dict[str, tuple[int, int]] = {}
        for line in lines:
            name, _, rest = line.partition(":")
            if name.strip() != "lo" and len(fields := rest.split()) > SENT:
                now[name.strip()] = int(fields[RECEIVED]), int(fields[SENT])
        for name, before in self._network.items():
            if (there := now.get(name)) is None or there[0] < before[0] or there[1] < before[1]:
                self._carried = self._carried[0] + before[0], self._carried[1] + before[1]
        self._network = now
        received, sent = (sum(each) for each in zip(self._carried, *now.values(), strict=True))
        yield CounterMetricFamily("gatehouse_network_received_bytes", "Bytes received on the network interfaces", value=received)
        yield CounterMetricFamily("gatehouse_network_sent_bytes", "Bytes sent on the network interfaces", value=sent)
