"""Text and the bytes of a store stand for each other, also bytes that are no UTF-8."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_exclusive.stores.text import to_bytes, to_text

ODD = "\udfff\udcff"
_PIECES = [
    b"\xff",
    b"\xed",
    b"\xbf",
    b"\xb3",
    b"a",
    "é".encode(),
    b"\xed\xbf\xbf",
    b"\xed\xb3\xbf",
    b"\xe2\x80",
]


@pytest.mark.proves("odd records")
@given(st.binary() | st.lists(st.sampled_from(_PIECES)).map(b"".join))
@example(b"\xed\xbf\xbf\xed\xb3\xbf")
def test_any_bytes_are_read_as_text_and_written_again(value: bytes) -> None:
    assert to_bytes(to_text(value)) == value


@pytest.mark.proves("odd records")
@given(st.text(st.characters()).filter(lambda text: "\udfff" not in text))
@example("\udfffa")
@example("\udcff\ud800")
def test_text_of_any_characters_is_written_and_read_again(text: str) -> None:
    assert to_text(to_bytes(text)) == text


@pytest.mark.proves("odd records")
def test_a_byte_that_is_no_utf8_stays_itself_in_json() -> None:
    assert to_text(b"x=\xff") == f"x={ODD}"
    assert json.loads(json.dumps(ODD)) == ODD
