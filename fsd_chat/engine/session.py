"""One loaded pair, writing one reply after another: a conversation in, events out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fsd_chat.decoding.model import NonFiniteTarget
from fsd_chat.engine.caches import Caches
from fsd_chat.engine.failures import EngineError
from fsd_chat.engine.inbox import ReplyControl
from fsd_chat.engine.messages import (
    Finished,
    Generate,
    LoadPair,
    Message,
    Ready,
    Started,
)
from fsd_chat.engine.prompt import Prompt, PromptTooLong, fit
from fsd_chat.engine.translation import check
from fsd_chat.engine.writing import Emit, Writing
from fsd_chat.models.errors import ModelError
from fsd_chat.models.pair import PROMPT_LOOKUP, Pair, load_pair
from fsd_chat.models.template import knows_thinking, render


def load(command: LoadPair, progress: Callable[[str, float | None], None]) -> Session:
    """Load the pair that `command` names. Raises EngineError where it is known what is wrong."""
    with _understood():
        return Session(load_pair(command, progress))


def ready(pair: Pair) -> Ready:
    """What the interface needs to know of a loaded pair."""
    target, draft = pair.target, pair.draft
    lookup = [PROMPT_LOOKUP] if pair.prompt_lookup else []
    return Ready(
        name=pair.name,
        target=target.name,
        draft=" + ".join([*lookup, *([draft.name] if draft else [])]) or None,
        device=str(target.device),
        dtype=str(target.dtype).removeprefix("torch."),
        vocabulary=pair.vocabulary,
        context=pair.context,
        target_revision=target.revision,
        draft_revision=draft.revision if draft else None,
        thinking=knows_thinking(target.tokenizer),
        notices=pair.notices,
    )


class Session:
    """Owns the caches of `pair` and the text that is in them."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.caches = Caches(pair)

    def generate(self, control: ReplyControl, emit: Emit) -> Finished:
        """Write the reply that `control` asks for; emits Started and all after it but the last,
        which it returns.

        Raises EngineError for what is wrong with the request, and whatever the models raise.
        However it ends, the caches stay good for the next reply.
        """
        command = control.command
        check(command)
        prompt = self._prompt(command)
        writing = Writing(self.pair, self.caches, control, prompt.ids, emit)
        try:
            self.caches.turn_to(prompt.ids)
            emit(
                Started(
                    request=command.request,
                    prompt_tokens=len(prompt.ids),
                    cached_tokens=self.caches.target.length,
                    seed=writing.seed,
                    dropped_turns=prompt.dropped_turns,
                )
            )
            reason = writing.write()
        except Exception as error:
            # Some layers may have read a token that others have not, and NaN spreads.
            self.caches.forget()
            if isinstance(error, NonFiniteTarget):
                raise EngineError("non-finite", str(error)) from error
            raise
        finally:
            self.caches.roll_back()
        return writing.finished(reason)

    def _prompt(self, command: Generate) -> Prompt:
        def rendered(messages: Sequence[Message]) -> list[int]:
            return render(self.pair.target.tokenizer, messages, command.plain)

        reply = command.sampling.max_tokens
        try:
            with _understood():
                prompt = fit(rendered, command.messages, self.pair.context, reply)
        except PromptTooLong as error:
            raise EngineError("context", str(error)) from error
        if not prompt.ids:
            raise EngineError("bad-request", "there is nothing to reply to: the prompt is empty")
        return prompt


@contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        raise EngineError(error.kind, str(error)) from error
