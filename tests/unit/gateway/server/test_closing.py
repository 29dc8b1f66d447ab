"""How a connection closes, over a fake transport."""

from __future__ import annotations

from gateway.server.closing import close_or_cut, half_close
from tests.unit.gateway.server.wires import Transport


def test_a_half_closed_connection_goes_on_reading() -> None:
    transport = Transport()
    transport.pause_reading()
    assert half_close(transport, held=True)  # type: ignore[arg-type]
    assert transport.half_closed and transport.reading and not transport.closed


def test_a_transport_without_half_close_is_left_alone() -> None:
    transport = Transport()
    transport.can_eof = False
    assert not half_close(transport, held=False)  # type: ignore[arg-type]
    assert not transport.half_closed


def test_a_client_that_takes_nothing_is_cut_at_the_second_look() -> None:
    transport = Transport()
    transport.unsent = 10
    unsent = close_or_cut(transport, -1)  # type: ignore[arg-type]
    assert (unsent, transport.closed, transport.aborted) == (10, True, False)
    transport.unsent = 9
    unsent = close_or_cut(transport, unsent)  # type: ignore[arg-type]
    assert not transport.aborted
    close_or_cut(transport, unsent)  # type: ignore[arg-type]
    assert transport.aborted


def test_a_connection_with_nothing_unsent_is_never_cut() -> None:
    transport = Transport()
    assert close_or_cut(transport, 0) == 0  # type: ignore[arg-type]
    assert transport.closed and not transport.aborted
