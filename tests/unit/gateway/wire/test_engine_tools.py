"""What a tool that an engine runs by itself may have inside, and how the setting names it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from gateway.core.errors import RequestError
from gateway.wire.engine_tools import allows, keeps, others


def of(*tools: Any) -> dict[str, Raw]:
    return {"tools": Raw(msgspec.json.encode(list(tools)))}


@pytest.mark.parametrize(
    "inside",
    [
        {"server_url": "http://10.0.0.1"},
        {"server_url": ""},
        {"Server_URL": "x"},
        {"connector_id": "c"},
        {"headers": {"authorization": "x"}},
        {"authorization": "x"},
        {"container": "c-1"},
        {"container": {"type": "auto", "file_ids": ["f"]}},
        {"container": {"type": "auto", "network_policy": {}}},
        {"container": {"type": "container_reference"}},
        {"deep": [{"more": {"file_ids": ["f"]}}]},
        {"deep": {"page_url": "http://10.0.0.1"}},
        {"urls": ["http://10.0.0.1"]},
        {"extra_body": {}},
    ],
)
def test_a_tool_names_nothing_that_the_engine_keeps_or_connects_to(inside: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        others(of({"type": "mcp", **inside}), ("tools[0].type",), "drop", ("mcp",))
    assert caught.value.param is not None and caught.value.param.startswith("tools[0].")


def test_an_own_container_and_settings_of_the_callers_pass() -> None:
    fields = of(
        {"type": "code_interpreter", "container": {"type": "auto", "memory_limit": "4g"}},
        {"type": "web_search_20250305", "max_uses": 3, "filters": {"allowed_domains": ["example.org"]}},
    )
    assert others(fields, ("novel", "tools[0].type", "tools[1].type"), "refuse", ("code_interpreter", "web_search")) == ["novel"]


@pytest.mark.parametrize(
    ("tool", "allowed", "may"),
    [
        ({"type": "web_search_2025_08_26"}, ["web_search"], True),
        ({"type": "web_search"}, ["web_search_20250305"], False),
        ({"type": "web_search_20260101"}, ["web_search_20250305"], False),
        ({"type": "Web_Search"}, ["web_search"], False),
        ({"type": "mcp", "server_label": "a"}, ["mcp:a"], True),
        ({"type": "mcp", "server_label": "b"}, ["mcp:a"], False),
        ({"type": "mcp"}, ["mcp:a"], False),
        ({"type": "mcp", "server_label": "a", "mcp_server_name": "b"}, ["mcp:a"], False),
        ({"type": ["web_search"]}, ["web_search"], False),
        ("web_search", ["web_search"], False),
    ],
)
def test_a_tool_is_named_by_its_type_and_server(tool: Any, allowed: list[str], may: bool) -> None:
    assert allows(tool, allowed) is may


def test_a_field_stays_where_its_name_is_listed() -> None:
    assert keeps("web_search_options", ("web_search",)) and keeps("store", ("store",))
    assert not keeps("store", ("web_search",)) and not keeps("priority", ("priority",))
