"""Frames of every cut and shape into messages, against the library's own client; and what is no protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side

from gateway.server.websocket_frames import BINARY, CLOSED, SLICE, Frames
from tests.steady import at_most, longest_step


def run(frames: Frames, data: bytes, cuts: list[int] | None = None) -> list[bytes | int]:
    """Everything that the steps return for these bytes."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts or []), len(data)]
    found: list[bytes | int] = []
    for begin, end in pairwise(edges):
        if begin == end:
            continue
        frames.add(data[begin:end])
        while not frames.idle:
            result = frames.step()
            if result is not None:
                found.append(result)
    return found


def masked(frame: Frame) -> bytes:
    return frame.serialize(mask=True)


@given(
    st.lists(st.tuples(st.text(max_size=200), st.integers(1, 5), st.booleans()), max_size=6),
    st.lists(st.integers(0, 100_000), max_size=8),
)
def test_messages_arrive_as_they_were_sent(messages: list[tuple[str, int, bool]], cuts: list[int]) -> None:
    client = Protocol(Side.CLIENT)
    for text, fragments, ping in messages:
        data = text.encode()
        size = max(1, -(-len(data) // fragments))
        parts = [data[n : n + size] for n in range(0, len(data), size)] or [b""]
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            if number == 0:
                client.send_text(part, fin=last)
            else:
                client.send_continuation(part, fin=last)
            if ping:
                client.send_ping(b"p")
    frames = Frames(1 << 20)
    assert run(frames, b"".join(client.data_to_send()), cuts) == [text.encode() for text, _, _ in messages]
    assert frames.underway < SLICE + 1


@given(st.binary(max_size=600), st.lists(st.integers(0, 1000), max_size=4))
def test_no_bytes_break_the_reader(data: bytes, cuts: list[int]) -> None:
    frames = Frames(256)
    found = run(frames, data, cuts)
    assert all((isinstance(each, bytes) and len(each) <= 256) or each in (BINARY, CLOSED) for each in found)
    if frames.ended:
        assert CLOSED in found and run(frames, masked(Frame(Opcode.TEXT, b"more"))) == []


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (Frame(Opcode.TEXT, b"x").serialize(mask=False), 1002),  # a client must mask
        (masked(Frame(Opcode.TEXT, b"x" * 2000)), 1009),
        (masked(Frame(Opcode.TEXT, b"x" * 600, False)) + masked(Frame(Opcode.CONT, b"x" * 600)), 1009),
        (masked(Frame(Opcode.CONT, b"x")), 1002),
        (masked(Frame(Opcode.TEXT, b"x", False)) + masked(Frame(Opcode.TEXT, b"y")), 1002),
        (b"\xc1\x81" + b"\x00" * 4 + b"x", 1002),  # rsv1: compressed, which was not negotiated
        (b"\x89\xfe" + b"\x00" * 10, 1002),  # a ping of more than 125 bytes
        (b"\x83\x80" + b"\x00" * 4, 1002),  # an opcode that is reserved
    ],
    ids=[
        "unmasked",
        "long",
        "long in parts",
        "continued",
        "begun twice",
        "compressed",
        "long ping",
        "reserved",
    ],  # masks are drawn at random
)
def test_what_breaks_the_protocol_is_answered_with_its_code(data: bytes, code: int) -> None:
    frames = Frames(1000)
    assert run(frames, data) == [CLOSED]
    client = Protocol(Side.CLIENT)
    client.receive_data(frames.unsent())
    assert client.close_rcvd is not None and client.close_rcvd.code == code


def test_a_message_waits_for_the_one_before_it_and_the_close_for_both() -> None:
    frames = Frames(1000)
    data = masked(Frame(Opcode.TEXT, b"one")) + masked(Frame(Opcode.BINARY, b"two")) + masked(Frame(Opcode.CLOSE, b"\x03\xe8"))
    assert run(frames, data) == [b"one", BINARY, CLOSED]
    assert frames.ended and frames.unsent() == b"\x88\x02\x03\xe8"
    frames.text(b"late")
    frames.close(1001, "late")
    assert frames.unsent() == b""


def test_one_step_is_short_whatever_a_read_holds() -> None:
    """A read of the largest size full of the smallest frames: no step takes as long as the loop may be held."""

    def slowest() -> float:
        frames, steps = Frames(1 << 20), 0
        frames.add(masked(Frame(Opcode.PONG, b"")) * 40_000)

        def all_steps() -> Iterator[None]:
            nonlocal steps
            while not frames.idle:
                frames.step()
                steps += 1
                yield

        longest = longest_step(all_steps())
        assert steps > 40_000
        return longest

    at_most(0.2, slowest)  # a generous bound: 700 frames take some 5 ms


def test_messages_are_written_as_one_frame_each() -> None:
    frames = Frames(1000)
    frames.text(json.dumps({"type": "done", "id": "a"}).encode())
    frames.ping()
    frames.close(1001, "é" * 100)
    client: Any = Protocol(Side.CLIENT)
    client.receive_data(frames.unsent())
    opcodes = [event.opcode for event in client.events_received()]
    assert opcodes == [Opcode.TEXT, Opcode.PING, Opcode.CLOSE] and client.close_rcvd.reason == "é" * 60
