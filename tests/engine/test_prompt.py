from __future__ import annotations

from collections.abc import Sequence

import pytest

from fsd_chat.engine.messages import Message, Role
from fsd_chat.engine.prompt import PromptTooLong, fit


def conversation(*contents: str, system: str = "") -> list[Message]:
    roles: tuple[Role, Role] = ("user", "assistant")
    turns = [Message(role=roles[i % 2], content=text) for i, text in enumerate(contents)]
    return [Message(role="system", content=system), *turns] if system else turns


def one_token_per_character(messages: Sequence[Message]) -> list[int]:
    return [ord(character) for message in messages for character in message.content]


def read(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def test_a_conversation_that_fits_is_left_whole() -> None:
    prompt = fit(one_token_per_character, conversation("aa", "bb", "cc"), context=10, reply=1)
    assert (read(prompt.ids), prompt.dropped_turns) == ("aabbcc", 0)


def test_no_more_of_the_oldest_turns_are_dropped_than_needed_and_each_with_its_answer() -> None:
    messages = conversation("aa", "bb", "cc", "dd", "ee")
    prompt = fit(one_token_per_character, messages, context=8, reply=2)
    assert (read(prompt.ids), prompt.dropped_turns) == ("ccddee", 2)


def test_the_system_message_stays_when_turns_are_dropped() -> None:
    messages = conversation("aa", "bb", "cc", system="SS")
    prompt = fit(one_token_per_character, messages, context=6, reply=1)
    assert (read(prompt.ids), prompt.dropped_turns) == ("SScc", 2)


def test_room_for_the_reply_is_at_most_a_quarter_of_the_context() -> None:
    messages = conversation("aa", "bb", "cc")
    assert fit(one_token_per_character, messages, context=8, reply=1000).dropped_turns == 0
    assert fit(one_token_per_character, messages, context=7, reply=1000).dropped_turns == 0
    assert fit(one_token_per_character, messages, context=6, reply=1000).dropped_turns == 2


def test_the_last_turn_may_fill_all_but_one_token_of_the_context() -> None:
    prompt = fit(one_token_per_character, conversation("a" * 99), context=100, reply=50)
    assert len(prompt.ids) == 99


def test_a_last_message_that_does_not_fit_is_refused_with_both_numbers() -> None:
    with pytest.raises(PromptTooLong, match=r"100 tokens .* holds 100"):
        fit(one_token_per_character, conversation("x", "y", "a" * 100), context=100, reply=50)


def test_a_partial_answer_at_the_end_is_kept_with_its_question() -> None:
    messages = conversation("aa", "bb", "cc", "dd")
    prompt = fit(one_token_per_character, messages, context=5, reply=1)
    assert read(prompt.ids) == "ccdd"


def test_a_long_conversation_is_rendered_few_times() -> None:
    rendered = 0

    def counting(messages: Sequence[Message]) -> list[int]:
        nonlocal rendered
        rendered += 1
        return one_token_per_character(messages)

    fit(counting, conversation(*["abc"] * 2001), context=1000, reply=100)
    assert rendered < 15
