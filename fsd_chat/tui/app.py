"""The app: holds the engine, the themes and the keys together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import Screen

from fsd_chat.chats.store import ChatStore
from fsd_chat.config import DEFAULT_THEME, Config
from fsd_chat.engine.messages import Event, Knob, LoadPair, Sampling
from fsd_chat.tui.commands import COMMANDS
from fsd_chat.tui.keys import KEYS, keymap
from fsd_chat.tui.link import Engine, EngineLink
from fsd_chat.tui.screens.chat import ChatScreen
from fsd_chat.tui.talk import Talk
from fsd_chat.tui.themes import Loaded


class ChatApp(App[None]):
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

    def on_mount(self) -> None:
        self.push_screen(self.chat)
        # Only once something is on the screen does the engine take its share of the machine.
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self.run_worker(self.link.run(self.talk.pair), name="engine", exit_on_error=False)
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
        yield from super().get_system_commands(screen)
        if not isinstance(screen, ChatScreen):
            return
        for key in KEYS:
            if key.action != "command_palette":
                keys = self.config.keys.get(key.id, key.keys).replace(",", ", ")
                yield SystemCommand(
                    f"{key.description} ({keys})",
                    key.slash or key.id,
                    lambda action=key.action: screen.run_action(action),
                )
        for command in COMMANDS:
            if command.argument:
                yield SystemCommand(command.usage, command.description, self.chat.focus_prompt)

    def handle_bindings_clash(self, clashed_bindings: set[Binding], node: DOMNode) -> None:
        """Told at the start, by id, rather than at every key press."""

    async def action_quit(self) -> None:
        self.exit()

    async def on_unmount(self) -> None:
        await self.link.close()
