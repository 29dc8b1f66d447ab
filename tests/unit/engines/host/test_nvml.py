"""Which GPUs a scripted driver tells of; test_devices.py and test_memory.py show what is made of it."""

import pytest

from engines.host import nvml
from tests.unit.engines.host.test_devices import Driver


def test_devices_by_number() -> None:
    assert nvml.present(Driver(2)) == list(Driver.uuids)
    assert nvml.absent(["0", "1", Driver.uuids[1], "GPU-33333333"], Driver(1)) == ["1", Driver.uuids[1], "GPU-33333333"]


@pytest.mark.parametrize("library", [None, Driver(broken=True)])
def test_without_a_driver_nothing_is_known(library: Driver | None) -> None:
    with pytest.raises(nvml.Unknown):
        nvml.present(library)
    with pytest.raises(nvml.Unknown):
        nvml.absent(["0"], library)
