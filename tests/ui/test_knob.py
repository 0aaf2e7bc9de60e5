"""Turning the threshold while one writes and while the model does."""

from __future__ import annotations

import pytest
from ui.driving import Chat, Running
from ui.scripted import token

from fsd_chat.engine.messages import Generate, Knob, Round, SetKnob
from fsd_chat.tui.widgets.status import StatusBar


def bar(chat: Chat) -> str:
    return str(chat.app.chat.query_one(StatusBar).content)


async def seen(chat: Chat, divergences: list[float]) -> None:
    """A reply whose tokens had these divergences."""
    await chat.ask("go")
    chat.engine.begin()
    tokens = tuple(token("a", "accepted", divergence, exact=0.0) for divergence in divergences)
    chat.engine.tell(
        Round(request=chat.engine.request, index=0, tokens=tokens, text="a" * len(tokens))
    )
    chat.engine.finish()
    await chat.answered()


@pytest.mark.parametrize(
    ("keys", "direction"),
    [
        (("ctrl+up", "f8", "alt+up", "f9"), 1),
        (("ctrl+down", "f7", "alt+down", "f6"), -1),
    ],
)
async def test_keys_turn_the_threshold_while_the_prompt_has_the_focus(
    running: Running, keys: tuple[str, ...], direction: int
) -> None:
    async with running(knob=Knob(threshold=0.3)) as chat:
        chat.type("half a thought")
        assert chat.prompt.has_focus
        for key in keys:
            before = chat.app.talk.knob.threshold
            await chat.pilot.press(key)
            await chat.until(
                lambda before=before: (chat.app.talk.knob.threshold - before) * direction > 0
            )
        assert chat.prompt.text == "half a thought"
        assert not chat.engine.of(SetKnob)


@pytest.mark.parametrize("key", ["alt+0", "f4"])
async def test_a_key_turns_the_threshold_to_zero(running: Running, key: str) -> None:
    async with running(knob=Knob(threshold=0.3)) as chat:
        await chat.until(lambda: "T 0.30" in bar(chat))
        await chat.pilot.press(key)
        await chat.until(lambda: chat.app.talk.knob.threshold == 0)
        assert "T 0 " in bar(chat)


async def test_a_turn_during_a_reply_reaches_the_engine_and_its_index_the_history(
    running: Running,
) -> None:
    async with running() as chat:
        await chat.ask("go")
        chat.engine.begin()
        chat.engine.write("one ", "two ")
        await chat.shown("two")
        await chat.pilot.press("ctrl+up")
        await chat.until(lambda: chat.engine.of(SetKnob))
        turned = chat.engine.of(SetKnob)[0]
        assert turned.request == chat.engine.request
        assert turned.knob.threshold > Knob().threshold
        chat.engine.knob_set(turned.knob)
        chat.engine.write("three")
        await chat.shown("three")
        await chat.until(lambda: chat.app.talk.governed_from == 2)
        chat.engine.finish()
        await chat.answered()
        timeline = chat.stored_reply.timeline
        assert [(one.index, one.knob) for one in timeline] == [(0, Knob()), (2, turned.knob)]


async def test_slash_t_works_during_a_reply_too(running: Running) -> None:
    async with running() as chat:
        await chat.ask("go")
        chat.engine.begin()
        await chat.enter("/T 0.5")
        await chat.until(lambda: chat.engine.of(SetKnob))
        assert chat.engine.of(SetKnob)[0].knob.threshold == 0.5
        assert len(chat.engine.of(Generate)) == 1


async def test_a_step_moves_by_five_points_of_acceptance_on_what_was_seen(
    running: Running,
) -> None:
    async with running(knob=Knob(threshold=0.0)) as chat:
        await seen(chat, [i / 1000 for i in range(1, 101)])
        await chat.pilot.press("ctrl+up")
        await chat.until(lambda: chat.app.talk.knob.threshold == pytest.approx(0.005))
        await chat.pilot.press("alt+up")
        await chat.until(lambda: chat.app.talk.knob.threshold == pytest.approx(0.025))


async def test_another_divergence_carries_the_threshold_over(running: Running) -> None:
    async with running(knob=Knob(threshold=0.05)) as chat:
        await seen(chat, [i / 1000 for i in range(1, 101)])
        await chat.enter("/divergence tv")
        await chat.told("the same acceptance on the tokens seen so far")
        assert chat.app.talk.knob.divergence == "tv"
        # A scripted token's tv is one and a half times its js.
        assert chat.app.talk.knob.threshold == pytest.approx(0.075)


async def test_with_too_little_seen_the_threshold_stays_and_that_is_said(
    running: Running,
) -> None:
    async with running(knob=Knob(threshold=0.05)) as chat:
        await chat.enter("/divergence tv")
        await chat.told("too little has been seen")
        assert chat.app.talk.knob == Knob(divergence="tv", threshold=0.05)


@pytest.mark.parametrize("rule", ["exact", "target-only"])
async def test_a_rule_without_a_threshold_says_so_when_it_is_turned(
    running: Running, rule: str
) -> None:
    async with running() as chat:
        await chat.enter(f"/rule {rule}")
        await chat.until(lambda: chat.app.talk.knob.rule == rule)
        await chat.pilot.press("ctrl+up")
        await chat.told(f"rule {rule} has no threshold")
        assert chat.app.talk.knob.threshold == Knob().threshold


async def test_the_bar_shows_the_reply_under_way(running: Running) -> None:
    async with running() as chat:
        await chat.ask("go")
        chat.engine.begin()
        await chat.until(lambda: "reading the prompt" in bar(chat))
        chat.engine.write("a", "b", "c")
        chat.engine.write("d", origin="recovered")
        await chat.until(lambda: "writing" in bar(chat))
        for part in ("smol", "fsd js", "T 0.10", "acc 75%", "40.0 tok/s"):
            assert part in bar(chat)
        chat.engine.finish()
        await chat.until(lambda: "ready" in bar(chat))
