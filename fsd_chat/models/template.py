"""From a conversation to the token ids a model was trained to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from jinja2.exceptions import TemplateError

from fsd_chat.models.errors import ModelError


class Turn(Protocol):
    @property
    def role(self) -> str: ...

    @property
    def content(self) -> str: ...


def render(tokenizer: Any, messages: Sequence[Turn], plain: bool) -> list[int]:
    """The prompt's ids. A trailing assistant message is left open, to be continued.

    plain: no template; the contents follow each other as they are. Raises ModelError if the model
    has no chat template or the template refuses the conversation.
    """
    if plain:
        ids: list[int] = tokenizer("".join(message.content for message in messages)).input_ids
        return ids
    if not tokenizer.chat_template:
        raise ModelError(
            "template",
            "the model has no chat template (a base model?); choose an instruct model, or use "
            "--plain to send the text as it is",
        )
    turns = [{"role": message.role, "content": message.content} for message in messages]
    try:
        return _apply(tokenizer, turns)
    except TemplateError as error:
        folded = _without_system(turns)
        if folded == turns:
            raise _refused(error) from error
    try:
        return _apply(tokenizer, folded)
    except TemplateError as error:
        raise _refused(error) from error


def _apply(tokenizer: Any, turns: list[dict[str, str]]) -> list[int]:
    continued = bool(turns) and turns[-1]["role"] == "assistant"
    ids: list[int] = tokenizer.apply_chat_template(
        turns,
        add_generation_prompt=not continued,
        continue_final_message=continued,
        tokenize=True,
        return_dict=False,
    )
    return ids


def _refused(error: TemplateError) -> ModelError:
    return ModelError("template", f"the model's chat template refuses this conversation: {error}")


def _without_system(turns: list[dict[str, str]]) -> list[dict[str, str]]:
    """The system message put before the first user message, for templates without that role."""
    system = "\n\n".join(turn["content"] for turn in turns if turn["role"] == "system")
    rest = [dict(turn) for turn in turns if turn["role"] != "system"]
    for turn in rest:
        if system and turn["role"] == "user":
            turn["content"] = f"{system}\n\n{turn['content']}"
            break
    return rest


def knows_thinking(tokenizer: Any) -> bool:
    """Whether the model may think aloud between `<think>` and `</think>`."""
    return "<think>" in (tokenizer.chat_template or "") or "<think>" in tokenizer.get_vocab()


def end_of_turn_ids(tokenizer: Any) -> frozenset[int]:
    """Special tokens that the template puts right after an assistant's words."""
    if not tokenizer.chat_template:
        return frozenset()
    mark = "zqxj"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": mark}]
    try:
        text: str = tokenizer.apply_chat_template(turns, tokenize=False)
    except TemplateError:
        return frozenset()
    after = tokenizer(text.rpartition(mark)[2], add_special_tokens=False).input_ids
    special = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    return frozenset(after[:1]) & special
