from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fsd_chat.distill.student import begin, save_draft
from fsd_chat.engine.failures import EngineError
from fsd_chat.engine.inbox import ReplyControl
from fsd_chat.engine.messages import (
    Event,
    Knob,
    Prefill,
    Sampling,
)

if TYPE_CHECKING:
    from conftest import OpenPair, Reply, TinyModels


def stop(control: ReplyControl) -> None:
    control.stopped = True


@pytest.mark.parametrize("rounds", [1, 3])
def test_stopping_takes_effect_within_one_round(
    pair: OpenPair, say: type[Reply], letters: Path, rounds: int
) -> None:
    reply = say(pair(letters, letters), "hi", after=(rounds, stop))
    assert len(reply.rounds) == rounds
    assert reply.finished.reason == "stopped"


def test_stopping_takes_effect_within_one_chunk_of_the_prompt(
    pair: OpenPair, say: type[Reply], letters: Path
) -> None:
    def stop_at_the_second(event: Event, control: ReplyControl) -> None:
        if isinstance(event, Prefill) and event.done:
            control.stopped = True

    session = pair(letters, letters)
    reply = say(session, "x" * 1000, hook=stop_at_the_second)
    assert (reply.rounds, reply.finished.reason) == ([], "stopped")
    done = reply.of(Prefill)[-1]
    assert isinstance(done, Prefill)
    assert 0 < done.done < 200
    again = say(session, "x" * 1000, sampling=Sampling(temperature=0.0, max_tokens=3))
    assert again.started.cached_tokens == done.done
    assert again.text == "abc"


def test_a_reply_stopped_before_it_began_has_no_rounds(
    pair: OpenPair, say: type[Reply], letters: Path
) -> None:
    def stop_at_once(event: Event, control: ReplyControl) -> None:
        control.stopped = True

    reply = say(pair(letters), "hi", hook=stop_at_once)
    assert (reply.rounds, reply.finished.reason) == ([], "stopped")


def test_reading_the_prompt_is_told_from_nothing_to_all_of_it(
    pair: OpenPair, say: type[Reply], letters: Path
) -> None:
    reply = say(pair(letters, letters), "x" * 300, sampling=Sampling(temperature=0.0, max_tokens=2))
    told = [event for event in reply.events if isinstance(event, Prefill)]
    assert told[0].done == 0
    assert told[-1].done == told[-1].total == 2 * (reply.started.prompt_tokens - 1)
    assert [event.done for event in told] == sorted(event.done for event in told)


def test_the_next_turn_reads_only_what_is_new(
    pair: OpenPair, say: type[Reply], letters: Path
) -> None:
    session = pair(letters, letters)
    limit = Sampling(temperature=0.0, max_tokens=7)
    first = say(session, "hi", sampling=limit)
    second = say(session, "hi", first.text, "go on", sampling=limit)
    assert second.started.cached_tokens == first.started.prompt_tokens + 7 - 1
    told = second.of(Prefill)[-1]
    assert isinstance(told, Prefill)
    new = second.started.prompt_tokens - 1 - second.started.cached_tokens
    assert 2 * new <= told.total <= 2 * new + 3


def test_the_same_prompt_again_leaves_one_token_to_read(
    pair: OpenPair, say: type[Reply], letters: Path
) -> None:
    session = pair(letters, letters)
    limit = Sampling(temperature=0.0, max_tokens=7)
    first = say(session, "hi", sampling=limit)
    again = say(session, "hi", sampling=limit)
    assert again.started.cached_tokens == again.started.prompt_tokens - 1
    assert again.of(Prefill) == []
    assert again.text == first.text


def test_a_stopped_reply_stays_cached_for_the_turn_after_it(
    pair: OpenPair, say: type[Reply], letters: Path
) -> None:
    session = pair(letters, letters)
    stopped = say(session, "hi", after=(3, stop))
    assert stopped.finished.reason == "stopped"
    after_it = say(
        session, "hi", stopped.text, "more", sampling=Sampling(temperature=0.0, max_tokens=3)
    )
    expected = stopped.started.prompt_tokens + len(stopped.tokens) - 1
    assert after_it.started.cached_tokens == expected


def test_a_stopped_reply_can_be_continued_in_the_middle(
    pair: OpenPair, say: type[Reply], letters: Path
) -> None:
    session = pair(letters, letters)
    stopped = say(session, "hi", after=(2, stop))
    rest = say(session, "hi", stopped.text, sampling=Sampling(temperature=0.0, max_tokens=3))
    assert rest.started.cached_tokens == rest.started.prompt_tokens - 1
    assert (stopped.text + rest.text).startswith("abcdefgh")
    assert len(rest.text) == 3


@pytest.mark.parametrize("with_draft", [True, False])
def test_a_reply_from_kept_caches_equals_one_from_empty_caches(
    pair: OpenPair, say: type[Reply], random_pair: tuple[Path, Path], with_draft: bool
) -> None:
    target, draft = random_pair
    session = pair(target, draft if with_draft else None)
    limit = Sampling(temperature=0.0, max_tokens=20)
    first = say(session, "once", sampling=limit)
    for turns in (("once",), ("once", first.text, "more"), ("once upon",), ("x",), ("once",)):
        kept = say(session, *turns, sampling=limit)
        fresh = say(pair(target), *turns, sampling=limit)
        assert kept.tokens == fresh.tokens


def test_a_failure_in_the_middle_leaves_the_session_usable(
    pair: OpenPair,
    say: type[Reply],
    random_pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = pair(*random_pair)
    limit = Sampling(temperature=0.0, max_tokens=12)
    expected = say(session, "hi", sampling=limit).tokens
    assert session.caches.draft is not None
    model = session.caches.draft

    def fail(tokens: torch.Tensor, rows: int) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(model, "forward", fail)
    with pytest.raises(torch.OutOfMemoryError):
        say(session, "another", sampling=limit)
    assert session.caches.committed == []
    assert say(session, "hi", sampling=limit).tokens == expected


def test_a_target_that_gives_no_numbers_is_a_failure_of_its_own_kind(
    pair: OpenPair, say: type[Reply], tiny: TinyModels
) -> None:
    session = pair(tiny.broken("broken"))
    for _ in range(2):
        with pytest.raises(EngineError) as failure:
            say(session, "hi")
        assert failure.value.kind == "non-finite"
        assert session.caches.target.length == 0


@pytest.fixture
def made_for_it(random_pair: tuple[Path, Path], tmp_path: Path) -> Path:
    """A draft that reads the random target's hidden states."""
    target = AutoModelForCausalLM.from_pretrained(random_pair[0], dtype=torch.float32)
    draft = begin(target, (0, 1), (1, 2), None)
    torch.manual_seed(6)
    assert draft.fuse is not None
    assert draft.carry is not None
    for connection in (draft.fuse, draft.carry):
        torch.nn.init.normal_(connection.weight, std=0.003)
    save_draft(
        draft, AutoTokenizer.from_pretrained(random_pair[0]), "target", tmp_path, torch.float32
    )
    return tmp_path


def test_a_draft_made_for_its_target_says_in_a_second_turn_what_it_would_say_afresh(
    pair: OpenPair, say: type[Reply], random_pair: tuple[Path, Path], made_for_it: Path
) -> None:
    """Whatever was said, stopped, unsaid or only written by the target in between."""
    sampling = Sampling(temperature=0.7, max_tokens=14, seed=3)
    lengths = (3, 1, 2) * 14
    session = pair(random_pair[0], made_for_it)
    first = say(session, "one", sampling=sampling, draft_lengths=lengths)
    assert "accepted" in first.origins
    say(session, "two", sampling=sampling, after=(2, stop))
    say(session, "one", first.text, "more", sampling=sampling, knob=Knob(rule="target-only"))
    turns = ("one", first.text, "more", "yes", "and?")
    again = say(session, *turns, sampling=sampling, draft_lengths=lengths)
    assert again.started.cached_tokens > 10
    afresh = say(
        pair(random_pair[0], made_for_it), *turns, sampling=sampling, draft_lengths=lengths
    )
    assert again.tokens == afresh.tokens
    for ours, theirs in zip(again.rounds, afresh.rounds, strict=True):
        for one, other in zip(ours.tokens, theirs.tokens, strict=True):
            assert one.origin == other.origin
            assert one.draft_probability == pytest.approx(other.draft_probability, rel=1e-3)
