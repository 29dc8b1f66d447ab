"""What clients are told of the endpoints that an engine stands for."""

from __future__ import annotations

import pytest

from gateway.core.engine_copies import shown
from gateway.core.host_port import HostPort
from gateway.core.specs import EngineSpec, ModelSpec
from tests.unit.gateway.routing.fleet import Fleet


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("vllm", "vllm"),
        ("team/vllm:8b", "team/vllm:8b"),
        ("chat~2", "chat~2"),
        ("chat@gpu-1", "chat@gpu-1"),
        ("a:b@gpu-1", "a:b@gpu-1"),
        (f"vllm@{HostPort('10.0.0.5', 8000).text}", "vllm"),
        (f"a:b@{HostPort('fd00::5', 8000).text}", "a:b"),
    ],
)
async def test_clients_see_names_and_no_addresses(name: str, told: str) -> None:
    assert shown(name) == told
    fleet = Fleet(1)
    fleet.load((EngineSpec(name=name, runtime="external", url="http://a:80", slots=2),), (ModelSpec(name="m", pool=(name,)),))
    attempt = fleet.attempt()
    assert attempt.endpoint_header == f"x-gatehouse-endpoint: {told}\r\n".encode()
    assert attempt.endpoint_name == name, "records have the whole"
