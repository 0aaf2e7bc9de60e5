"""From a conversation to the ids the model was trained to read."""

from __future__ import annotations

import pytest
from models.conftest import TEMPLATE, byte_tokenizer

from fsd_chat.engine.messages import Message
from fsd_chat.models.errors import ModelError
from fsd_chat.models.template import end_of_turn_ids, knows_thinking, render

NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}" + TEMPLATE
)
USER = Message(role="user", content="hi")
SYSTEM = Message(role="system", content="be brief")


def text(template: str | None, *messages: Message, plain: bool = False) -> str:
    tokenizer = byte_tokenizer(template)
    return str(tokenizer.decode(render(tokenizer, messages, plain)))


def test_the_template_is_applied_and_the_answer_opened() -> None:
    expected = "<|system|>be brief<|end|><|user|>hi<|end|><|assistant|>"
    assert text(TEMPLATE, SYSTEM, USER) == expected


def test_a_trailing_reply_is_left_open_to_be_continued() -> None:
    begun = Message(role="assistant", content="once upon")
    assert text(TEMPLATE, USER, begun) == "<|user|>hi<|end|><|assistant|>once upon"


def test_a_template_without_a_system_role_gets_it_in_the_first_question() -> None:
    assert text(NO_SYSTEM, SYSTEM, USER) == "<|user|>be brief\n\nhi<|end|><|assistant|>"


def test_a_conversation_that_the_template_refuses_is_told_in_one_line() -> None:
    refusing = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ModelError, match="refuses this conversation: roles must alternate"):
        text(refusing, USER)


def test_a_model_without_a_template_is_refused_unless_the_text_goes_plain() -> None:
    with pytest.raises(ModelError, match="no chat template") as refused:
        text(None, USER)
    assert refused.value.kind == "template"
    assert "--plain" in str(refused.value)
    assert text(None, SYSTEM, USER, plain=True) == "be briefhi"


def test_the_end_of_a_turn_is_read_off_the_template() -> None:
    tokenizer = byte_tokenizer()
    assert end_of_turn_ids(tokenizer) == {tokenizer.convert_tokens_to_ids("<|end|>")}
    assert end_of_turn_ids(byte_tokenizer(None)) == frozenset()
    ends_in_words = "{% for m in messages %}{{ m.content }} over{% endfor %}"
    assert end_of_turn_ids(byte_tokenizer(ends_in_words)) == frozenset()


def test_thinking_is_known_by_its_tag() -> None:
    assert not knows_thinking(byte_tokenizer())
    assert knows_thinking(byte_tokenizer(TEMPLATE + "{# <think> #}"))
    assert knows_thinking(byte_tokenizer(extra=("<think>",)))
