from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_chat.engine.reply_text import ReplyText
from fsd_chat.engine.thinking import Split, ThinkingSplit


def reply(pieces: Sequence[str], *stop: str) -> ReplyText:
    return ReplyText(lambda token: pieces[token], stop, ThinkingSplit())


def shown(text: ReplyText, tokens: int, rest: str = "") -> str:
    answer = ""
    for token in range(tokens):
        over = text.watch(token)
        answer += text.take()[1].answer
        if over:
            break
    return answer + text.finish(rest).answer


def test_text_is_shown_token_by_token_where_nothing_can_stop_it() -> None:
    text = reply(["He", "llo"])
    assert not text.watch(0)
    assert text.take() == (["He"], Split("He", ""))
    assert not text.watch(1)
    assert text.take() == (["llo"], Split("llo", ""))


def test_the_possible_start_of_a_stop_string_is_held_back_and_released() -> None:
    text = reply(["a#", "#b"], "###")
    text.watch(0)
    assert text.take() == (["a#"], Split("a", ""))
    text.watch(1)
    assert text.take() == (["#b"], Split("##b", ""))


def test_a_stop_string_across_tokens_ends_the_reply_and_is_cut_off() -> None:
    text = reply(["one #", "#", "# two"], "###")
    assert [text.watch(0), text.watch(1), text.watch(2)] == [False, False, True]
    assert text.stop_string == "###"
    assert text.take()[1] == Split("one ", "")
    assert text.finish("rest") == Split()


def test_the_earliest_of_several_stop_strings_wins() -> None:
    text = reply(["a END b STOP"], "STOP", "END")
    assert text.watch(0)
    assert (text.stop_string, text.take()[1].answer) == ("END", "a ")


def test_what_was_held_back_is_released_at_the_end() -> None:
    assert shown(reply(["a#", "#"], "###"), 2, rest="\ufffd") == "a##\ufffd"


def test_a_stop_string_inside_the_reasoning_ends_the_reply_too() -> None:
    text = reply(["<think>", "a", "!!"], "!!")
    assert [text.watch(i) for i in range(3)] == [False, False, True]
    assert text.take()[1] == Split("", "a")


@given(
    st.lists(st.text(alphabet="ab", max_size=3), max_size=12),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3),
)
def test_what_is_shown_is_the_text_up_to_the_first_stop_string_that_is_complete(
    pieces: list[str], stop: list[str]
) -> None:
    whole = ""
    for piece in pieces:
        whole += piece
        if any(one in whole for one in stop):
            break
    cuts = [whole.find(one) for one in stop if one in whole]
    assert shown(reply(pieces, *stop), len(pieces)) == whole[: min(cuts, default=len(whole))]


@pytest.mark.parametrize("stop", [(), ("###",)])
def test_every_token_has_a_piece_whatever_is_held_back(stop: tuple[str, ...]) -> None:
    text = reply(["", "#", "é"], *stop)
    for token in range(3):
        text.watch(token)
    assert text.take()[0] == ["", "#", "é"]
