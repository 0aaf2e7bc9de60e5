from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fsd_chat.engine.failures import EngineError
from fsd_chat.engine.messages import (
    Knob,
    Sampling,
)
from fsd_chat.engine.session import ready

if TYPE_CHECKING:
    from conftest import OpenPair, Reply, TinyModels

GREEDY = Sampling(temperature=0.0)


def test_a_reply_is_told_up_to_its_end_token_and_the_end_token_has_no_text(
    pair: OpenPair, say: type[Reply], tiny: TinyModels
) -> None:
    reply = say(pair(tiny.reciting("hello", "Helo!")), "hi")
    assert (reply.text, reply.finished.reason) == ("Helo!", "end")
    assert [token.text for round in reply.rounds for token in round.tokens] == [*"Helo!", ""]
    assert [round.index for round in reply.rounds] == list(range(6))
    assert reply.origins == {"target"}


def test_nothing_after_an_end_token_in_the_middle_of_a_round_is_told_or_cached(
    pair: OpenPair, say: type[Reply], tiny: TinyModels
) -> None:
    target = tiny.reciting("short", "Helo!")
    session = pair(target, tiny.circling("talkative", "Helo!?"))
    reply = say(session, "hi", knob=Knob(rule="exact", lookahead="9"))
    assert (reply.text, reply.finished.reason) == ("Helo!", "end")
    assert len(session.caches.committed) == reply.started.prompt_tokens + 6


@pytest.mark.parametrize("lookahead", ["0", "1", "2", "5"])
def test_a_character_of_several_tokens_is_told_whole(
    pair: OpenPair, say: type[Reply], tiny: TinyModels, lookahead: str
) -> None:
    target = tiny.reciting("emoji", "I 😀é語!")
    reply = say(pair(target, target), "hi", knob=Knob(rule="exact", lookahead=lookahead))
    assert reply.text == "I 😀é語!"
    assert not any("\ufffd" in round.text for round in reply.rounds)
    pieces = [token.text for round in reply.rounds for token in round.tokens]
    assert pieces[2:6] == ["", "", "", "😀"]


def test_an_incomplete_character_at_the_end_is_told_at_the_end(
    pair: OpenPair, say: type[Reply], tiny: TinyModels
) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=4)
    reply = say(pair(tiny.reciting("emoji", "I 😀é語!")), "hi", sampling=sampling)
    assert "".join(round.text for round in reply.rounds) == "I "
    assert (reply.finished.reason, reply.finished.text) == ("length", "\ufffd")


@pytest.mark.parametrize("lookahead", ["0", "1", "4", "9"])
def test_a_stop_string_across_tokens_and_rounds_is_cut_off(
    pair: OpenPair, say: type[Reply], tiny: TinyModels, lookahead: str
) -> None:
    target = tiny.reciting("stopping", ["a", "b", "ST", "OP", "c", "d"])
    session = pair(target, target)
    reply = say(
        session,
        "hi",
        knob=Knob(rule="exact", lookahead=lookahead),
        sampling=Sampling(temperature=0.0, stop=("never", "bSTO")),
    )
    assert (reply.text, reply.finished.reason) == ("a", "stop-string")
    assert reply.finished.stop_string == "bSTO"
    assert len(reply.tokens) == 4
    assert session.caches.committed[-1] == tiny.ids("OP")[0]


@pytest.mark.parametrize(
    "tokens",
    [
        ["<think>", "h", "m", "</think>", "Y", "e", "s"],
        ["<th", "ink>", "h", "m", "</think>", "Y", "e", "s"],
        ["<think>", "h", "m", "</th", "ink>", "Y", "e", "s"],
    ],
)
def test_reasoning_is_told_apart_from_the_answer(
    pair: OpenPair, say: type[Reply], tiny: TinyModels, tokens: list[str]
) -> None:
    reply = say(pair(tiny.reciting("thinker-" + tokens[0] + tokens[3][:4], tokens)), "hi")
    assert (reply.reasoning, reply.text) == ("hm", "Yes")


def test_reasoning_that_the_template_opens_needs_no_tag(
    pair: OpenPair, say: type[Reply], tiny: TinyModels
) -> None:
    template = byte_template() + "{% if add_generation_prompt %}<think>\n{% endif %}"
    target = tiny.reciting("opened", ["h", "m", "</think>", "Y"], chat_template=template)
    reply = say(pair(target), "hi")
    assert (reply.reasoning, reply.text) == ("hm", "Y")


def byte_template() -> str:
    return (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def test_a_reply_has_no_more_tokens_than_were_asked_for(
    pair: OpenPair, say: type[Reply], letters: Path
) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=10)
    reply = say(pair(letters, letters), "hi", sampling=sampling)
    assert (reply.text, reply.finished.reason) == ("abcdefghij", "length")


def test_a_reply_ends_where_the_context_does(
    pair: OpenPair, say: type[Reply], tiny: TinyModels
) -> None:
    session = pair(tiny.circling("narrow", "abcdefgh", context=64))
    reply = say(session, "hi")
    assert reply.finished.reason == "context"
    assert reply.started.prompt_tokens + len(reply.tokens) in (64, 65)


def test_the_oldest_turns_are_dropped_where_the_context_is_too_small(
    pair: OpenPair, say: type[Reply], tiny: TinyModels
) -> None:
    session = pair(tiny.circling("narrow", "abcdefgh", context=64))
    whole = say(session, "hi")
    reply = say(session, "o" * 60, "x", "hi")
    assert (whole.started.dropped_turns, reply.started.dropped_turns) == (0, 2)
    assert reply.started.prompt_tokens == whole.started.prompt_tokens


def test_a_prompt_that_cannot_fit_is_refused_with_both_numbers(
    pair: OpenPair, say: type[Reply], tiny: TinyModels
) -> None:
    session = pair(tiny.circling("narrow", "abcdefgh", context=64))
    with pytest.raises(EngineError, match=r"\d\d\d tokens .* holds 64") as refused:
        say(session, "o" * 200)
    assert refused.value.kind == "context"
    assert say(session, "hi").finished.reason == "context"


def test_a_draft_that_slips_is_corrected_by_the_target(
    pair: OpenPair, say: type[Reply], tiny: TinyModels
) -> None:
    target = tiny.reciting("spelling", "abcdef")
    draft = tiny.reciting("slipping", "abcdef", slips={"c": "x"})
    reply = say(pair(target, draft), "hi", knob=Knob(rule="exact", lookahead="5"))
    assert reply.text == "abcdef"
    first = reply.rounds[0]
    assert [token.origin for token in first.tokens] == [*["accepted"] * 3, "recovered"]
    assert (first.drafted, first.tokens[-1].rejected) == (5, tiny.ids("x")[0])
    assert first.tokens[-1].text == "d"


def test_prompt_lookup_drafts_without_a_model(
    pair: OpenPair, say: type[Reply], letters: Path
) -> None:
    session = pair(letters, "prompt-lookup")
    reply = say(session, "hi", sampling=Sampling(temperature=0.0, max_tokens=60))
    assert ready(session.pair).draft == "prompt-lookup"
    assert "accepted" in reply.origins
    assert reply.text == ("abcdefghijklmnopqrstuvwxyz" * 3)[:60]


def test_a_reply_repeats_with_its_seed_and_its_draft_lengths(
    pair: OpenPair, say: type[Reply], random_pair: tuple[Path, Path]
) -> None:
    session = pair(*random_pair)
    knob = Knob(rule="fsd", threshold=0.2, lookahead="heuristic")
    first = say(session, "hi", knob=knob, sampling=Sampling(max_tokens=30))
    lengths = tuple(round.drafted for round in first.rounds)
    again = say(
        session,
        "hi",
        knob=knob,
        sampling=Sampling(max_tokens=30, seed=first.started.seed),
        draft_lengths=lengths,
    )
    assert again.tokens == first.tokens
    assert tuple(round.drafted for round in again.rounds) == lengths
    other = say(session, "hi", knob=knob, sampling=Sampling(max_tokens=30))
    assert other.started.seed != first.started.seed
    assert other.tokens != first.tokens


def test_plain_text_is_continued_without_a_template(
    pair: OpenPair, say: type[Reply], letters: Path
) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=4)
    reply = say(pair(letters), "abc", sampling=sampling, plain=True)
    assert reply.started.prompt_tokens == 3
    assert reply.text == "defg"


def test_what_a_lookahead_has_learned_stays_for_the_pairs_next_reply(
    pair: OpenPair, say: type[Reply], tiny: TinyModels
) -> None:
    target = tiny.circling("talkative", "ab")
    session = pair(target, target)
    knob, sampling = (
        Knob(rule="exact", lookahead="heuristic"),
        Sampling(temperature=0, max_tokens=14),
    )
    first, second = (say(session, words, knob=knob, sampling=sampling) for words in ("hi", "ho"))
    assert [round.drafted for round in first.rounds] == [5, 7]
    assert second.rounds[0].drafted == 9
