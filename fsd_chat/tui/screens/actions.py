"""What keys, the palette and slash commands do on the chat screen."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from textual.screen import Screen

from fsd_chat.chats.display import plain
from fsd_chat.chats.export import ExportError, ExportExists, save
from fsd_chat.chats.store import StoreError
from fsd_chat.config import ConfigError
from fsd_chat.engine.messages import DIVERGENCES, RULES, Knob, Sampling
from fsd_chat.limits import check_knob, check_sampling, parse_threshold
from fsd_chat.tui.commands import parse
from fsd_chat.tui.screens.chats import ChatsScreen
from fsd_chat.tui.screens.confirm import ConfirmScreen
from fsd_chat.tui.screens.help import HelpScreen

if TYPE_CHECKING:
    from fsd_chat.tui.app import ChatApp
    from fsd_chat.tui.talk import Talk

QUIT_WITHIN_S = 3.0
TROUBLE_AGAIN_S = 30.0
Severity = Literal["information", "warning", "error"]


class ChatActions(Screen[None]):
    """The part of the chat screen that does as it is told."""

    talk: Talk
    activity: str
    _interrupted_at = -QUIT_WITHIN_S
    _trouble = ""
    _troubled_at = 0.0

    if TYPE_CHECKING:

        @property
        def chat_app(self) -> ChatApp: ...

        async def answer(self) -> None: ...

        async def show_conversation(self) -> None: ...

        def show_status(self) -> None: ...

        def show_welcome(self) -> None: ...

    def say(self, text: str, severity: Severity = "information") -> None:
        """A notice; its text comes from anywhere, so it is no markup."""
        self.notify(plain(text), severity=severity, markup=False, timeout=6)

    def tell_trouble(self, text: str) -> None:
        """Something could not be kept. Told once: the next attempt is a quarter second away."""
        now = time.monotonic()
        if text != self._trouble or now - self._troubled_at > TROUBLE_AGAIN_S:
            self.say(text, severity="warning")
            self._trouble, self._troubled_at = text, now

    # --- keys -------------------------------------------------------------------------------

    def action_turn(self, points: float) -> None:
        if self.talk.knob.rule in ("exact", "target-only"):
            self.say(f"rule {self.talk.knob.rule} has no threshold; /rule fsd turns it on")
            return
        self.talk.turn(points)
        self.show_status()

    def action_exact(self) -> None:
        self.talk.set_knob(msgspec.structs.replace(self.talk.knob, threshold=0.0))
        self.show_status()

    def action_stop(self) -> None:
        if self.talk.stop():
            self.activity = "stopping"
            self.show_status()

    def action_interrupt(self) -> None:
        """Stops the reply; again within three seconds, or with nothing to stop, quits."""
        now = time.monotonic()
        selected = self.get_selected_text()
        if selected and not self.talk.busy:
            self.app.copy_to_clipboard(selected)
            self.clear_selection()
            self.say("copied")
            return
        if now - self._interrupted_at < QUIT_WITHIN_S:
            self.app.exit()
            return
        self._interrupted_at = now
        if self.talk.busy:
            self.action_stop()
        else:
            self.say("Ctrl+C again within three seconds quits")

    async def action_regenerate(self) -> None:
        if self.talk.busy:
            self.say("the reply is still being written; Esc stops it")
        elif not self.talk.idle:
            self.say("the models are not ready yet")
        elif self.talk.take_back_reply():
            await self.show_conversation()
            await self.answer()
        else:
            self.say("there is nothing to answer yet")

    async def action_new_chat(self) -> None:
        if self._must_wait():
            return
        self.talk.new_chat()
        await self.show_conversation()

    def action_chats(self) -> None:
        if not self._must_wait():
            self.app.push_screen(ChatsScreen(self.talk.store), self._open_chat)

    async def _open_chat(self, chat_id: int | None) -> None:
        if chat_id is None:
            return
        try:
            self.talk.open_chat(chat_id)
        except StoreError as error:
            self.say(str(error), severity="error")
            return
        await self.show_conversation()

    def _must_wait(self) -> bool:
        if self.talk.busy:
            self.say("a reply is being written here; Esc stops it")
        return self.talk.busy

    def action_save(self, path: str = "") -> None:
        self._save(Path(path) if path else None, overwrite=False)

    def _save(self, path: Path | None, overwrite: bool) -> None:
        if self.talk.conversation is None:
            self.say("there is nothing to save yet")
            return
        try:
            saved = save(self.talk.conversation, path, overwrite=overwrite)
        except ExportExists as error:
            self._ask_to_replace(error.path)
        except ExportError as error:
            self.say(str(error), severity="error")
        else:
            self.say(f"saved {saved}")

    def _ask_to_replace(self, path: Path) -> None:
        def answered(replace: bool | None) -> None:
            if replace:
                self._save(path, overwrite=True)

        self.app.push_screen(ConfirmScreen(f"{path} exists already. Replace it?"), answered)

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(self.chat_app.config.keys))

    def action_command_palette(self) -> None:
        self.app.action_command_palette()

    def action_quit(self) -> None:
        self.app.exit()

    # --- slash commands ---------------------------------------------------------------------

    async def ran_as_command(self, text: str) -> bool:
        """Carry out a command; False, and a notice why, if that cannot be done."""
        found = parse(text)
        if found is None:
            name = text.split(maxsplit=1)[0]
            self.say(f"{name} is no command; /help lists them", severity="warning")
            return False
        command, argument = found
        try:
            outcome = getattr(self, command.action)(argument)
            if outcome is not None:
                await outcome
        except (ValueError, ConfigError) as error:
            self.say(str(error), severity="error")
            return False
        self.show_status()
        return True

    def slash_threshold(self, argument: str) -> None:
        self._change_knob(threshold=parse_threshold(argument))

    def slash_up(self, argument: str) -> None:
        self.action_turn(0.05)

    def slash_down(self, argument: str) -> None:
        self.action_turn(-0.05)

    def slash_exact(self, argument: str) -> None:
        self.action_exact()

    def slash_rule(self, argument: str) -> None:
        if argument not in RULES:
            raise ValueError(f"the rules are {', '.join(RULES)}")
        self._change_knob(rule=argument)

    def slash_divergence(self, argument: str) -> None:
        for divergence in DIVERGENCES:
            if divergence == argument:
                self.say(self.talk.set_divergence(divergence))
                return
        raise ValueError(f"the divergences are {', '.join(DIVERGENCES)}")

    def slash_lookahead(self, argument: str) -> None:
        self._change_knob(lookahead=argument)

    def _change_knob(self, **changes: object) -> None:
        knob: Knob = msgspec.structs.replace(self.talk.knob, **changes)
        check_knob(knob)
        self.talk.set_knob(knob)

    def slash_temperature(self, argument: str) -> None:
        try:
            temperature = float(argument)
        except ValueError:
            raise ValueError(f"the temperature must be a number, not {argument!r}") from None
        sampling: Sampling = msgspec.structs.replace(self.talk.sampling, temperature=temperature)
        check_sampling(sampling)
        self.talk.sampling = sampling
        self.say(f"temperature {temperature:g} from the next reply on")

    def slash_system(self, argument: str) -> None:
        self.talk.set_system(argument)
        self.say("system prompt set" if argument else "no system prompt")

    async def slash_new(self, argument: str) -> None:
        await self.action_new_chat()

    def slash_chats(self, argument: str) -> None:
        self.action_chats()

    async def slash_regen(self, argument: str) -> None:
        await self.action_regenerate()

    def slash_stop(self, argument: str) -> None:
        self.action_stop()

    def slash_save(self, argument: str) -> None:
        self.action_save(argument)

    def slash_theme(self, argument: str) -> None:
        self.chat_app.choose_theme(argument)

    def slash_pair(self, argument: str) -> None:
        if self._must_wait():
            return
        choice = self.chat_app.config.choose_pair(argument)
        self.talk.use_pair(choice.load(), self.chat_app.config.knob_for(choice))
        self.activity = "loading"
        self.show_welcome()
        self.chat_app.link.load(self.talk.pair)

    def slash_restart(self, argument: str) -> None:
        self.chat_app.link.restart()

    def slash_help(self, argument: str) -> None:
        self.action_help()

    def slash_quit(self, argument: str) -> None:
        self.action_quit()
