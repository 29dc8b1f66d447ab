import json
import math

from hypothesis import given
from hypothesis import strategies as st

from gateway.audit.encode import encode, encode_all
from gateway.audit.record import MAX_RECORD
from gateway.core.secret import Secret
from gateway.core.types import EventRecord, IntentRecord

TEXT = st.text(st.characters(), max_size=40)


def a_record(model: str = "m", detail: dict | None = None) -> IntentRecord:
    return IntentRecord(
        time=1.5,
        request_id="r",
        tenant="t",
        principal="p",
        credential="c",
        peer="1.1.1.1",
        operation="chat",
        model=model,
        stream=False,
        bytes=3,
        detail=detail,
    )


def test_fields_keep_the_order_of_the_type_and_defaults_are_left_out() -> None:
    assert encode(a_record()) == (
        b'{"time":1.5,"request_id":"r","tenant":"t","principal":"p","credential":"c","peer":"1.1.1.1",'
        b'"operation":"chat","model":"m","stream":false,"bytes":3}'
    )


def test_keys_of_the_detail_are_sorted() -> None:
    assert b'"detail":{"a":1,"b":2}' in encode(EventRecord(1.0, "e", detail={"b": 2, "a": 1}))


@given(TEXT, TEXT)
def test_any_text_becomes_one_printable_ascii_line_that_reads_back(model: str, value: str) -> None:
    data = encode(a_record(model, {"x": value}))
    assert all(0x20 <= byte < 0x7F for byte in data)
    read = json.loads(data)
    assert (read["model"], read["detail"]["x"]) == tuple(t.encode("utf-8", "replace").decode() for t in (model, value))


def test_lone_surrogates_line_separators_and_terminal_controls_are_harmless() -> None:
    data = encode(a_record("\ud800\u2028\x1b[31m\x7f\x9b\u202e\n"))
    assert json.loads(data)["model"] == "?\u2028\x1b[31m\x7f\x9b\u202e\n"
    assert data.isascii() and b"\n" not in data and b"\x1b" not in data and b"\x7f" not in data


def test_a_secret_is_masked_and_a_foreign_object_named_by_its_type_only() -> None:
    data = encode(a_record(detail={"key": Secret("gh_very_secret"), "thing": object()}))
    assert b"very_secret" not in data
    assert json.loads(data)["detail"] == {"key": "********", "thing": "<object>"}


def test_what_is_too_large_is_shortened_and_says_so() -> None:
    data = encode(a_record("m" * 5_000_000, {"list": list(range(1_000_000))}))
    assert len(data) <= MAX_RECORD
    assert json.loads(data)["model"].endswith("... (5000000 characters)")


def test_large_text_that_grows_by_escaping_stays_within_the_bound() -> None:
    detail = {f"k{i}": "\U0001f600" * 1000 for i in range(64)}
    data = encode(a_record("\U0001f600" * 10_000, detail))
    assert len(data) <= MAX_RECORD
    assert json.loads(data)["detail"] == {"dropped": "too large or not encodable"}


def test_numbers_and_depths_that_json_cannot_carry_do_not_fail() -> None:
    deep: dict = {}
    for _ in range(100_000):
        deep = {"d": deep}
    read = json.loads(encode(a_record(detail={"n": 10**40, "nan": math.nan, "deep": deep})))
    assert read["detail"]["n"] == "<int of 133 bits>"
    assert read["detail"]["nan"] is None


def test_the_record_itself_is_not_changed() -> None:
    detail = {"x": "é" * 100_000}
    record = a_record(detail=detail)
    encode(record)
    assert record.detail is detail and detail == {"x": "é" * 100_000}


@given(st.lists(TEXT, max_size=6))
def test_many_records_are_encoded_like_single_ones(models: list[str]) -> None:
    records = [a_record(model) for model in models]
    assert encode_all(records) == [encode(record) for record in records]


def test_many_large_records_are_encoded_like_single_ones() -> None:
    records = [a_record("m" * 1000) for _ in range(100)] + [a_record("m" * 100_000)]
    assert encode_all(records) == [encode(record) for record in records]
