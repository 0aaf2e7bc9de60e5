"""Nothing that is shown can act on the terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_chat.chats.display import one_line, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "␛[2J"),
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("a\rb", "a␍b"),
        ("a\r\nb", "a\nb"),
        ("\x9b2J", "�2J"),
        ("\x00\x08\x7f", "␀␈␡"),
        ("a\tb\nc", "a\tb\nc"),
        ("\u202eevil", "�evil"),
        ("\u2066x\u2069", "�x�"),
        ("a\u2028b", "a\nb"),
        ("\ud83d", "�"),
    ],
)
def test_controls_become_visible(text: str, shown: str) -> None:
    assert plain(text) == shown


@pytest.mark.parametrize(
    "text", ["🏳️‍🌈", "👩🏽‍💻", "שלום", "漢字", "e\u0301", "[/INST]", "a\u00adb"]
)
def test_text_of_every_script_stays_as_it_is(text: str) -> None:
    assert plain(text) == text


@given(st.text())
def test_no_control_character_is_ever_left(text: str) -> None:
    left = {char for char in plain(text) if unicodedata.category(char) in ("Cc", "Cs")}
    assert left <= {"\n", "\t"}


@given(st.text())
def test_it_can_be_applied_twice(text: str) -> None:
    assert plain(plain(text)) == plain(text)


def test_a_title_is_one_line_of_limited_width() -> None:
    assert one_line("  a\n b\tc ", 20) == "a b c"
    assert one_line("word " * 20, 12) == "word word w…"
