"""Counting connections that are closed before a request."""

from __future__ import annotations

from gateway.telemetry.refused import HEADER, MOST_PEERS, NETWORK, PERIOD, SHOWN, Refused


def test_any_number_of_them_is_one_event_for_each_reason_and_period() -> None:
    refused = Refused()
    assert refused.reports(100.0) == []
    for number in range(10_000):
        refused.count("data", NETWORK, f"2001:db8:{number:x}::1")
    for _ in range(5):
        refused.count("data", NETWORK, "2001:db8:3::ffff")
    refused.count("admin", HEADER, "192.0.2.1")
    (data, first), (admin, second) = refused.reports(100.0)
    assert (data, first["reason"], first["count"]) == ("data", "network", 10_005)
    peers = first["peers"]
    assert isinstance(peers, list) and len(peers) == SHOWN and peers[0] == "2001:db8:3::/64"
    assert (admin, second) == ("admin", {"reason": "proxy_header", "count": 1, "peers": ["192.0.2.1"]})
    refused.count("data", NETWORK, "192.0.2.1")
    assert refused.reports(100.0 + PERIOD / 2) == []
    assert refused.reports(100.0 + PERIOD) == [("data", {"reason": "network", "count": 1, "peers": ["192.0.2.1"]})]


def test_the_memory_is_bounded_and_the_metric_is_the_sum() -> None:
    refused = Refused()
    for number in range(10 * MOST_PEERS):
        refused.count("data", NETWORK, f"10.0.{number >> 8}.{number & 255}")
    assert len(refused._windows["data", NETWORK].peers) == MOST_PEERS
    refused.reports(100.0)
    (family,) = refused.collect()
    assert family.name == "gatehouse_connections_refused"
    assert [(sample.labels, sample.value) for sample in family.samples] == [({"listener": "data", "reason": "network"}, 10.0 * MOST_PEERS)]
