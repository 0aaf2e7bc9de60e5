"""The view follows a reply, unless one reads further up."""

from __future__ import annotations

from ui.driving import Chat, Running

from fsd_chat.tui.widgets.conversation import Conversation

PARAGRAPHS = [f"paragraph {i}\n\n" for i in range(40)]


def view(chat: Chat) -> Conversation:
    return chat.app.chat.query_one(Conversation)


def at_the_end(chat: Chat) -> bool:
    return view(chat).max_scroll_y > 0 and view(chat).scroll_y == view(chat).max_scroll_y


async def long_reply(chat: Chat) -> None:
    await chat.ask("go")
    chat.engine.begin()
    chat.engine.write(*PARAGRAPHS)
    await chat.shown("paragraph 39")
    await chat.until(lambda: at_the_end(chat))


async def test_the_view_follows_a_reply_that_is_being_written(running: Running) -> None:
    async with running() as chat:
        await long_reply(chat)
        before = view(chat).max_scroll_y
        chat.engine.write(*PARAGRAPHS)
        await chat.until(lambda: view(chat).max_scroll_y > before + 40 and at_the_end(chat))
        chat.engine.finish()
        await chat.answered()
        await chat.until(lambda: at_the_end(chat))


async def test_what_one_reads_further_up_stays_where_it_is(running: Running) -> None:
    async with running() as chat:
        await long_reply(chat)
        await chat.pilot.press("pageup")
        await chat.until(lambda: not at_the_end(chat))
        await chat.pilot.pause(0.5)
        reading, before = view(chat).scroll_y, view(chat).max_scroll_y
        chat.engine.write(*PARAGRAPHS)
        await chat.until(lambda: view(chat).max_scroll_y > before + 40)
        assert view(chat).scroll_y == reading
        chat.engine.finish()
        await chat.answered()
        await chat.pilot.pause(0.2)
        assert view(chat).scroll_y == reading


async def test_back_at_the_end_the_view_follows_again(running: Running) -> None:
    async with running() as chat:
        await long_reply(chat)
        await chat.pilot.press("pageup")
        await chat.until(lambda: not at_the_end(chat))
        await chat.pilot.press("pagedown", "pagedown")
        await chat.until(lambda: at_the_end(chat))
        before = view(chat).max_scroll_y
        chat.engine.write(*PARAGRAPHS)
        await chat.until(lambda: view(chat).max_scroll_y > before + 40 and at_the_end(chat))


async def test_a_message_of_one_s_own_leads_to_the_end(running: Running) -> None:
    async with running() as chat:
        await long_reply(chat)
        chat.engine.finish()
        await chat.answered()
        await chat.pilot.press("pageup")
        await chat.until(lambda: not at_the_end(chat))
        await chat.ask("more")
        await chat.until(lambda: at_the_end(chat))
