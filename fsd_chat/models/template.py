"""From a conversation to the token ids a model was trained to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from jinja2.exceptions import TemplateError

from fsd_chat.models.errors import ModelError

THINK = ("<think>", "</think>")
BREAKS = (TemplateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""A template is somebody's program: it may refuse a conversation, or fall over it."""


class Turn(Protocol):
    @property
    def role(self) -> str: ...

    @property
    def content(self) -> str: ...


Turns = list[dict[str, str]]


def render(tokenizer: Any, messages: Sequence[Turn], plain: bool) -> list[int]:
    """The prompt's ids. A trailing assistant message is left open, to be continued.

    Control tokens that occur in the messages are read as ordinary text, so that nobody can end a
    turn by writing `<|im_end|>`; only the template's own are tokens.

    plain: no template; the contents follow each other as they are, control tokens included. Raises
    ModelError if the model has no chat template or the template refuses the conversation.
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
    _choose_control_tokens(tokenizer)
    turns = [{"role": message.role, "content": message.content} for message in messages]
    if turns and turns[-1] == {"role": "assistant", "content": ""}:
        turns.pop()
    return _render(tokenizer, turns)


def _render(tokenizer: Any, turns: Turns) -> list[int]:
    simple = simplified(turns)
    try:
        if simple == turns or _says_the_system_message(tokenizer, turns):
            return _tokenize(tokenizer, turns)
    except BREAKS as error:
        if simple == turns:
            raise _refused(error) from error
    try:
        return _tokenize(tokenizer, simple)
    except BREAKS as error:
        raise _refused(error) from error


def simplified(turns: Turns) -> Turns:
    """The same for templates that know no system role and want user and assistant to alternate:
    the system message stands before the first user message, and neighbours are joined."""
    system = [turn["content"] for turn in turns if turn["role"] == "system"]
    first = [{"role": "user", "content": "\n\n".join(system)}] if system else []
    joined: Turns = []
    for turn in (*first, *(turn for turn in turns if turn["role"] != "system")):
        if joined and joined[-1]["role"] == turn["role"]:
            joined[-1]["content"] += f"\n\n{turn['content']}"
        else:
            joined.append(dict(turn))
    return joined


def _says_the_system_message(tokenizer: Any, turns: Turns) -> bool:
    """Some templates pass over a role that they do not know."""
    text = tokenizer.apply_chat_template(turns, tokenize=False)
    return all(turn["content"].strip() in text for turn in turns if turn["role"] == "system")


def _tokenize(tokenizer: Any, turns: Turns) -> list[int]:
    if not turns or turns[-1]["role"] != "assistant":
        return _apply(tokenizer, turns, add_generation_prompt=True)
    if not turns[-1]["content"].lstrip().startswith(THINK[0]):
        try:
            return _apply(tokenizer, turns, continue_final_message=True)
        except ValueError:
            # The template changes what the assistant said.
            pass
    return _reopened(tokenizer, turns)


def _reopened(tokenizer: Any, turns: Turns) -> list[int]:
    """The prompt as it was before the assistant began, and then what it said: templates close or
    drop thoughts, so an unfinished one cannot be continued through them."""
    begun = _apply(tokenizer, turns[:-1], add_generation_prompt=True)
    said = turns[-1]["content"]
    if tokenizer.decode(begun[-8:]).rstrip().endswith(THINK[0]):
        said = said.lstrip().removeprefix(THINK[0]).lstrip("\n")
    ids: list[int] = tokenizer(said, add_special_tokens=False).input_ids
    return begun + ids


def _apply(tokenizer: Any, turns: Turns, **ending: bool) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(
        turns, tokenize=True, return_dict=False, sanitize_control_tokens=True, **ending
    )
    return ids


def _choose_control_tokens(tokenizer: Any) -> None:
    """Special tokens always are. Of the others those that the template writes, but for the marks of
    thinking: an assistant's own have to stay tokens."""
    if tokenizer.chat_control_tokens is None:
        template = _template(tokenizer)
        tokenizer.chat_control_tokens = [
            token
            for token in tokenizer.get_added_vocab()
            if token in template and token not in THINK and not token.isspace()
        ]


def _refused(error: Exception) -> ModelError:
    return ModelError("template", f"the model's chat template refuses this conversation: {error}")


def _template(tokenizer: Any) -> str:
    """The template's source, empty if there is none; a model may have several by name."""
    try:
        template: str = tokenizer.get_chat_template()
    except ValueError:
        return ""
    return template


def knows_thinking(tokenizer: Any) -> bool:
    """Whether the model may think aloud between `<think>` and `</think>`."""
    return THINK[0] in _template(tokenizer) or THINK[0] in tokenizer.get_added_vocab()


def end_of_turn_ids(tokenizer: Any) -> frozenset[int]:
    """Special tokens that the template puts right after an assistant's words."""
    mark = "zqxj"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": mark}]
    try:
        text: str = tokenizer.apply_chat_template(turns, tokenize=False)
    except BREAKS:
        return frozenset()
    after = text.rpartition(mark)[2].lstrip()
    first = tokenizer(after, add_special_tokens=False).input_ids[:1]
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    return frozenset(first) & special


def ids_in_use(tokenizer: Any) -> frozenset[int]:
    """Ids that the template writes into every conversation, and the end token."""
    turns = [{"role": role, "content": "a"} for role in ("user", "assistant", "user")]
    end = {tokenizer.eos_token_id} - {None}
    try:
        return frozenset(_apply(tokenizer, turns, add_generation_prompt=True)) | end
    except BREAKS:
        return frozenset(end)
