import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit.chain import GENESIS, Chain, ChainError, Draft, check_line, payload, payload_of, read_line
from gateway.core.types import EventRecord


def lines(count: int) -> list[bytes]:
    return Chain().seal([EventRecord(1.0, f"e{n}") for n in range(count)]).splitlines(keepends=True)


def test_a_line_carries_its_number_kind_and_hash() -> None:
    first = json.loads(lines(1)[0])
    assert (first["seq"], first["kind"], first["event"], len(first["hash"])) == (1, "event", "e0", 64)


def test_the_hash_is_sha256_over_the_previous_hash_and_everything_before_the_hash() -> None:
    previous = GENESIS
    for line in lines(3):
        body, _, rest = line.rpartition(b',"hash":"')
        previous_and_body = previous.encode() + body
        assert hashlib.sha256(previous_and_body).hexdigest() == rest[:64].decode()
        previous = rest[:64].decode()


def test_nothing_moves_until_commit() -> None:
    chain = Chain()
    first = chain.seal([EventRecord(1.0, "a")])
    assert chain.seal([EventRecord(1.0, "a")]) == first
    chain.commit()
    assert chain.seq == 1 and first.endswith(b'"hash":"%b"}\n' % chain.head.encode())
    check_line(chain.seal([EventRecord(1.0, "b")]), 2, chain.head.encode())


def test_batches_and_single_records_make_the_same_chain() -> None:
    whole, single = Chain(), Chain()
    records = [EventRecord(1.0, f"e{n}") for n in range(5)]
    together = whole.seal(records)
    apart = b""
    for record in records:
        apart += single.seal([record])
        single.commit()
    assert together == apart


@pytest.mark.parametrize("size", [0, 1, 40, 74, 75, 76, 80])
def test_the_end_of_a_line_has_no_payload(size: int) -> None:
    """A reader of a file's last bytes may begin inside a line, even inside its hash."""
    line = lines(1)[0]
    assert payload_of(line) == payload(EventRecord(1.0, "e0"))
    assert payload_of(line[len(line) - size :]) != payload_of(line)
    assert payload_of(b"abc\n") == payload_of(b"\n") == payload_of(b"") == b""


@given(st.lists(st.integers(0, 3), max_size=4), st.integers(0, 4))
def test_a_draft_makes_the_lines_that_sealing_makes(parts: list[int], rest: int) -> None:
    chain = Chain(7, "a" * 64)
    records = [EventRecord(1.0, f"e{n}") for n in range(sum(parts) + rest)]
    draft, linked = Draft(chain), 0
    for part in parts:
        draft.extend([payload(record) for record in records[linked : linked + part]])
        linked += part
    assert draft.count == linked
    plain = Chain(7, "a" * 64)
    assert chain.seal(records, draft) == plain.seal(records)
    chain.commit()
    plain.commit()
    assert (chain.seq, chain.head) == (plain.seq, plain.head)


@pytest.mark.parametrize("moved", [Chain(8, "a" * 64), Chain(7, "b" * 64)], ids=["another number", "another hash"])
def test_a_draft_that_does_not_follow_the_chain_is_ignored(moved: Chain) -> None:
    draft = Draft(Chain(7, "a" * 64))
    records = [EventRecord(1.0, "a"), EventRecord(1.0, "b")]
    draft.extend([payload(records[0])])
    expected = moved.seal(records)
    assert moved.seal(records, draft) == expected
    check_line(expected.splitlines(keepends=True)[0], moved.seq + 1, moved.head.encode())


def test_a_line_is_accepted_only_in_its_place() -> None:
    head = GENESIS.encode()
    for number, line in enumerate(lines(4), start=1):
        with pytest.raises(ChainError, match="sequence number"):
            check_line(line, number + 1, head)
        with pytest.raises(ChainError, match="does not match"):
            check_line(line, number, b"1" * 64)
        head = check_line(line, number, head)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_not_a_line(data: bytes) -> None:
    with pytest.raises(ChainError):
        check_line(data, 1, GENESIS.encode())
    assert read_line(data) is None


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_one_changed_byte_anywhere_is_noticed(position: int, change: int) -> None:
    line = bytearray(lines(1)[0])
    line[position % len(line)] ^= change
    with pytest.raises(ChainError):
        check_line(bytes(line), 1, GENESIS.encode())


def test_claims_are_read_from_a_well_formed_line_without_proof() -> None:
    line = lines(2)[1].replace(b"e1", b"eX")
    claims = read_line(line)
    assert claims is not None and (claims.seq, claims.kind) == (2, "event")
