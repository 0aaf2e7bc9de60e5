"""What slash commands do on the chat screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from fsd_chat.config import ConfigError
from fsd_chat.engine.messages import DIVERGENCES, RULES, Knob, Sampling
from fsd_chat.limits import LOOKAHEADS, check_knob, check_sampling, parse_threshold
from fsd_chat.tui.commands import Choices, parse, unknown
from fsd_chat.tui.screens.actions import ChatActions


class SlashCommands(ChatActions):
    if TYPE_CHECKING:

        def show_welcome(self) -> None: ...

    def choices(self) -> Choices:
        """What can stand after a command, where that is known."""
        known: Mapping[str, tuple[str, ...]] = {
            "rule": RULES,
            "divergence": DIVERGENCES,
            "lookahead": LOOKAHEADS,
            "theme": tuple(sorted(self.app.available_themes)),
            "pair": tuple(self.chat_app.config.pairs),
        }
        return known

    async def ran_as_command(self, text: str) -> bool:
        """Carry out a command; False, and a notice why, if that cannot be done."""
        found = parse(text)
        if found is None:
            self.say(unknown(text), severity="warning")
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
        self.change_knob(threshold=parse_threshold(argument))

    def slash_up(self, argument: str) -> None:
        self.action_turn(0.05)

    def slash_down(self, argument: str) -> None:
        self.action_turn(-0.05)

    def slash_exact(self, argument: str) -> None:
        self.action_exact()

    def slash_rule(self, argument: str) -> None:
        if argument not in RULES:
            raise ValueError(f"the rules are {', '.join(RULES)}")
        self.change_knob(rule=argument)

    def slash_divergence(self, argument: str) -> None:
        for divergence in DIVERGENCES:
            if divergence == argument:
                self.say(self.talk.set_divergence(divergence))
                self.turned()
                return
        raise ValueError(f"the divergences are {', '.join(DIVERGENCES)}")

    def slash_lookahead(self, argument: str) -> None:
        knob: Knob = msgspec.structs.replace(self.talk.knob, lookahead=argument)
        check_knob(knob)
        self.change_knob(lookahead=argument)

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
        if self.must_wait():
            return
        choice = self.chat_app.config.choose_pair(argument)
        self.talk.use_pair(choice.load(), self.chat_app.config.knob_for(choice))
        self.activity = "loading"
        self.show_welcome()
        self.chat_app.link.load(self.talk.pair)

    def slash_restart(self, argument: str) -> None:
        if not self.chat_app.link.given_up:
            raise ValueError("the engine has not stopped; /pair loads other models into it")
        self.activity = "starting"
        self.chat_app.link.restart()

    def slash_help(self, argument: str) -> None:
        self.action_help()

    def slash_quit(self, argument: str) -> None:
        self.chat_app.leave()
