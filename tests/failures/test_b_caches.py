"""Histories that are not what the caches hold."""

from __future__ import annotations

from itertools import takewhile

import pytest
from engine.conftest import Reply, TinyModels, open_pair

from fsd_chat.engine.messages import Sampling
from fsd_chat.engine.session import Session

THOUGHT, ANSWER = "<think>\n\n</think>\n\n", "It is so."
BRIEFLY = Sampling(temperature=0.0, max_tokens=10)


@pytest.fixture(scope="module")
def session(tiny: TinyModels) -> Session:
    return open_pair(tiny.random("b-target", seed=1), tiny.random("b-draft", seed=2))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    return TinyModels(tmp_path_factory.mktemp("b"))


def next_turn_after(session: Session, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """A turn with history `after` where the caches hold `before`: what is kept of them is what
    both have in common, token by token, and the reply is one from empty caches."""
    session.caches.forget()
    Reply(session, *before, sampling=BRIEFLY)
    held = session.caches.committed[:-1]

    kept = Reply(session, *after, sampling=BRIEFLY)

    prompt = session.caches.committed[: kept.started.prompt_tokens]
    pairs = zip(held, prompt, strict=False)
    in_common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    assert 0 < kept.started.cached_tokens == in_common < len(held)
    session.caches.forget()
    assert kept.tokens == Reply(session, *after, sampling=BRIEFLY).tokens


def test_a_history_from_which_the_template_drops_the_thoughts_keeps_what_stands_before_them(
    session: Session,
) -> None:
    before = ("Is it so?", THOUGHT + ANSWER, "Why?")
    next_turn_after(session, before, ("Is it so?", ANSWER, "Why?", "Hm.", "And then?"))


def test_a_history_of_the_same_length_with_other_words_is_not_taken_for_the_same(
    session: Session,
) -> None:
    next_turn_after(session, ("Is it so?", ANSWER, "Why?"), ("Is it so?", "It is no.", "Why?"))
