"""Which device a sidecar gets, against the device files of a made-up machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engines.host.devices import bind
from engines.runtimes import DEVICE_VARIABLES
from gateway.core.errors import ConfigError

HIDDEN = dict.fromkeys(DEVICE_VARIABLES.values(), "")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two NVIDIA devices, 0 and 3, three render nodes, and the driver of AMD."""
    files = "nvidia0 nvidia3 nvidiactl nvidia-uvm nvidia0x kfd dri/renderD128 dri/renderD129 dri/renderD130 dri/card0"
    for name in files.split():
        path = tmp_path / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def test_the_cpu_sees_no_other_device(machine: Path) -> None:
    found = bind("cpu", None, "e", machine)
    assert (found.device, found.environment, found.fell_back) == ("cpu", HIDDEN, False)


@pytest.mark.parametrize(
    ("device", "as_seen", "variable", "value"),
    [
        ("cuda:0", "cuda:0", "CUDA_VISIBLE_DEVICES", "0"),
        ("cuda:3", "cuda:0", "CUDA_VISIBLE_DEVICES", "3"),
        ("cuda:3,0", "cuda:0,1", "CUDA_VISIBLE_DEVICES", "3,0"),
        ("rocm:2", "rocm:0", "HIP_VISIBLE_DEVICES", "2"),
        ("vulkan:0,1,2", "vulkan:0,1,2", "GGML_VK_VISIBLE_DEVICES", "0,1,2"),
    ],
)
def test_a_sidecar_sees_its_own_devices_as_the_first(machine: Path, device: str, as_seen: str, variable: str, value: str) -> None:
    found = bind(device, "cpu", "e", machine, library=None)
    assert (found.device, found.fell_back) == (as_seen, False)
    assert found.environment[variable] == value


def test_a_driver_of_vulkan_for_processors_is_the_last_device(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no device vulkan:0"):
        bind("vulkan:0", None, "e", tmp_path)
    driver = tmp_path / "usr/share/vulkan/icd.d/lvp_icd.x86_64.json"
    driver.parent.mkdir(parents=True)
    driver.touch()
    assert bind("vulkan:0", None, "e", tmp_path).environment == {"GGML_VK_VISIBLE_DEVICES": "0"}
    with pytest.raises(ConfigError, match=r"no device vulkan:1 on this machine \(found: vulkan:0\)"):
        bind("vulkan:1", None, "e", tmp_path)


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("cuda:1", "there is no device cuda:1 on this machine (found: cuda:0, cuda:3)"),
        ("cuda:0,1", "there is no device cuda:1 on this machine (found: cuda:0, cuda:3)"),
        ("rocm:3", "there is no device rocm:3 on this machine (found: rocm:0, rocm:1, rocm:2)"),
    ],
)
def test_a_device_that_is_not_there(machine: Path, device: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind(device, None, "chat", machine, library=None)
    assert sentence in str(caught.value)
    assert "'chat'" in str(caught.value)


@pytest.mark.parametrize("device", ["cuda:1", "cuda:0,1", "rocm:3", "vulkan:9"])
def test_falling_back_to_the_cpu(machine: Path, device: str) -> None:
    found = bind(device, "cpu", "e", machine, library=None)
    assert (found.device, found.environment, found.fell_back) == ("cpu", HIDDEN, True)


@pytest.mark.parametrize("device", ["cuda:0", "rocm:0", "vulkan:0"])
def test_a_machine_with_nothing(tmp_path: Path, device: str) -> None:
    with pytest.raises(ConfigError, match="found: none"):
        bind(device, None, "e", tmp_path, library=None)


def test_render_nodes_without_the_driver_of_amd_are_not_rocm(machine: Path) -> None:
    (machine / "dev" / "kfd").unlink()
    assert bind("rocm:0", "cpu", "e", machine).fell_back
    assert not bind("vulkan:0", "cpu", "e", machine).fell_back


@pytest.mark.parametrize(("platform", "there"), [("darwin", True), ("linux", False)])
def test_metal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, there: bool) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    found = bind("metal", "cpu", "e", tmp_path)
    assert (found.device, found.fell_back) == (("metal", False) if there else ("cpu", True))
    if not there:
        with pytest.raises(ConfigError, match="no Metal device"):
            bind("metal", None, "e", tmp_path)


class Driver:
    """One GPU in a container: number 0, though its device file is nvidia3."""

    class NVMLError(Exception):
        pass

    uuids = ("GPU-11111111-aaaa", "GPU-22222222-bbbb")

    def __init__(self, count: int = 1, broken: bool = False) -> None:
        self.count, self.broken = count, broken

    def nvmlInit(self) -> None:
        if self.broken:
            raise self.NVMLError

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        if number >= self.count:
            raise self.NVMLError
        return number

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid not in self.uuids[: self.count]:
            raise self.NVMLError
        return self.uuids.index(uuid)

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return self.uuids[handle]


def test_the_driver_says_which_devices_there_are(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia3").touch()
    found = bind("cuda:0", None, "e", tmp_path, library=Driver())
    assert (found.device, found.environment["CUDA_VISIBLE_DEVICES"]) == ("cuda:0", "0")
    with pytest.raises(ConfigError, match=r"no device cuda:3 on this machine \(found: cuda:0 is GPU-11111111-aaaa\)"):
        bind("cuda:3", None, "e", tmp_path, library=Driver())


def test_a_uuid_stands_for_a_number(tmp_path: Path) -> None:
    found = bind("cuda:GPU-22222222-bbbb,0", None, "e", tmp_path, library=Driver(2))
    assert (found.device, found.environment["CUDA_VISIBLE_DEVICES"]) == ("cuda:0,1", "GPU-22222222-bbbb,0")
    with pytest.raises(ConfigError, match="no device cuda:GPU-22222222-bbbb on this machine"):
        bind("cuda:GPU-22222222-bbbb", None, "e", tmp_path, library=Driver(1))


def test_without_the_driver_the_device_files_count(machine: Path) -> None:
    assert bind("cuda:3", None, "e", machine, library=Driver(broken=True)).device == "cuda:0"
    assert bind("cuda:GPU-22222222-bbbb", None, "e", machine, library=None).device == "cuda:0"
    (machine / "dev" / "nvidia0").unlink()
    (machine / "dev" / "nvidia3").unlink()
    with pytest.raises(ConfigError, match="found: none"):
        bind("cuda:GPU-22222222-bbbb", None, "e", machine, library=None)
