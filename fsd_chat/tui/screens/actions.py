"""What the keys do on the chat screen."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from textual.screen import Screen

from fsd_chat.chats.display import plain
from fsd_chat.chats.export import ExportError, ExportExists, save
from fsd_chat.chats.store import StoreError
from fsd_chat.engine.messages import Knob
from fsd_chat.tui.screens.chats import ChatsScreen
from fsd_chat.tui.screens.confirm import ConfirmScreen
from fsd_chat.tui.screens.help import HelpScreen

if TYPE_CHECKING:
    from fsd_chat.tui.app import ChatApp
    from fsd_chat.tui.talk import Talk

TROUBLE_AGAIN_S = 30.0
TURNED_S = 4.0
"""For so long after a turn of the knob the status bar makes room for what it governs."""
Severity = Literal["information", "warning", "error"]
SHOWN_S: dict[Severity, float] = {"information": 5, "warning": 8, "error": 15}


class ChatActions(Screen[None]):
    """The part of the chat screen that does as it is told."""

    talk: Talk
    activity: str
    _trouble = ""
    _troubled_at = 0.0
    _turned_at = -TURNED_S

    if TYPE_CHECKING:

        @property
        def chat_app(self) -> ChatApp: ...

        async def answer(self) -> None: ...

        async def show_conversation(self, waiting: list[str]) -> None: ...

        def show_status(self) -> None: ...

        def follow(self) -> None: ...

    def say(self, text: str, severity: Severity = "information") -> None:
        """A notice; its text comes from anywhere, so it is no markup."""
        self.notify(plain(text), severity=severity, markup=False, timeout=SHOWN_S[severity])

    def tell_trouble(self, text: str) -> None:
        """Something could not be kept. Told once: the next attempt is a quarter second away."""
        now = time.monotonic()
        if text != self._trouble or now - self._troubled_at > TROUBLE_AGAIN_S:
            self.say(text, severity="warning")
            self._trouble, self._troubled_at = text, now

    # --- the knob ---------------------------------------------------------------------------

    def action_turn(self, points: float) -> None:
        if self.talk.knob.rule in ("exact", "target-only"):
            self.say(f"rule {self.talk.knob.rule} has no threshold; /rule fsd turns it on")
            return
        self.talk.turn(points)
        self.turned()

    def action_exact(self) -> None:
        self.change_knob(threshold=0.0)

    def change_knob(self, **changes: object) -> None:
        knob: Knob = msgspec.structs.replace(self.talk.knob, **changes)
        self.talk.set_knob(knob)
        self.turned()

    def turned(self) -> None:
        """Show the knob as it is now."""
        self._turned_at = time.monotonic()
        self.set_timer(TURNED_S + 0.1, self.show_status)
        self.show_status()

    @property
    def just_turned(self) -> bool:
        return time.monotonic() - self._turned_at < TURNED_S

    # --- the reply ----------------------------------------------------------------------------

    def action_stop(self) -> None:
        if self.talk.stop():
            self.activity = "stopping"
            self.show_status()

    async def action_regenerate(self) -> None:
        if self.talk.busy:
            self.say("the reply is still being written; Esc stops it")
        elif not self.talk.idle:
            self.say("the models are not ready yet")
        elif self.talk.take_back_reply():
            await self.show_conversation([])
            await self.answer()
            self.follow()
        else:
            self.say("there is nothing to answer yet")

    # --- chats --------------------------------------------------------------------------------

    async def action_new_chat(self) -> None:
        if not self.must_wait():
            await self.show_conversation(self.talk.new_chat())

    def action_chats(self) -> None:
        if not self.must_wait():
            self.app.push_screen(ChatsScreen(self.talk.store), self._open_chat)

    async def _open_chat(self, chat_id: int | None) -> None:
        if chat_id is None or self.must_wait():
            return
        try:
            waiting = self.talk.open_chat(chat_id)
        except StoreError as error:
            self.say(str(error), severity="error")
            return
        await self.show_conversation(waiting)

    def must_wait(self) -> bool:
        """Whether a reply is under way; says so."""
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

    # --- the rest -----------------------------------------------------------------------------

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(self.chat_app.config.keys))
