"""From a target to a draft for it: write, train, measure, save. May be interrupted anywhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from fsd_chat.decoding.model import CachedModel
from fsd_chat.distill.attention import share_heads, share_no_heads
from fsd_chat.distill.card import Findings, card
from fsd_chat.distill.display import Display, duration
from fsd_chat.distill.memory import check_memory, rows_that_fit
from fsd_chat.distill.prompts import read_prompts
from fsd_chat.distill.recipe import Recipe, State, Workplace
from fsd_chat.distill.records import Conversation, Shelf, Stored, save_whole
from fsd_chat.distill.student import (
    begin,
    begin_as,
    check_head,
    chosen_layers,
    feature_levels,
    save_draft,
    trainable,
)
from fsd_chat.distill.training import Course, HeldOut, Training, held_out
from fsd_chat.distill.turns import Turns, turns_of
from fsd_chat.distill.writing import Kind, Style, Writer
from fsd_chat.engine.messages import ModelSource
from fsd_chat.measure.cost import costs
from fsd_chat.models.errors import ModelError
from fsd_chat.models.loading import LoadedModel, load_model, own_layers
from fsd_chat.models.pair import Pair
from fsd_chat.models.small_draft import SmallDraft

TEMPERATURE = 0.7
"""At which overlap is trained and measured."""
CHECKPOINT_S = 40.0
"""What an interruption loses at most, and a little."""
WRITING_SHARE = 0.6
"""Of the hours; at a small budget more data is worth more than more passes."""
MEASURED_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 9)
GLANCE = 48
"""Held-out conversations that are looked at on the way."""
GLANCES = 12

Stopped = Callable[[], bool]


class Interrupted(Exception):
    """Somebody asked to stop; everything is kept."""


class Distillation:
    """One recipe, in its folder."""

    def __init__(self, recipe: Recipe, further: bool, show: Display, stopped: Stopped) -> None:
        """Loads the target. Raises ModelError for anything that cannot work."""
        self._recipe, self._show, self._stopped = recipe, show, stopped
        self._place = Workplace(Path(recipe.out))
        self._place.check(recipe, further)
        self._questions = read_prompts(Path(recipe.prompts)) if recipe.prompts else None
        self._loaded = loaded = self._load(recipe.target)
        self._turns: Turns = turns_of(loaded.tokenizer, loaded.name, loaded.end_ids)
        text = loaded.model.config.get_text_config()
        self._layers = chosen_layers(recipe.layers, text.num_hidden_layers)
        self._recorded = feature_levels(text.num_hidden_layers)
        self._style = self._fitting_style()
        self._course = Course()
        need = check_memory(loaded, self._layers, self._head_size, self._course)
        show.say(f"training needs about {need / 1e9:.1f} GB of memory")
        check_head(loaded.model)
        self._state: State = self._place.begin(recipe)

    def _load(self, location: str) -> LoadedModel:
        recipe, show = self._recipe, self._show
        source = ModelSource(
            location=location,
            device=recipe.device,
            dtype=recipe.dtype,
            trust_remote_code=recipe.trust_remote_code,
        )
        return load_model(source, lambda stage, done: show.show(stage, done or 0.0, None))

    def _fitting_style(self) -> Style:
        """Conversations that the target can hold."""
        style = Style()
        turns = max(kind.turns for kind in style.kinds)
        around = len(self._turns.opening) + len(self._turns.to_assistant)
        between = (turns - 1) * (len(self._turns.to_user) + len(self._turns.to_assistant))
        room = self._loaded.context - around
        if room > style.longest + between:
            return style
        if room < 16:
            raise ModelError(
                "context",
                f"{self._loaded.name} holds {self._loaded.context} tokens, of which its template "
                f"takes {around}; too few are left for a conversation",
            )
        question = min(room // 4, style.question_tokens)
        answer = min(room // 2, max(kind.answer_tokens for kind in style.kinds))
        return Style(question_tokens=question, kinds=(Kind(1, answer),))

    @property
    def _head_size(self) -> int:
        rows: int = self._loaded.model.config.get_text_config().vocab_size
        wanted = self._recipe.head
        size = rows // 6 if wanted is None else wanted or rows
        return min(rows, size)

    def run(self) -> HeldOut:
        """Everything that is still to be done; returns what the draft was found to be.

        Raises Interrupted, ModelError and OSError; whatever it is, what was done is kept.
        """
        self._write()
        draft = self._draft()
        training = self._train(draft)
        return self._finish(training)

    # Writing

    def _write(self) -> None:
        recipe, state, shelf = self._recipe, self._state, Shelf(self._place.conversations)
        state.tokens = sum(Stored(shelf.files).lengths)
        if self._written_enough():
            return
        batch = rows_that_fit(self._loaded, self._style, recipe.batch)
        share_heads(self._loaded.model)
        try:
            writer = Writer(
                self._loaded.model,
                self._turns,
                self._recorded,
                self._style,
                batch,
                # Another seed in every start: else it would write the same again.
                recipe.seed + 7919 * len(shelf.files),
                self._asked(len(shelf.files)),
                (1.0, TEMPERATURE),
            )
            self._write_on(writer, shelf)
        finally:
            share_no_heads(self._loaded.model)

    def _write_on(self, writer: Writer, shelf: Shelf) -> None:
        state = self._state
        ended: list[Conversation] = []
        last = kept = time.monotonic()
        new, before, began = 0, state.tokens, state.writing_s
        while not self._written_enough(new) and not self._stopped():
            found = writer.step()
            ended += found
            new += sum(len(one.tokens) for one in found)
            now = time.monotonic()
            state.writing_s, last = state.writing_s + now - last, now
            rate = (state.tokens + new - before) / max(state.writing_s - began, 1e-3)
            self._show_writing(new, rate, writer.rows)
            if now - kept > CHECKPOINT_S:
                shelf.add(ended, writer.begun)
                state.tokens, new, ended, kept = state.tokens + new, 0, [], now
                self._place.save(state)
        # Answers cut short are good as far as they go, and may be all there is.
        shelf.add([*ended, *writer.begun])
        state.tokens = sum(Stored(shelf.files).lengths)
        self._place.save(state)
        self._show.say(f"written: {state.tokens:,} tokens in {duration(state.writing_s)}")
        self._halt()

    def _written_enough(self, new: int = 0) -> bool:
        recipe, state = self._recipe, self._state
        if recipe.tokens is not None:
            return state.tokens + new >= recipe.tokens
        assert recipe.hours is not None
        return state.writing_s >= recipe.hours * 3600 * WRITING_SHARE

    def _asked(self, start: int) -> Iterator[Sequence[int]] | None:
        """The user's questions, again and again: every answer is another sample."""
        if self._questions is None:
            return None
        tokenizer, longest = self._loaded.tokenizer, self._style.question_tokens * 4
        ids = [tokenizer(one, add_special_tokens=False).input_ids for one in self._questions]
        return _again_and_again([one[:longest] for one in ids if one], start)

    def _show_writing(self, new: int, rate: float, rows: int) -> None:
        recipe, state = self._recipe, self._state
        if recipe.tokens is not None:
            done = (state.tokens + new) / recipe.tokens
            left = (recipe.tokens - state.tokens - new) / rate if rate else None
        else:
            assert recipe.hours is not None
            budget = recipe.hours * 3600
            done = state.writing_s / (budget * WRITING_SHARE)
            left = budget - state.writing_s
        figures = (f"{state.tokens + new:,} tokens", f"{rate:.0f} a second", f"{rows} at once")
        self._show.show("writing", min(1.0, done), left, *figures)

    # Training

    def _draft(self) -> SmallDraft:
        vocabulary = self._vocabulary()
        levels = self._recorded if self._recipe.features else ()
        torch.manual_seed(self._recipe.seed)
        draft = begin(self._loaded.model, self._layers, levels, vocabulary)
        if self._recipe.start is not None:
            begin_as(draft, self._load(self._recipe.start))
        return draft

    def _vocabulary(self) -> Tensor | None:
        """Ids of the draft's head: what a template needs, then the most frequent ones."""
        rows: int = self._loaded.model.config.get_text_config().vocab_size
        if self._head_size >= rows:
            return None
        place = self._place.vocabulary
        if not place.exists():
            stored = Stored(Shelf(self._place.conversations).files, held_out=False)
            counts: Counter[int] = Counter()
            for tokens in stored.tokens():
                counts.update(tokens.tolist())
            turns = self._turns
            first = [*turns.end_ids, *turns.opening, *turns.to_assistant, *turns.to_user]
            often = [id for id, _ in counts.most_common()]
            ids = list(dict.fromkeys([*first, *often, *range(rows)]))[: self._head_size]
            save_whole({"vocabulary": torch.tensor(sorted(ids))}, place)
        return load_file(place)["vocabulary"].to(self._loaded.device)

    def _train(self, draft: SmallDraft) -> Training:
        files = Shelf(self._place.conversations).files
        learnt, unseen = Stored(files, held_out=False), Stored(files, held_out=True)
        self._unseen = unseen
        if not learnt or not unseen:
            raise ModelError(
                "bad-request",
                f"{len(learnt)} conversations to learn from and {len(unseen)} to be held out are "
                "too few; give more --tokens, more --hours or more --prompts",
            )
        training = Training(draft, learnt, self._course, self._recipe.seed)
        if self._place.checkpoint.exists():
            training.load(self._place.checkpoint)
        self._train_on(training)
        return training

    def _train_on(self, training: Training) -> None:
        state = self._state
        state.stage = "train"
        overlap = self._glance(training.draft)
        last = kept = time.monotonic()
        glanced, began, before = self._trained(training), last, training.tokens
        while (done := self._trained(training)) < 1 and not self._stopped():
            training.step(done)
            if done - glanced > 1 / GLANCES:
                overlap, glanced = self._glance(training.draft), done
            now = time.monotonic()
            state.training_s, last = state.training_s + now - last, now
            rate = (training.tokens - before) / (now - began)
            self._show.show(
                "training",
                done,
                self._left(training, rate),
                f"{rate:.0f} tokens/s",
                f"loss {training.loss:.3f}",
                f"held-out overlap {overlap:.3f}",
            )
            if now - kept > CHECKPOINT_S:
                self._keep(training)
                kept = now
        self._keep(training)
        self._halt()

    def _glance(self, draft: SmallDraft) -> float:
        return held_out(draft, self._unseen.first(GLANCE), TEMPERATURE, 1).overlap[0]

    def _trained(self, training: Training) -> float:
        recipe = self._recipe
        if recipe.hours is not None:
            return self._state.training_s / (recipe.hours * 3600 * (1 - WRITING_SHARE))
        return training.tokens / (recipe.passes * training.pass_tokens)

    def _left(self, training: Training, rate: float) -> float:
        recipe = self._recipe
        if recipe.hours is not None:
            return recipe.hours * 3600 * (1 - WRITING_SHARE) - self._state.training_s
        return (recipe.passes * training.pass_tokens - training.tokens) / max(rate, 1e-3)

    def _keep(self, training: Training) -> None:
        training.save(self._place.checkpoint)
        self._state.steps, self._state.trained = training.steps, training.tokens
        self._place.save(self._state)

    def _halt(self) -> None:
        if self._stopped():
            raise Interrupted

    # The end

    def _finish(self, training: Training) -> HeldOut:
        recipe, loaded, draft = self._recipe, self._loaded, training.draft
        self._show.show("measuring", 0.5, None)
        found = held_out(draft, self._unseen, TEMPERATURE, self._course.depth)
        draft = draft.to(loaded.dtype).eval()
        text = self._unseen[0].tokens[: loaded.context - max(MEASURED_WIDTHS)].tolist()
        measured = costs(*self._cached(draft), text, MEASURED_WIDTHS)
        findings = Findings(
            target=loaded.name,
            layers=self._layers,
            levels=draft.levels,
            head_ids=len(draft.head.weight),
            parameters=sum(one.numel() for one in trainable(draft)),
            conversations=len(Stored(Shelf(self._place.conversations).files)),
            loss=training.loss,
            temperature=TEMPERATURE,
            held_out=found,
            costs=measured,
            device=str(loaded.device),
            dtype=str(loaded.dtype).removeprefix("torch."),
        )
        save_draft(draft, loaded.tokenizer, loaded.name, self._place.out, torch.bfloat16)
        (self._place.out / "README.md").write_text(
            card(recipe, self._state, findings), encoding="utf-8"
        )
        self._state.stage = "done"
        self._place.save(self._state)
        return found

    def _cached(self, draft: SmallDraft) -> tuple[CachedModel, CachedModel]:
        """As the chat would have them."""
        target = self._loaded
        own = replace(target, model=draft.model, small=draft, layers=own_layers(draft.model, draft))
        pair = Pair(self._recipe.out, target, own, False, target.vocabulary, target.context)
        cached, drafting = pair.cached()
        assert drafting is not None
        return cached, drafting


def _again_and_again(questions: Sequence[Sequence[int]], start: int) -> Iterator[Sequence[int]]:
    if not questions:
        return
    number = start
    while True:
        yield questions[number % len(questions)]
        number += 1
