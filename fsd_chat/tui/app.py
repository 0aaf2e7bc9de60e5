"""The app: holds the engine, the themes and the keys together."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widgets import Input, TextArea

from fsd_chat.chats.display import plain
from fsd_chat.chats.store import ChatStore
from fsd_chat.config import DEFAULT_THEME, Config
from fsd_chat.engine.messages import Event, Knob, LoadPair, Sampling
from fsd_chat.tui.commands import COMMANDS
from fsd_chat.tui.keys import APP_KEYS, BOUND_KEYS, bindings, keymap, keys_of
from fsd_chat.tui.link import Engine, EngineLink
from fsd_chat.tui.screens.chat import ChatScreen
from fsd_chat.tui.talk import Talk
from fsd_chat.tui.themes import Loaded

QUIT_WITHIN_S = 3.0
"""A second Ctrl+C counts for so long."""
LEAVE_WITHIN_S = 0.5


class ChatApp(App[None], inherit_bindings=False):
    BINDINGS = bindings(APP_KEYS)
    TITLE = "fsd-chat"
    CSS_PATH = "styles.tcss"
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (70, "-normal"), (120, "-wide")]

    def __init__(
        self,
        config: Config,
        store: ChatStore,
        engine: Callable[[], Engine],
        pair: LoadPair,
        knob: Knob,
        sampling: Sampling,
        themes: Loaded,
        notices: Sequence[str] = (),
    ) -> None:
        """engine: makes an engine that is not started yet. notices: told once the app is up."""
        super().__init__()
        self.config = config
        self.talk = Talk(
            store=store,
            pair=pair,
            knob=knob,
            sampling=sampling,
            send=lambda command: self.link.send(command),
            trouble=lambda text: self.chat.tell_trouble(text),
            system=config.system,
        )
        self.link = EngineLink(engine, self._heard, self._lost)
        self.chat = ChatScreen(self.talk)
        self._interrupted_at = -QUIT_WITHIN_S
        self._notices = [*notices, *(str(problem) for problem in themes.problems)]
        for theme in themes.themes:
            self.register_theme(theme)
        usable, problems = keymap(config.keys)
        self.set_keymap(usable)
        self._notices += problems

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """For themes that are not ours: Textual's own know nothing of tokens and gauges."""
        return {
            "origin-accepted": "$success",
            "origin-fuzzy": "$warning",
            "origin-recovered": "$primary",
            "origin-bonus": "$accent",
            "origin-target": "$foreground",
            "gauge": "$accent",
            "gauge-rest": "$foreground-darken-3",
        }

    async def on_event(self, event: events.Event) -> None:
        # One-line fields show what they hold as it is, and a paste may hold anything.
        if isinstance(event, events.Paste) and isinstance(self.focused, Input):
            event.text = plain(event.text)
        await super().on_event(event)

    def on_mount(self) -> None:
        self.push_screen(self.chat)
        # Only once something is on the screen does the engine take its share of the machine.
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self.run_worker(self.link.run(self.talk.pair), name="engine")
        for notice in self._notices:
            self.chat.say(notice, severity="warning")

    def _heard(self, event: Event) -> None:
        self.chat.call_later(self.chat.heard, event)

    def _lost(self, log: Path, again: bool) -> None:
        self.chat.call_later(self.chat.lost, str(log), again)

    def choose_theme(self, name: str) -> None:
        """Raises ValueError for a name that no theme has."""
        if name not in self.available_themes:
            known = ", ".join(sorted(self.available_themes))
            raise ValueError(f"there is no theme called {name!r}; there are {known}")
        self.theme = name

    def begin_with_theme(self, name: str) -> None:
        """The theme to start with; one that does not exist is told and replaced."""
        try:
            self.choose_theme(name)
        except ValueError as error:
            self._notices.append(str(error))
            if DEFAULT_THEME in self.available_themes:
                self.theme = DEFAULT_THEME

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """For the palette: every key's action, every command, and all that can follow one."""
        yield SystemCommand("theme", "choose other colours and see them", self.action_change_theme)
        if not isinstance(screen, ChatScreen):
            return
        for key in BOUND_KEYS:
            if key.action != "command_palette":
                keys = keys_of(key.id, self.config.keys)
                yield SystemCommand(
                    f"{key.description} ({keys})",
                    key.slash or key.id,
                    partial(self.run_action, key.action, self if key in APP_KEYS else screen),
                )
        choices = screen.choices()
        for command in COMMANDS:
            begun = f"/{command.name} "
            if command.argument:
                yield SystemCommand(
                    command.usage, command.description, partial(screen.begin_command, begun)
                )
            for choice in choices.get(command.name, ()):
                yield SystemCommand(
                    begun + choice,
                    command.description,
                    partial(screen.ran_as_command, begun + choice),
                    discover=False,
                )

    def handle_bindings_clash(self, clashed_bindings: set[Binding], node: DOMNode) -> None:
        """Told at the start, by id, rather than at every key press."""

    # --- keys that work over a dialog too ---------------------------------------------------

    async def action_interrupt(self) -> None:
        """Stops the reply; again within three seconds, or with nothing to stop, quits."""
        now = time.monotonic()
        if not self.talk.busy:
            if self._copied_selection():
                return
            if self.screen.is_modal:
                self.screen.dismiss()
                return
        if now - self._interrupted_at < QUIT_WITHIN_S:
            self.leave()
            return
        self._interrupted_at = now
        if self.talk.busy:
            self.chat.action_stop()
        else:
            self.chat.say("Ctrl+C again within three seconds quits")

    def _copied_selection(self) -> bool:
        """Copy what is selected in the conversation or in a field, if anything is."""
        field = self.focused
        if isinstance(field, (TextArea, Input)) and field.selected_text:
            self.copy_to_clipboard(field.selected_text)
        elif selected := self.screen.get_selected_text():
            self.copy_to_clipboard(selected)
            self.screen.clear_selection()
        else:
            return False
        self.chat.say("copied")
        return True

    async def action_quit(self) -> None:
        self.leave()

    def leave(self) -> None:
        """Quit, keeping what there is of a reply."""
        self.talk.interrupted("the chat was left")
        # It ends while Textual puts the terminal back, for which that waits a fifth of a second.
        self.link.begin_to_close()
        self.exit()

    async def on_unmount(self) -> None:
        self.talk.interrupted("the chat was left")
        # Given up, closing kills the engine's process; that it is gone need not be awaited.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.link.close(), LEAVE_WITHIN_S)
