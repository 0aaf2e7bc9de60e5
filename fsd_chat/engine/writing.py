"""One reply on its way from the decoding loop's rounds to events."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing

from fsd_chat.decoding.lookahead import Recorded
from fsd_chat.decoding.loop import Reply, decode, prefill
from fsd_chat.decoding.model import CachedModel
from fsd_chat.decoding.records import Round as DecodedRound
from fsd_chat.decoding.rules import TARGET_ONLY
from fsd_chat.decoding.settings import LiveKnob
from fsd_chat.decoding.stopping import Stopping
from fsd_chat.engine.caches import Caches
from fsd_chat.engine.failures import EngineError
from fsd_chat.engine.inbox import ReplyControl
from fsd_chat.engine.messages import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Generate,
    KnobSet,
    Prefill,
    Round,
)
from fsd_chat.engine.reply_text import ReplyText
from fsd_chat.engine.thinking import CLOSE, OPEN, ThinkingSplit
from fsd_chat.engine.translation import decoding_knob, decoding_sampling, seed_of, token_record
from fsd_chat.models.pair import Pair
from fsd_chat.models.text import TextStream

Emit = Callable[[Event], None]

CHUNK_ON_CPU, CHUNK = 64, 512
"""Prompt tokens read at once; between two chunks a reply can be stopped."""
TAIL = 16
"""So many tokens tell how the text before a reply ends."""


class Writing:
    """Reads the prompt, writes the reply, and says so as it goes."""

    def __init__(
        self,
        pair: Pair,
        caches: Caches,
        control: ReplyControl,
        prompt: Sequence[int],
        emit: Emit,
    ) -> None:
        """Raises EngineError for settings that cannot be; the caches are not touched yet."""
        command, sampling = control.command, control.command.sampling
        self.caches = caches
        self.control = control
        self.request = command.request
        self.emit = emit
        self.seed = seed_of(sampling)
        self.said = 0
        self._end_ids = pair.target.end_ids
        self._stream = _text_stream(pair, command, prompt)
        self._text = ReplyText(self._stream.step, sampling.stop, _thinking(pair, command, prompt))
        self._wanted = command.knob
        self._live = LiveKnob(decoding_knob(command.knob))
        self._reply = Reply(
            knob=self._live,
            sampling=decoding_sampling(sampling),
            stopping=Stopping(self._end_ids, sampling.max_tokens, self._text.watch),
            seed=self.seed,
            exact_prefix=sampling.exact_prefix,
            lookahead=Recorded(command.draft_lengths) if command.draft_lengths else None,
            learned=caches.learned,
        )

    def write(self) -> FinishReason:
        """Round after round until the reply is over or stopped. Raises what the models raise."""
        self.emit(KnobSet(request=self.request, index=0, knob=self._wanted))
        self._turn_the_knob()
        if not self._read(self._behind(by=0)):
            return "stopped"
        with closing(self._rounds()) as rounds:
            while not self.control.stopped:
                self._turn_the_knob()
                # Else the first draft after a stretch without would be one huge step.
                if not self._read(self._behind(by=CHUNK_ON_CPU)):
                    break
                round = next(rounds)
                self._tell(round)
                if round.finish is not None:
                    return round.finish
        return "stopped"

    def finished(self, reason: FinishReason) -> Finished:
        """The end of the reply, with the text held back until now."""
        rest = self._text.finish(self._stream.flush())
        return Finished(
            request=self.request,
            reason=reason,
            text=rest.answer,
            reasoning=rest.reasoning,
            stop_string=self._text.stop_string if reason == "stop-string" else None,
        )

    def _rounds(self) -> Generator[DecodedRound, None, None]:
        caches = self.caches
        return decode(caches.target, caches.drafter, caches.committed, self._reply)

    def _turn_the_knob(self) -> None:
        """Take over the knob as it stands; the next round reads it."""
        if self.control.knob is self._wanted:
            return
        self._wanted = self.control.knob
        try:
            self._live.current = decoding_knob(self._wanted)
        except EngineError as error:
            self.emit(Failed(kind=error.kind, message=f"{error}; the knob stays as it was"))
        else:
            self.emit(KnobSet(request=self.request, index=self.said, knob=self._wanted))

    def _behind(self, by: int) -> list[CachedModel]:
        """The models that lack more than `by` tokens of the text and are going to be asked."""
        unread_by_design = len(self.caches.committed) - 1
        drafting = self._live.current.rule != TARGET_ONLY
        return [
            model
            for model in self.caches.models
            if unread_by_design - model.length > by
            and (model is self.caches.target or (drafting and model.limit > unread_by_design))
        ]

    def _read(self, models: Sequence[CachedModel]) -> bool:
        """Let `models` read the text up to its last token; False if stopped meanwhile."""
        text = self.caches.committed[:-1]
        total = sum(len(text) - model.length for model in models)
        done = 0
        if total:
            self.emit(Prefill(request=self.request, done=0, total=total))
        for step in self._chunks(models, text):
            done += step
            self.emit(Prefill(request=self.request, done=done, total=total))
            if self.control.stopped:
                return False
        return not self.control.stopped

    def _chunks(self, models: Sequence[CachedModel], text: Sequence[int]) -> Iterator[int]:
        for model in models:
            before = model.length
            chunk = CHUNK_ON_CPU if model.device.type == "cpu" else CHUNK
            for length in prefill(model, text, chunk):
                yield length - before
                before = length

    def _tell(self, round: DecodedRound) -> None:
        pieces, certain = self._text.take()
        # An end token is not told to the text, so it has no piece.
        pieces += [""] * (len(round.tokens) - len(pieces))
        self.said += len(round.tokens)
        self.emit(
            Round(
                request=self.request,
                index=round.index,
                tokens=tuple(map(token_record, round.tokens, pieces)),
                text=certain.answer,
                reasoning=certain.reasoning,
                drafted=round.drafted,
                draft_s=round.draft_s,
                verify_s=round.verify_s,
                total_s=round.total_s,
            )
        )


def _continues(command: Generate) -> bool:
    """Whether the reply goes on in the middle of a text rather than beginning one."""
    last = command.messages[-1]
    return command.plain or (last.role == "assistant" and last.content != "")


def _text_stream(pair: Pair, command: Generate, prompt: Sequence[int]) -> TextStream:
    stream = TextStream(pair.target.tokenizer)
    if _continues(command):
        # Whether a token starts with a space depends, with sentencepiece, on what stands before it.
        for token in prompt[-TAIL:]:
            stream.step(token)
    return stream


def _thinking(pair: Pair, command: Generate, prompt: Sequence[int]) -> ThinkingSplit:
    if _continues(command):
        before = command.messages[-1].content.lstrip()
        inside = before.startswith(OPEN) and CLOSE not in before
        return ThinkingSplit("reasoning" if inside else "answer")
    tail = pair.target.tokenizer.decode(prompt[-TAIL:], skip_special_tokens=False)
    return ThinkingSplit("reasoning" if tail.rstrip().endswith(OPEN) else "start")
