from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_chat.engine.thinking import Split, ThinkingSplit, Where, held_back


def split(text: str, size: int, where: Where = "start") -> Split:
    splitter = ThinkingSplit(where)
    parts = [splitter.feed(text[i : i + size]) for i in range(0, len(text), size)]
    parts.append(splitter.flush())
    return Split("".join(p.answer for p in parts), "".join(p.reasoning for p in parts))


sizes = pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 100])


@sizes
def test_a_block_at_the_head_is_reasoning_however_it_is_cut(size: int) -> None:
    assert split("<think>\nwhy\nnot</think>\n\nYes.", size) == Split("Yes.", "why\nnot")


@sizes
def test_white_space_before_the_block_is_dropped(size: int) -> None:
    assert split(" \n<think>a</think>b", size) == Split("b", "a")


@sizes
def test_a_block_that_the_prompt_opened_needs_no_opening_tag(size: int) -> None:
    assert split("\nhm</think>\nYes.", size, "reasoning") == Split("Yes.", "hm")


@sizes
def test_an_unfinished_block_is_all_reasoning(size: int) -> None:
    assert split("<think>a </thin", size) == Split("", "a </thin")


@sizes
def test_a_tag_in_the_answer_is_text(size: int) -> None:
    text = "Write <think>x</think> like this."
    assert split(text, size) == Split(text, "")
    assert split(text, size, "answer") == Split(text, "")
    assert split("<think>a</think>b <think>c</think>", size) == Split("b <think>c</think>", "a")


@sizes
def test_a_continued_answer_may_begin_with_the_word(size: int) -> None:
    assert split("<think>x</think>", size, "answer") == Split("<think>x</think>", "")


@sizes
def test_nothing_is_lost_from_what_only_looks_like_a_tag(size: int) -> None:
    assert split(" <thinker> <", size) == Split(" <thinker> <", "")


@given(st.text(alphabet="<>/think \n", max_size=40), st.integers(1, 9))
def test_how_the_text_is_cut_makes_no_difference(text: str, size: int) -> None:
    assert split(text, size) == split(text, max(1, len(text)))


@given(st.text(alphabet="ab", max_size=10))
def test_text_is_held_back_exactly_while_it_may_still_become_what_is_wanted(text: str) -> None:
    wanted = "aab"
    held = held_back(text, wanted)
    longest = max((n for n in range(3) if n == 0 or text.endswith(wanted[:n])), default=0)
    assert held == longest
