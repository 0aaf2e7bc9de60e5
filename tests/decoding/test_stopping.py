"""When a reply is over, and what of a round still stands."""

from __future__ import annotations

import pytest
from table_models import TableModel, draft_for, write_reply

from fsd_chat.decoding.drafting import ModelDrafter
from fsd_chat.decoding.settings import Knob, Sampling
from fsd_chat.decoding.stopping import Stopping

END, TURN = 7, 9


def stopping(max_tokens: int = 100) -> Stopping:
    return Stopping(frozenset({END, TURN}), max_tokens)


def test_a_round_without_an_end_stands_whole() -> None:
    assert stopping().cut(0, [1, 2, 3]) == (3, None)


@pytest.mark.parametrize("end", [END, TURN])
def test_any_end_token_of_the_list_ends_the_reply_and_what_follows_was_never_said(end: int) -> None:
    assert stopping().cut(0, [1, end, 3]) == (2, "end")
    assert stopping().cut(5, [1, 2, end]) == (3, "end")


def test_the_first_of_two_end_tokens_counts() -> None:
    assert stopping().cut(0, [1, TURN, END, 2]) == (2, "end")


def test_no_more_than_the_maximum_is_said() -> None:
    assert stopping(10).cut(8, [1, 2, 3]) == (2, "length")
    assert stopping(10).cut(7, [1, 2, 3]) == (3, "length")
    assert stopping(10).cut(6, [1, 2, 3]) == (3, None)
    assert stopping(0).cut(0, [1]) == (0, "length")


def test_an_end_token_at_the_maximum_is_an_end_and_beyond_it_does_not_count() -> None:
    assert stopping(3).cut(0, [1, 2, END]) == (3, "end")
    assert stopping(2).cut(0, [1, 2, END]) == (2, "length")


def test_the_text_is_told_of_every_token_that_stands_but_the_end() -> None:
    told: list[int] = []

    def watch(token: int) -> bool:
        told.append(token)
        return token == 5

    watched = Stopping(frozenset({END}), 100, watch)
    assert watched.cut(0, [1, 2]) == (2, None)
    assert watched.cut(2, [3, 5, 6]) == (2, "stop-string")
    assert told == [1, 2, 3, 5]
    assert watched.cut(0, [4, END]) == (2, "end")
    assert told == [1, 2, 3, 5, 4]


def test_the_text_is_not_told_of_tokens_over_the_maximum() -> None:
    told: list[int] = []
    watched = Stopping(frozenset(), 2, lambda token: bool(told.append(token)))

    assert watched.cut(0, [1, 2, 3]) == (2, "length")
    assert told == [1, 2]


def text_ends_with(stop: list[int]) -> tuple[list[int], Stopping]:
    """A stop string of several tokens, as the text behind them would see it."""
    said: list[int] = []

    def watch(token: int) -> bool:
        said.append(token)
        return said[-len(stop) :] == stop

    return said, Stopping(frozenset(), 200, watch)


@pytest.mark.parametrize("drafts", [0, 1, 2, 5])
def test_a_stop_string_over_several_tokens_is_found_wherever_rounds_begin(drafts: int) -> None:
    greedy, strict = Sampling(temperature=0.0), Knob(rule="exact")
    plain = [1, 2]
    write_reply(TableModel(5, seed=1), None, plain, sampling=greedy, max_tokens=60)
    stop = plain[20:23]
    ends = next(i for i in range(5, 61) if plain[i - 3 : i] == stop)
    said, watching = text_ends_with(stop)

    committed = [1, 2]
    target = TableModel(5, seed=1)
    rounds = write_reply(
        target,
        ModelDrafter(draft_for(target)),
        committed,
        knob=strict,
        sampling=greedy,
        lookahead=drafts,
        max_tokens=60,
        watch=watching.watch,
    )

    assert rounds[-1].finish == "stop-string"
    assert committed == plain[:ends]
    assert committed[2:] == said
    assert sum(len(round.tokens) for round in rounds) == len(said)
