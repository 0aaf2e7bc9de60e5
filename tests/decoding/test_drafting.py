"""Where drafted tokens come from, and with which Q."""

from __future__ import annotations

import math

import pytest
import torch
from table_models import TableModel, draft_for, write_reply

from fsd_chat.decoding.distributions import filtered_logits, probabilities, raw_log_probabilities
from fsd_chat.decoding.drafting import FirstThatHas, ModelDrafter, PromptLookup, Proposal
from fsd_chat.decoding.penalties import Penalties
from fsd_chat.decoding.settings import Knob, Sampling

CPU = torch.device("cpu")
WARM = Sampling(temperature=0.8, top_k=5, repetition_penalty=1.3)


EVERY_FILTER = [
    Sampling(1.0),
    Sampling(0.0),
    Sampling(0.7, greedy_draft=True),
    Sampling(0.7, top_k=3),
    Sampling(1.3, top_p=0.8),
    Sampling(0.0, top_p=0.1),
    Sampling(1.0, min_p=0.2),
    Sampling(0.7, repetition_penalty=1.2, presence_penalty=0.5),
]


def begun(model: TableModel, prompt: list[int], sampling: Sampling = WARM) -> ModelDrafter:
    drafter = ModelDrafter(model)
    drafter.begin(sampling, prompt, seed=1)
    return drafter


def lookup(prompt: list[int], vocabulary: int = 50, longest: int = 3) -> PromptLookup:
    drafter = PromptLookup(vocabulary, CPU, longest)
    drafter.begin(WARM, prompt, seed=1)
    return drafter


def found(drafter: PromptLookup, committed: list[int], count: int = 4) -> list[int] | None:
    proposal = drafter.propose(committed, count)
    return None if proposal is None else proposal.tokens.tolist()


@pytest.mark.parametrize("greedy", [False, True])
def test_q_is_the_very_distribution_each_token_was_drawn_from(greedy: bool) -> None:
    sampling = Sampling(0.8, top_k=5, repetition_penalty=1.3, greedy_draft=greedy)
    model, prompt = TableModel(12, seed=1), [1, 2, 3]

    proposal = begun(model, prompt, sampling).propose(prompt, 4)

    tokens = proposal.tokens.tolist()
    for i, token in enumerate(tokens):
        logits = model.logits_after(prompt + tokens[:i])[None]
        seen = Penalties(sampling, prompt + tokens[:i], 12, CPU)
        filtered = filtered_logits(seen.apply(logits, torch.empty(0)), sampling)
        q = probabilities(filtered, 0.0 if greedy else sampling.temperature)
        assert torch.equal(proposal.drawn_from[i], q[0])
        assert torch.equal(proposal.log_raw[i], raw_log_probabilities(logits)[0])
        assert torch.equal(proposal.log_processed[i], raw_log_probabilities(filtered)[0])
        assert proposal.drawn_from[i, token] > 0
    assert proposal.finite.tolist() == [True] * 4


def test_drafts_are_sampled_in_proportion_to_q() -> None:
    model = TableModel(4, seed=2)
    sampling = Sampling(temperature=1.0)
    drafter = begun(model, [1], sampling)
    q = model.logits_after([1]).softmax(dim=-1)

    counts = torch.zeros(4)
    for _ in range(2_000):
        counts[drafter.propose([1], 1).tokens] += 1
        drafter.commit([1], 0)

    assert (counts / 2_000).tolist() == pytest.approx(q.tolist(), abs=0.04)


def test_a_greedy_draft_is_the_likeliest_token_and_its_q_a_point_mass() -> None:
    model = TableModel(12, seed=3)
    for sampling in (Sampling(1.0, greedy_draft=True), Sampling(0.0)):
        model.rollback(0)
        proposal = begun(model, [1, 2], sampling).propose([1, 2], 3)
        context = [1, 2]
        for token, q in zip(proposal.tokens.tolist(), proposal.drawn_from, strict=True):
            assert token == model.logits_after(context).argmax().item()
            assert (q.max().item(), q.sum().item()) == (1.0, 1.0)
            context.append(token)


def test_the_same_seed_drafts_the_same_and_another_one_differently() -> None:
    def drafts(seed: int) -> list[int]:
        drafter = ModelDrafter(TableModel(30, seed=4))
        drafter.begin(Sampling(1.5), [1], seed)
        tokens: list[int] = drafter.propose([1], 12).tokens.tolist()
        return tokens

    assert drafts(1) == drafts(1)
    assert drafts(1) != drafts(2)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("places", [slice(None), slice(3, 4), slice(5, 6)])
@pytest.mark.parametrize("sampling", EVERY_FILTER)
def test_a_draft_row_with_nan_or_infinity_is_marked_and_later_ones_still_come(
    sampling: Sampling, places: slice, broken: float
) -> None:
    model = TableModel(6, seed=5)
    row = model.table[1].clone()
    row[places] = broken
    rows = [model.table[0], row, model.table[2]]
    model.logits_after = lambda context: rows[len(context) - 2]  # type: ignore[method-assign]

    proposal = begun(model, [1, 2], sampling).propose([1, 2], 3)

    assert proposal.finite.tolist() == [True, False, True]
    assert all(0 <= token < 6 for token in proposal.tokens.tolist())


def test_only_the_chosen_of_a_draft_row_need_be_finite() -> None:
    model = TableModel(6, seed=5)
    model.table[:, 2:] = -math.inf

    assert begun(model, [1], Sampling(1.0)).propose([1], 2).finite.tolist() == [True, True]


def test_half_precision_that_overflowed_to_infinity_is_marked() -> None:
    model = TableModel(6, seed=5)
    model.table = (model.table.half() * 0 + 60_000) * 2

    assert begun(model, [1], Sampling(1.0)).propose([1], 2).finite.tolist() == [False, False]


def test_a_draft_whose_bias_leaves_nothing_is_marked() -> None:
    model = TableModel(3, seed=5)
    model.table = torch.tensor([0.0, -math.inf, -math.inf]).expand(997, -1)
    banned = Sampling(1.0, logit_bias={0: -math.inf})

    assert begun(model, [1], banned).propose([1], 2).finite.tolist() == [False, False]


def test_the_draft_reads_everything_it_has_not_seen_before_its_first_token() -> None:
    model = TableModel(9, seed=6)
    prompt = [1, 2, 3, 4, 5, 6]
    drafter = begun(model, prompt, Sampling(1.0))

    proposal = drafter.propose(prompt, 3)

    assert model.tokens == prompt + proposal.tokens.tolist()[:2]
    assert torch.equal(
        proposal.log_raw[0], raw_log_probabilities(model.logits_after(prompt)[None])[0]
    )


def test_rejected_drafts_are_forgotten_and_what_was_committed_is_kept() -> None:
    model = TableModel(9, seed=6)
    drafter = begun(model, [1, 2, 3], Sampling(1.0))
    tokens = drafter.propose([1, 2, 3], 4).tokens.tolist()

    recovered = (tokens[1] + 1) % 9
    drafter.commit([1, 2, 3, tokens[0], recovered], 2)

    assert model.tokens == [1, 2, 3, tokens[0]]


def test_after_full_acceptance_the_draft_catches_up_with_its_own_last_token() -> None:
    model = TableModel(9, seed=6)
    drafter = begun(model, [1, 2, 3], Sampling(1.0))
    tokens = drafter.propose([1, 2, 3], 3).tokens.tolist()
    committed = [1, 2, 3, *tokens, 8]
    drafter.commit(committed, 4)
    assert model.tokens == committed[:-2]

    forwarded = model.forwarded
    proposal = drafter.propose(committed, 1)

    assert model.forwarded - forwarded == 2
    assert torch.equal(
        proposal.log_raw[0], raw_log_probabilities(model.logits_after(committed)[None])[0]
    )


def test_after_a_stretch_without_drafting_the_draft_catches_up() -> None:
    model = TableModel(9, seed=6)
    sampling = Sampling(1.0, repetition_penalty=1.5, frequency_penalty=0.3)
    drafter = begun(model, [1, 2, 3], sampling)
    committed = [1, 2, 3]
    drafter.propose(committed, 2)
    for token in (4, 5, 6, 4):
        committed.append(token)
        drafter.commit(committed, 1)

    proposal = drafter.propose(committed, 1)

    assert model.tokens == committed
    seen = Penalties(sampling, [1, 2, 3], 9, CPU)
    seen.commit([4, 5, 6, 4])
    row = seen.apply(model.logits_after(committed)[None], torch.empty(0))
    assert torch.equal(proposal.drawn_from[0], row.softmax(dim=-1)[0])


def test_a_new_reply_begins_with_its_own_penalties() -> None:
    model = TableModel(9, seed=6)
    sampling = Sampling(1.0, presence_penalty=2.0)
    drafter = begun(model, [1, 2], sampling)
    drafter.commit([1, 2, 5], 1)

    drafter.begin(sampling, [1, 2, 5], seed=1)
    proposal = drafter.propose([1, 2, 5], 1)

    expected = model.logits_after([1, 2, 5]).softmax(dim=-1)
    assert torch.equal(proposal.drawn_from[0], expected)


def test_lookup_drafts_what_followed_the_last_occurrence() -> None:
    prompt = [1, 2, 3, 4, 9, 1, 2, 3, 5, 6, 1, 2, 3]

    assert found(lookup(prompt), prompt) == [5, 6, 1, 2]
    assert found(lookup(prompt), prompt, count=1) == [5]


def test_lookup_prefers_the_longest_match() -> None:
    prompt = [1, 2, 3, 7, 8, 3, 9, 2, 3, 6, 1, 2, 3]

    assert found(lookup(prompt), prompt, count=1) == [7]
    assert found(lookup(prompt, longest=2), prompt, count=1) == [6]
    assert found(lookup(prompt, longest=1), prompt, count=1) == [6]


def test_lookup_has_nothing_to_propose_for_a_token_not_seen_before() -> None:
    assert found(lookup([1, 2, 3]), [1, 2, 3]) is None
    assert found(lookup([1]), [1]) is None


def test_lookup_proposes_fewer_where_the_text_ends() -> None:
    assert found(lookup([5, 6, 5]), [5, 6, 5], count=10) == [6, 5]


def test_lookup_learns_from_what_is_committed_and_not_from_what_was_only_drafted() -> None:
    committed = [1, 2, 3]
    drafter = lookup(committed)
    committed += [4, 1, 2, 3]
    drafter.commit(committed, 4)

    assert found(drafter, committed) == [4, 1, 2, 3]
    assert found(drafter, committed) == [4, 1, 2, 3]
    committed.append(9)
    drafter.commit(committed, 1)
    committed += [2, 3]
    drafter.commit(committed, 2)
    assert found(drafter, committed) == [9, 2, 3]


def test_lookup_begins_anew_with_every_reply() -> None:
    drafter = lookup([1, 2, 3])

    drafter.begin(WARM, [7, 8, 1], seed=1)

    assert found(drafter, [7, 8, 1]) is None
    assert found(drafter, [7, 8, 7]) == [8, 7]


def test_a_looked_up_draft_is_a_point_mass() -> None:
    proposal = lookup([5, 6, 5]).propose([5, 6, 5], 2)

    assert proposal is not None
    assert proposal.drawn_from.argmax(dim=-1).tolist() == [6, 5]
    assert proposal.drawn_from.sum(dim=-1).tolist() == [1.0, 1.0]
    assert proposal.log_raw.exp().tolist() == proposal.drawn_from.tolist()
    assert proposal.finite.tolist() == [True, True]


def test_lookup_stops_at_a_token_outside_the_shared_vocabulary() -> None:
    prompt = [1, 2, 60, 3, 1]

    assert found(lookup(prompt, vocabulary=50), prompt) == [2]
    assert found(lookup([1, 60, 1], vocabulary=50), [1, 60, 1]) is None


class Scripted:
    """A drafter that proposes a fixed token, or nothing."""

    def __init__(self, token: int | None, limit: int = 100) -> None:
        self.token = token
        self.limit = limit
        self.asked: list[int] = []
        self.told: list[tuple[str, object]] = []

    def begin(self, sampling: Sampling, prompt: list[int], seed: int) -> None:
        self.told.append(("begin", tuple(prompt)))

    def propose(self, committed: list[int], count: int) -> Proposal | None:
        self.asked.append(count)
        if self.token is None:
            return None
        rows = torch.zeros(count, 10)
        return Proposal(torch.full((count,), self.token), rows, rows, (rows,), rows[:, 0] == 0)

    def commit(self, committed: list[int], new: int) -> None:
        self.told.append(("commit", new))


def test_the_first_drafter_that_has_something_drafts() -> None:
    nothing, first, second = Scripted(None), Scripted(1), Scripted(2)
    chain = FirstThatHas([nothing, first, second])

    proposal = chain.propose([1, 2], 3)

    assert proposal is not None
    assert proposal.tokens.tolist() == [1, 1, 1]
    assert (nothing.asked, first.asked, second.asked) == ([3], [3], [])
    assert FirstThatHas([nothing]).propose([1, 2], 3) is None


def test_every_drafter_is_told_whichever_of_them_drafted() -> None:
    drafters = [Scripted(1), Scripted(2)]
    chain = FirstThatHas(drafters)

    chain.begin(WARM, [1, 2], seed=1)
    chain.commit([1, 2, 3], 1)

    for drafter in drafters:
        assert drafter.told == [("begin", (1, 2)), ("commit", 1)]


def test_a_drafter_whose_context_is_full_is_passed_over() -> None:
    short, long = Scripted(1, limit=4), Scripted(2, limit=8)
    chain = FirstThatHas([short, long])

    assert chain.limit == 8
    assert chain.propose([0] * 3, 3).tokens.tolist() == [1]  # type: ignore[union-attr]
    assert chain.propose([0] * 4, 3).tokens.tolist() == [2] * 3  # type: ignore[union-attr]
    assert chain.propose([0] * 8, 3) is None


def test_lookup_before_the_draft_model_drafts_from_both() -> None:
    target = TableModel(6, seed=1, order=2)
    model = draft_for(target, noise=0.5)
    committed = [1, 2, 3]
    chain = FirstThatHas([PromptLookup(6, CPU), ModelDrafter(model)])

    rounds = write_reply(target, chain, committed, knob=Knob(rule="exact"), max_tokens=80)

    assert model.forwarded > 0
    looked_up = [r for r in rounds if r.tokens[0].draft_probability in (0.0, 1.0)]
    assert looked_up
    assert len(looked_up) < len(rounds)
