"""Draft, verify, commit: whole replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from table_models import TableModel, check_caches, draft_for, write_reply
from torch import Tensor

from fsd_chat.decoding.drafting import Drafter, FirstThatHas, ModelDrafter, PromptLookup, Proposal
from fsd_chat.decoding.lookahead import Fixed, Recorded
from fsd_chat.decoding.loop import Reply, decode, prefill
from fsd_chat.decoding.model import NonFiniteTarget
from fsd_chat.decoding.penalties import Penalties
from fsd_chat.decoding.records import Round
from fsd_chat.decoding.rules import RULES
from fsd_chat.decoding.settings import Knob, LiveKnob, Sampling
from fsd_chat.decoding.stopping import Stopping

CPU = torch.device("cpu")
PROMPT = [1, 2, 3]
GREEDY = Sampling(temperature=0.0)
PENALISED = Sampling(
    temperature=0.0,
    repetition_penalty=1.4,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    logit_bias={4: 1.0},
)
EXACT = Knob(rule="exact")


def greedy_without_drafts(
    model: TableModel, prompt: list[int], count: int, sampling: Sampling
) -> list[int]:
    """One row, one argmax, one token, and again."""
    text = list(prompt)
    seen = Penalties(sampling, prompt, model.vocabulary, CPU)
    for _ in range(count):
        row = seen.apply(model.logits_after(text)[None], torch.empty(0))
        text.append(int(row.argmax()))
        seen.commit(text[-1:])
    return text


def said(rounds: Sequence[Round]) -> list[int]:
    return [token.id for round in rounds for token in round.tokens]


def drafters(target: TableModel) -> dict[str, Drafter | None]:
    return {
        "nothing": None,
        "a perfect model": ModelDrafter(draft_for(target, noise=0)),
        "a model": ModelDrafter(draft_for(target)),
        "another model": ModelDrafter(TableModel(target.vocabulary, seed=77)),
        "the prompt": PromptLookup(target.vocabulary, CPU),
        "the prompt or a model": FirstThatHas(
            [PromptLookup(target.vocabulary, CPU), ModelDrafter(draft_for(target))]
        ),
    }


def test_prefill_reads_in_chunks_and_tells_how_far_it_is() -> None:
    model = TableModel(5, seed=1)
    text = [1, 2, 3, 4, 0, 1, 2]

    assert list(prefill(model, text, chunk=3)) == [3, 6, 7]
    assert model.tokens == text


def test_prefill_reads_only_what_the_cache_lacks() -> None:
    model = TableModel(5, seed=1)
    list(prefill(model, [1, 2, 3]))

    assert list(prefill(model, [1, 2, 3, 4, 0], chunk=10)) == [5]
    assert model.forwarded == 5
    assert list(prefill(model, [1, 2, 3, 4, 0])) == []


def test_a_prefill_that_is_left_halfway_can_be_taken_up_again() -> None:
    model = TableModel(5, seed=1)
    reading = prefill(model, [1, 2, 3, 4, 0], chunk=2)
    next(reading)
    reading.close()

    assert model.tokens == [1, 2]
    assert list(prefill(model, [1, 2, 3, 4, 0], chunk=2)) == [4, 5]
    assert model.forwarded == 5


@pytest.mark.parametrize("cached", [0, 1, 3])
def test_decoding_refuses_a_cache_that_does_not_hold_the_prompt_but_for_its_last_token(
    cached: int,
) -> None:
    target = TableModel(5, seed=1)
    list(prefill(target, PROMPT[:cached]))
    reply = Reply(LiveKnob(Knob()), GREEDY, Stopping(frozenset(), 5), seed=0)

    with pytest.raises(ValueError, match="all but the last of 3 tokens"):
        next(decode(target, None, list(PROMPT), reply))


def test_without_a_drafter_every_token_is_the_targets() -> None:
    rounds = write_reply(TableModel(6, seed=1), None, list(PROMPT), max_tokens=7)

    assert [len(round.tokens) for round in rounds] == [1] * 7
    assert {token.origin for round in rounds for token in round.tokens} == {"target"}
    assert {(round.drafted, round.verified, round.accepted) for round in rounds} == {(0, 0, 0)}


def test_target_only_never_asks_the_drafter() -> None:
    target = TableModel(6, seed=1)
    draft = draft_for(target)

    rounds = write_reply(
        target, ModelDrafter(draft), list(PROMPT), knob=Knob(rule="target-only"), max_tokens=7
    )

    assert draft.forwarded == 0
    assert {token.origin for round in rounds for token in round.tokens} == {"target"}


def test_a_target_that_cannot_forget_is_never_given_drafts() -> None:
    target = TableModel(6, seed=1)
    target.can_roll_back = False
    draft = draft_for(target)

    rounds = write_reply(target, ModelDrafter(draft), list(PROMPT), max_tokens=7)

    assert draft.forwarded == 0
    assert len(said(rounds)) == 7


def test_a_drafter_that_has_nothing_leaves_the_round_to_the_target() -> None:
    target = TableModel(500, seed=1)

    rounds = write_reply(target, PromptLookup(500, CPU), list(PROMPT), max_tokens=4)

    assert [round.drafted for round in rounds] == [0] * 4


def test_rounds_are_indexed_by_their_first_token_and_count_what_was_observed() -> None:
    target = TableModel(6, seed=1)
    committed = list(PROMPT)

    rounds = write_reply(
        target, ModelDrafter(draft_for(target)), committed, knob=EXACT, max_tokens=40
    )

    index = 0
    for round in rounds:
        assert round.index == index
        index += len(round.tokens)
        kept = [t for t in round.tokens if t.origin in ("accepted", "fuzzy")]
        rejected = [t for t in round.tokens if t.origin == "recovered"]
        assert (round.accepted, round.verified) == (len(kept), len(kept) + len(rejected))
        assert round.verified <= round.drafted
    assert committed == PROMPT + said(rounds)
    assert index == 40
    assert 0 < sum(round.accepted for round in rounds) < sum(round.drafted for round in rounds)


def test_a_round_that_kept_everything_has_one_bonus_and_does_not_count_it_as_accepted() -> None:
    target = TableModel(6, seed=1)

    rounds = write_reply(
        target, ModelDrafter(draft_for(target, noise=0)), list(PROMPT), lookahead=3, max_tokens=12
    )

    for round in rounds:
        assert [token.origin for token in round.tokens] == ["accepted"] * 3 + ["bonus"]
        assert (round.accepted, round.verified, round.drafted) == (3, 3, 3)


def test_times_of_a_round_add_up() -> None:
    target = TableModel(6, seed=1)

    for round in write_reply(target, ModelDrafter(draft_for(target)), list(PROMPT)):
        assert round.draft_s > 0
        assert round.verify_s > 0
        assert round.draft_s + round.verify_s <= round.total_s


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 3, 4, 5, 9])
def test_no_more_is_drafted_than_may_still_be_said(max_tokens: int) -> None:
    target = TableModel(6, seed=1)
    committed = list(PROMPT)

    rounds = write_reply(
        target,
        ModelDrafter(draft_for(target, noise=0)),
        committed,
        lookahead=5,
        max_tokens=max_tokens,
    )

    assert len(committed) == len(PROMPT) + max_tokens
    assert rounds[-1].finish == "length"
    assert sum(round.drafted for round in rounds) <= max_tokens
    left = max_tokens
    for round in rounds:
        assert round.drafted == max(0, min(5, left - 1))
        left -= len(round.tokens)


@pytest.mark.parametrize("limit", [4, 5, 8, 13])
def test_the_targets_context_is_filled_and_never_overrun(limit: int) -> None:
    target = TableModel(6, seed=1, limit=limit)
    committed = list(PROMPT)

    rounds = write_reply(
        target, ModelDrafter(draft_for(target)), committed, lookahead=5, max_tokens=100
    )

    assert rounds[-1].finish == "context"
    assert limit <= len(committed) <= limit + 1


def test_past_the_drafts_context_the_target_goes_on_alone() -> None:
    target = TableModel(6, seed=1)
    draft = draft_for(target, noise=0, limit=10)
    committed = list(PROMPT)

    rounds = write_reply(target, ModelDrafter(draft), committed, lookahead=4, max_tokens=30)

    assert len(committed) == 33
    assert rounds[0].drafted == 4
    assert max(round.drafted for round in rounds if round.index + len(PROMPT) >= 10) == 0
    assert max(round.index + len(PROMPT) + round.drafted for round in rounds if round.drafted) <= 10


def forced(tokens: list[int], vocabulary: int = 10) -> TableModel:
    """A model that can only continue with `tokens`, and then with 0 for ever."""
    model = TableModel(vocabulary, seed=1)

    def logits_after(context: Sequence[int]) -> Tensor:
        at = len(context) - len(PROMPT)
        row = torch.full((vocabulary,), -50.0)
        row[tokens[at] if at < len(tokens) else 0] = 50.0
        return row

    model.logits_after = logits_after  # type: ignore[method-assign]
    return model


END, TURN = 8, 9


@pytest.mark.parametrize("end", [END, TURN])
@pytest.mark.parametrize("position", range(6))
@pytest.mark.parametrize("drafted", [True, False])
def test_nothing_after_an_end_token_is_committed_counted_or_cached(
    end: int, position: int, drafted: bool
) -> None:
    """The draft agrees throughout, so the end stands at every place of an accepted block, and as
    the bonus; where it disagrees the end is the recovered token."""
    tokens = [4, 5, 6, 7, 4, 5, 6]
    tokens[position] = end
    target = forced(tokens)
    draft = forced(tokens if drafted else [3] * 7)
    committed = list(PROMPT)

    rounds = write_reply(
        target, ModelDrafter(draft), committed, lookahead=4, end_ids=[END, TURN], max_tokens=50
    )

    assert committed == PROMPT + tokens[: position + 1]
    assert rounds[-1].finish == "end"
    assert said(rounds) == committed[len(PROMPT) :]
    assert sum(r.accepted for r in rounds) == (position + 1 - position // 5 if drafted else 0) - (
        drafted and position % 5 == 4
    )


def test_an_end_token_in_the_prompt_does_not_end_the_reply() -> None:
    committed = [END, 1, END]

    rounds = write_reply(forced([4, 5, END]), None, committed, end_ids=[END])

    assert said(rounds) == [4, 5, END]


@pytest.mark.parametrize("prefix", [0, 1, 4, 7, 100])
def test_the_first_tokens_of_a_reply_are_exact_across_rounds(prefix: int) -> None:
    target = TableModel(6, seed=2)
    knob = Knob(rule="fsd", threshold=0.7)

    rounds = write_reply(
        target,
        ModelDrafter(draft_for(target, noise=2)),
        list(PROMPT),
        knob=knob,
        max_tokens=40,
        exact_prefix=prefix,
    )

    tokens = [token for round in rounds for token in round.tokens]
    first_fuzzy = next((i for i, t in enumerate(tokens) if t.origin == "fuzzy"), 1000)
    last_recovered = max((i for i, t in enumerate(tokens) if t.origin == "recovered"), default=-1)
    assert first_fuzzy >= prefix > last_recovered
    if prefix >= 7:
        assert last_recovered >= 0
    if prefix < 40:
        assert first_fuzzy < 40


def test_the_knob_is_read_once_per_round_and_governs_all_of_it() -> None:
    target = TableModel(6, seed=2)
    live = LiveKnob(Knob(rule="fsd-paper", threshold=0.0))
    turns = {0: 0.0, 5: 0.7, 8: 0.0, 11: 0.7}
    seen: list[Round] = []

    def turn(round: Round) -> None:
        seen.append(round)
        if len(seen) in turns:
            live.current = replace(live.current, threshold=turns[len(seen)])

    write_reply(
        target,
        ModelDrafter(draft_for(target, noise=2)),
        list(PROMPT),
        knob=live,
        max_tokens=40,
        after_round=turn,
    )

    threshold = 0.0
    for i, round in enumerate(seen):
        threshold = turns.get(i, threshold)
        assert round.knob.threshold == threshold
        if round.drafted:
            assert round.accepted == (round.drafted if threshold else 0)
    assert {round.knob.threshold for round in seen} == {0.0, 0.7}


def test_drafting_can_be_turned_off_and_on_again_and_the_draft_catches_up() -> None:
    target = TableModel(6, seed=2)
    draft = draft_for(target, noise=0)
    live = LiveKnob(EXACT)
    rules = ["exact"] * 3 + ["target-only"] * 6 + ["exact"] * 20
    done = 0

    def turn(round: Round) -> None:
        nonlocal done
        done += 1
        live.current = Knob(rule=rules[done])

    rounds = write_reply(
        target,
        ModelDrafter(draft),
        list(PROMPT),
        knob=live,
        max_tokens=50,
        after_round=turn,
    )

    assert [round.drafted for round in rounds[:10]] == [3] * 3 + [0] * 6 + [3]
    assert all(round.accepted == round.drafted for round in rounds)


def test_the_lookahead_follows_its_name_in_the_knob_and_keeps_its_state_under_the_same() -> None:
    target = TableModel(6, seed=2)
    live = LiveKnob(Knob(rule="exact", lookahead="heuristic"))
    names = ["heuristic", "heuristic", "heuristic", "2", "paper", "0", "heuristic"]
    done = 0

    def turn(round: Round) -> None:
        nonlocal done
        done += 1
        live.current = Knob(rule="exact", lookahead=names[min(done, len(names) - 1)])

    rounds = write_reply(
        target,
        ModelDrafter(draft_for(target, noise=0)),
        list(PROMPT),
        knob=live,
        lookahead=None,
        max_tokens=60,
        after_round=turn,
    )

    assert [round.drafted for round in rounds[:8]] == [5, 7, 9, 2, 5, 0, 11, 13]


def test_what_a_lookahead_has_learned_stays_for_the_next_reply() -> None:
    target, learned = TableModel(6, seed=2), {}
    lengths = []
    for _ in range(2):
        rounds = write_reply(
            target,
            ModelDrafter(draft_for(target, noise=0)),
            list(PROMPT),
            knob=Knob(rule="exact", lookahead="heuristic"),
            lookahead=None,
            learned=learned,
            max_tokens=14,
        )
        lengths += [round.drafted for round in rounds]
        target.rollback(0)

    assert lengths[:2] == [5, 7]
    assert lengths[len(lengths) // 2] == 9


def test_a_lookahead_given_with_the_reply_overrides_the_knobs() -> None:
    target = TableModel(6, seed=2)

    rounds = write_reply(
        target,
        ModelDrafter(draft_for(target)),
        list(PROMPT),
        knob=Knob(lookahead="5"),
        lookahead=Recorded([1, 0, 3]),
        max_tokens=12,
    )

    assert [round.drafted for round in rounds[:4]] == [1, 0, 3, 0]


def test_recorded_lengths_stay_with_their_rounds_where_a_rule_drafts_nothing() -> None:
    target = TableModel(6, seed=2)
    rules = ["exact", "target-only", "exact", "target-only", "exact"]
    live = LiveKnob(Knob(rule=rules[0]))
    done = 0

    def turn(round: Round) -> None:
        nonlocal done
        done += 1
        live.current = Knob(rule=rules[done % len(rules)])

    rounds = write_reply(
        target,
        ModelDrafter(draft_for(target)),
        list(PROMPT),
        knob=live,
        lookahead=Recorded([3, 0, 2, 0, 1]),
        max_tokens=40,
        after_round=turn,
    )

    assert [round.drafted for round in rounds[:5]] == [3, 0, 2, 0, 1]


def test_the_same_seed_and_draft_lengths_write_the_same_reply_and_another_seed_another() -> None:
    def reply(seed: int, lengths: list[int]) -> list[Round]:
        target = TableModel(20, seed=2)
        return write_reply(
            target,
            ModelDrafter(draft_for(target)),
            list(PROMPT),
            lookahead=Recorded(lengths),
            seed=seed,
            max_tokens=40,
        )

    first = reply(5, [3, 1, 4, 0, 2] * 6)
    again = reply(5, [round.drafted for round in first])

    assert [round.tokens for round in first] == [round.tokens for round in again]
    assert said(reply(6, [3, 1, 4, 0, 2] * 6)) != said(first)


class Noting(PromptLookup):
    """Notes what the loop tells a drafter."""

    def begin(self, sampling: Sampling, prompt: Sequence[int], seed: int) -> None:
        self.seed = seed
        self.prompt = list(prompt)
        self.certain: list[int] = []
        super().begin(sampling, prompt, seed)

    def commit(self, committed: Sequence[int], new: int) -> None:
        self.certain += committed[len(committed) - new :]
        super().commit(committed, new)


def test_a_drafter_is_told_of_every_committed_token_once_and_of_no_other() -> None:
    drafter = Noting(6, CPU)

    target = TableModel(6, seed=2, order=1, sharpness=3)

    rounds = write_reply(target, drafter, list(PROMPT), knob=EXACT, max_tokens=40)

    assert drafter.certain == said(rounds)
    assert any(round.accepted < round.drafted for round in rounds)
    assert any(len(round.tokens) > 1 for round in rounds)


def test_a_drafter_begins_with_the_prompt_and_a_seed_that_is_not_the_targets() -> None:
    seeds = set()
    for seed in [*range(50), 2**31, 2**62 + 1]:
        drafter = Noting(6, CPU)
        write_reply(TableModel(6, seed=1), drafter, list(PROMPT), seed=seed, max_tokens=1)
        assert drafter.prompt == PROMPT
        assert drafter.seed != seed
        seeds.add(drafter.seed)
    assert len(seeds) == 52


class Failing(TableModel):
    """Raises in the middle of its n-th forward, with half of the tokens already in the cache."""

    failing_at = -1
    calls = 0

    def forward(self, tokens: Tensor, rows: int) -> Tensor:
        self.calls += 1
        if self.calls == self.failing_at:
            super().forward(tokens[: max(1, tokens.shape[0] // 2)], 1)
            raise MemoryError("no memory left on the device")
        return super().forward(tokens, rows)


@pytest.mark.parametrize("failing", ["target", "draft"])
@pytest.mark.parametrize("call", [2, 3, 6, 9])
def test_an_error_inside_a_model_leaves_both_caches_fit_to_go_on(failing: str, call: int) -> None:
    expected = greedy_without_drafts(TableModel(7, seed=5), PROMPT, 40, GREEDY)
    target = Failing(7, seed=5)
    draft = Failing(7, seed=5)
    draft.table = target.table + torch.randn(
        target.table.shape, generator=torch.Generator().manual_seed(1)
    )
    (target if failing == "target" else draft).failing_at = call
    drafter = ModelDrafter(draft)
    committed = list(PROMPT)

    with pytest.raises(MemoryError):
        write_reply(target, drafter, committed, knob=EXACT, sampling=GREEDY, max_tokens=40)

    check_caches(target, drafter, committed)
    assert committed == expected[: len(committed)]
    left = 43 - len(committed)
    write_reply(target, drafter, committed, knob=EXACT, sampling=GREEDY, max_tokens=left)
    assert committed == expected


def test_an_error_in_the_text_leaves_the_round_unsaid_and_the_caches_fit_to_go_on() -> None:
    target = TableModel(7, seed=5)
    drafter = ModelDrafter(draft_for(target))
    committed = list(PROMPT)
    told = 0

    def watch(token: int) -> bool:
        nonlocal told
        told += 1
        if told == 6:
            raise RuntimeError("the text cannot be decoded")
        return False

    with pytest.raises(RuntimeError):
        write_reply(target, drafter, committed, watch=watch)

    check_caches(target, drafter, committed)


@pytest.mark.parametrize("rounds_read", [1, 2, 5])
def test_a_reply_left_between_two_rounds_can_be_gone_on_with(rounds_read: int) -> None:
    expected = greedy_without_drafts(TableModel(7, seed=5), PROMPT, 40, GREEDY)
    target = TableModel(7, seed=5)
    drafter = ModelDrafter(draft_for(target))
    committed = list(PROMPT)
    list(prefill(target, PROMPT[:-1]))
    reply = Reply(LiveKnob(EXACT), GREEDY, Stopping(frozenset(), 40), seed=0, lookahead=Fixed(3))

    rounds = decode(target, drafter, committed, reply)
    for _ in range(rounds_read):
        next(rounds)
    rounds.close()

    check_caches(target, drafter, committed)
    left = 43 - len(committed)
    write_reply(target, drafter, committed, knob=EXACT, sampling=GREEDY, max_tokens=left)
    assert committed == expected


@pytest.mark.parametrize("drafted", [True, False])
def test_a_target_row_that_is_no_distribution_stops_the_reply_and_keeps_what_was_said(
    drafted: bool,
) -> None:
    target = TableModel(7, seed=5)
    whole = TableModel.logits_after

    def breaking(context: Sequence[int]) -> Tensor:
        return whole(target, context) * (torch.nan if len(context) >= 12 else 1)

    target.logits_after = breaking  # type: ignore[method-assign]
    drafter = ModelDrafter(draft_for(TableModel(7, seed=5))) if drafted else None
    committed = list(PROMPT)

    with pytest.raises(NonFiniteTarget):
        write_reply(target, drafter, committed)

    check_caches(target, drafter, committed)
    assert 3 < len(committed) <= 12


def test_a_draft_that_breaks_down_slows_the_reply_and_does_not_change_it() -> None:
    expected = greedy_without_drafts(TableModel(7, seed=5), PROMPT, 30, GREEDY)
    target = TableModel(7, seed=5)
    draft = draft_for(target, noise=0)
    draft.table = draft.table * torch.inf
    committed = list(PROMPT)

    rounds = write_reply(
        target,
        ModelDrafter(draft),
        committed,
        knob=Knob(threshold=0.6),
        sampling=GREEDY,
        max_tokens=30,
    )

    assert committed == expected
    assert sum(round.accepted for round in rounds) == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", RULES)
def test_a_banned_token_is_never_said_under_any_rule(rule: str, temperature: float) -> None:
    """The draft, which does not know of the ban, wants nothing else."""
    target, draft = TableModel(6, seed=5), TableModel(6, seed=5)
    draft.table[:, 3] += 10

    class Unaware(ModelDrafter):
        def begin(self, sampling: Sampling, prompt: Sequence[int], seed: int) -> None:
            super().begin(replace(sampling, logit_bias={}, top_k=0), prompt, seed)

    sampling = Sampling(temperature, top_k=4, logit_bias={3: -torch.inf})
    rounds = write_reply(
        target,
        Unaware(draft),
        list(PROMPT),
        knob=Knob(rule=rule, threshold=1.0),
        sampling=sampling,
        max_tokens=30,
    )

    assert 3 not in said(rounds)
    assert any(token.rejected == 3 for round in rounds for token in round.tokens)


def test_the_first_token_after_the_prompt_is_penalised_for_the_prompt() -> None:
    target = TableModel(4, seed=1)
    target.table = torch.tensor([0.5, 0.1, 1.0, 0.4]).expand(997, -1)

    free = write_reply(target, None, [1, 2], sampling=GREEDY, max_tokens=1)
    target.rollback(0)
    repeating_costs = Sampling(temperature=0.0, repetition_penalty=4.0)
    penalised = write_reply(target, None, [1, 2], sampling=repeating_costs, max_tokens=1)

    assert (said(free), said(penalised)) == ([2], [0])


class Wide:
    """A drafter on a device of its own, as far as the loop can tell."""

    limit = 1_000

    def __init__(self) -> None:
        self.moved = 0

    def begin(self, sampling: Sampling, prompt: Sequence[int], seed: int) -> None: ...

    def commit(self, committed: Sequence[int], new: int) -> None: ...

    def propose(self, committed: Sequence[int], count: int) -> Proposal:
        rows = torch.full((count, 6), 1 / 6, dtype=torch.float32)
        wide = self

        class Elsewhere(Proposal):
            def to(self, device: torch.device) -> Proposal:
                wide.moved += 1
                return super().to(device)

        return Elsewhere(
            torch.zeros(count, dtype=torch.long),
            rows,
            rows.log(),
            rows.log(),
            torch.ones(count, dtype=torch.bool),
        )


def test_a_proposal_is_moved_to_the_targets_device() -> None:
    drafter = Wide()

    rounds = write_reply(TableModel(6, seed=1), drafter, list(PROMPT), max_tokens=10)

    assert drafter.moved == sum(round.drafted > 0 for round in rounds)


@pytest.mark.parametrize("sampling", [GREEDY, PENALISED], ids=["plain", "penalised"])
@pytest.mark.parametrize("drafts", [1, 2, 5])
@pytest.mark.parametrize("knob", [EXACT, Knob(rule="fsd", threshold=0.0)], ids=["exact", "fsd"])
def test_greedy_speculation_says_what_greedy_decoding_says(
    knob: Knob, drafts: int, sampling: Sampling
) -> None:
    expected = greedy_without_drafts(TableModel(9, seed=3), PROMPT, 40, sampling)

    for name in drafters(TableModel(9, seed=3)):
        target = TableModel(9, seed=3)
        committed = list(PROMPT)
        write_reply(
            target,
            drafters(target)[name],
            committed,
            knob=knob,
            sampling=sampling,
            lookahead=drafts,
            max_tokens=40,
        )
        assert committed == expected, name


ALIKE = [
    Sampling(temperature=0.0),
    Sampling(temperature=0.0, repetition_penalty=1.1),
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2),
    Sampling(temperature=0.7, top_k=5, top_p=0.9, min_p=0.05),
]
EVERY_KNOB = [
    EXACT,
    *[Knob(rule="fsd", threshold=T) for T in (0.0, 1e-4, 0.1, 0.7)],
    *[Knob(rule="fsd-paper", threshold=T) for T in (1e-4, 0.1, 0.7)],
]


@pytest.mark.parametrize("sampling", ALIKE, ids=str)
@pytest.mark.parametrize("knob", EVERY_KNOB, ids=lambda knob: f"{knob.rule} {knob.threshold}")
def test_a_draft_that_is_the_target_is_always_accepted(knob: Knob, sampling: Sampling) -> None:
    target = TableModel(11, seed=4)

    rounds = write_reply(
        target,
        ModelDrafter(draft_for(target, noise=0)),
        list(PROMPT),
        knob=knob,
        sampling=sampling,
        max_tokens=30,
    )

    assert all(round.accepted == round.verified == round.drafted for round in rounds)
    assert "fuzzy" not in [token.origin for round in rounds for token in round.tokens]
    assert sum(round.drafted for round in rounds) >= 20
