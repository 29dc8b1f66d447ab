"""Moments are RFC 3339 in answers and in the document, and RFC 3339 or seconds since the epoch in what callers send."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin import values
from admin.moments import LAST, documented, seconds, timestamp
from admin.openapi import describe
from admin.resource import patch_of
from admin.resources import table
from admin.resources.audit import ExportQuery
from admin.resources.keys import KeyChange, KeyCreation
from gateway.core.errors import RequestError

SCHEMAS = describe(table.operations())["components"]["schemas"]


@pytest.mark.parametrize(
    ("moment", "shown"),
    [
        (0.0, "1970-01-01T00:00:00Z"),
        (4e9, "2096-10-02T07:06:40Z"),
        (1.25, "1970-01-01T00:00:01.250Z"),
        (float(LAST), "9999-12-31T23:59:59Z"),
    ],
)
def test_a_moment_is_shown_in_utc(moment: float, shown: str) -> None:
    assert timestamp(moment) == shown and seconds(shown) == moment


@given(st.floats(0, LAST))
def test_what_was_shown_is_read_to_the_millisecond_and_shown_the_same(moment: float) -> None:
    shown = timestamp(moment)
    assert shown is not None and timestamp(read := seconds(shown)) == shown
    assert read is not None and abs(read - moment) <= 0.0011


@pytest.mark.parametrize(
    "text", ["2096-10-02T07:06:40Z", "2096-10-02t07:06:40.000z", "2096-10-02 09:06:40+02:00", "2096-10-02T07:06:40-00:00"]
)
def test_every_form_of_rfc_3339_is_read(text: str) -> None:
    body = msgspec.json.encode({"tenant": "t", "expires": text})
    assert values.decode(body, KeyCreation).expires == 4e9
    assert values.decode(b'{"tenant": "t", "expires": 4000000000}', KeyCreation).expires == 4e9
    assert values.convert({"since": text, "until": "4e9"}, ExportQuery) == ExportQuery(since=4e9, until=4e9)


@pytest.mark.parametrize(
    "text", ["tomorrow", "2027-01-31", "2027-02-30T00:00:00Z", "2027-01-31T00:00:00", "20270131T000000Z", "1969-12-31T23:59:59Z", "4e9"]
)
def test_another_text_is_refused_with_an_example(text: str) -> None:
    for kind in (KeyChange, patch_of(KeyChange)):
        with pytest.raises(RequestError) as caught:
            values.decode(msgspec.json.encode({"expires": text}), kind)
        assert caught.value.param == "expires" and "2027-01-31T00:00:00Z" in caught.value.message


def test_the_document_says_date_time() -> None:
    for name in (
        "KeyView",
        "NewKeyView",
        "LimitView",
        "TenantView",
        "StoredEngineView",
        "StoredModelView",
        "FileView",
        "UploadView",
        "Status",
        "ConfigState",
    ):
        for field, schema in SCHEMAS[name]["properties"].items():
            if field.endswith("_at") or field in ("expires", "overlap_until", "revoked", "last_used"):
                shown = [choice for choice in schema.get("anyOf", [schema]) if choice.get("type") != "null"]
                assert [(choice["type"], choice["format"]) for choice in shown] == [("string", "date-time")], (name, field)
    given_ = SCHEMAS["KeyCreation"]["properties"]["expires"]["anyOf"][0]
    assert (given_["type"], given_["format"]) == (["string", "number"], "date-time")
    assert documented({"type": "number"}) == {"type": "number"}
