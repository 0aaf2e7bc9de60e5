"""Slash commands: what they do, and that what cannot be done is said and given back."""

from __future__ import annotations

from pathlib import Path

import pytest
from ui.driving import Chat, Running

from fsd_chat.engine.messages import Generate, Knob, LoadPair, Stop
from fsd_chat.tui.commands import COMMANDS, is_command, parse
from fsd_chat.tui.screens.chats import ChatsScreen
from fsd_chat.tui.screens.help import HelpScreen


async def refused(chat: Chat, text: str, why: str) -> None:
    await chat.enter(text)
    await chat.told(why)
    await chat.until(lambda: chat.prompt.text == text)
    chat.prompt.clear()


async def test_settings_of_the_knob_are_taken(running: Running) -> None:
    async with running() as chat:
        for text in ("/T 0.3", "/rule lenient", "/lookahead 4", "/temperature 0"):
            await chat.enter(text)
        await chat.until(lambda: chat.app.talk.sampling.temperature == 0)
        assert chat.app.talk.knob == Knob(rule="lenient", threshold=0.3, lookahead="4")
        await chat.enter("/exact")
        await chat.until(lambda: chat.app.talk.knob.threshold == 0)
        assert chat.prompt.text == ""
        await chat.ask("go")
        assert chat.engine.of(Generate)[0].knob == chat.app.talk.knob
        assert chat.engine.of(Generate)[0].sampling.temperature == 0


@pytest.mark.parametrize("text", ["/T -1", "/T nan", "/T lots", "/T", "/T [/INST]"])
async def test_a_threshold_that_is_none_is_given_back(running: Running, text: str) -> None:
    async with running() as chat:
        await refused(chat, text, "the threshold T must be a number from 0 up")
        assert chat.app.talk.knob == Knob()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/theme nosuch", "there is no theme called 'nosuch'"),
        ("/pair nosuch", "there is no pair called 'nosuch'"),
        ("/rule nosuch", "the rules are fsd, fsd-paper"),
        ("/divergence nosuch", "the divergences are js, "),
        ("/lookahead soon", "lookahead must be adaptive"),
        ("/temperature warm", "the temperature must be a number, not 'warm'"),
        ("/temperature -1", "temperature must be 0 or more"),
        ("/nosuch thing", "/nosuch is no command"),
    ],
)
async def test_what_cannot_be_done_is_said_and_given_back(
    running: Running, text: str, why: str
) -> None:
    async with running() as chat:
        await refused(chat, text, why)
        await chat.ask("still works")


async def test_what_was_typed_meanwhile_stays_behind_what_is_given_back(running: Running) -> None:
    async with running() as chat:
        chat.type("/nosuch")
        chat.prompt._send()
        chat.type("next")
        await chat.until(lambda: chat.prompt.text == "/nosuch\nnext")


async def test_a_path_or_a_lone_slash_is_a_message_like_any_other(running: Running) -> None:
    async with running() as chat:
        await chat.ask("/etc/hosts is a file")
        assert chat.said == ["/etc/hosts is a file"]
    assert not is_command("/ 2")
    assert not is_command("1/2")
    assert is_command("/T 0.1")


async def test_screens_open_and_escape_leads_back_to_the_prompt(running: Running) -> None:
    async with running() as chat:
        for text, screen in (("/help", HelpScreen), ("/chats", ChatsScreen)):
            await chat.enter(text)
            await chat.until(lambda screen=screen: isinstance(chat.app.screen, screen))
            await chat.pilot.press("escape")
            await chat.until(lambda: chat.app.screen is chat.app.chat)
        assert chat.prompt.has_focus


async def test_a_theme_is_put_on(running: Running) -> None:
    async with running() as chat:
        await chat.enter("/theme paper")
        await chat.until(lambda: chat.app.theme == "paper")
        assert chat.prompt.text == ""


async def test_a_system_prompt_goes_before_the_conversation(running: Running) -> None:
    async with running() as chat:
        await chat.enter("/system Be [brief].")
        await chat.told("system prompt set")
        await chat.ask("hello")
        first, _ = chat.engine.of(Generate)[0].messages
        assert (first.role, first.content) == ("system", "Be [brief].")
        chat.engine.reply("hi")
        await chat.answered()
        await chat.enter("/system")
        await chat.told("no system prompt")
        await chat.ask("and now?")
        assert chat.engine.of(Generate)[1].messages[0].role == "user"
        assert chat.stored.chat.system == ""


async def test_stop_and_regen_do_what_their_keys_do(running: Running) -> None:
    async with running() as chat:
        await chat.ask("go")
        chat.engine.begin()
        chat.engine.write("so far")
        await chat.shown("so far")
        await chat.enter("/stop")
        await chat.until(lambda: chat.engine.of(Stop))
        chat.engine.finish("stopped")
        await chat.answered()
        await chat.enter("/regen")
        await chat.until(lambda: len(chat.engine.of(Generate)) == 2)


async def test_another_pair_is_loaded_and_named(running: Running) -> None:
    async with running() as chat:
        name = next(name for name in chat.app.config.pairs if name != "smol")
        await chat.enter(f"/pair {name}")
        await chat.until(lambda: chat.engine.of(LoadPair)[-1].name == name)
        assert chat.app.talk.ready is None
        await chat.enter("waits")
        await chat.until(lambda: chat.said == ["waits"])
        assert not chat.engine.of(Generate)
        chat.engine.ready()
        await chat.until(lambda: chat.engine.of(Generate))


async def test_quit_quits(running: Running) -> None:
    async with running() as chat:
        await chat.enter("/quit")
        await chat.until(lambda: not chat.app.is_running)
    assert chat.engine.closed
    assert not list(Path.cwd().iterdir())


def test_commands_are_found_in_any_case_and_no_two_share_a_name() -> None:
    names = [command.name.lower() for command in COMMANDS]
    assert len(set(names)) == len(names)
    found = parse("/t  0.5 ")
    assert found is not None
    assert (found[0].name, found[1]) == ("T", "0.5")


async def test_every_command_has_its_action(running: Running) -> None:
    async with running() as chat:
        for command in COMMANDS:
            assert callable(getattr(chat.app.chat, command.action))
