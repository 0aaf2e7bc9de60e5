"""What can be typed with a slash."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Slash:
    name: str
    action: str
    """Method of the chat screen, called with the rest of the line."""
    description: str
    argument: str = ""
    """How the rest of the line is called; empty where there is none."""

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.argument}".strip()


COMMANDS = (
    Slash("T", "slash_threshold", "set the threshold; 0 is exactly the target", "0.3"),
    Slash("up", "slash_up", "T up by 5 points of acceptance"),
    Slash("down", "slash_down", "T down by 5 points of acceptance"),
    Slash("exact", "slash_exact", "T to zero: exactly the target"),
    Slash("rule", "slash_rule", "fsd, fsd-paper, exact, target-only, …", "NAME"),
    Slash("divergence", "slash_divergence", "js, tv, …; T is carried over", "NAME"),
    Slash("lookahead", "slash_lookahead", "adaptive, paper, heuristic or a number", "N"),
    Slash("temperature", "slash_temperature", "of the next replies; 0 is greedy", "0.7"),
    Slash("system", "slash_system", "system prompt of this chat", "TEXT"),
    Slash("new", "slash_new", "a new chat"),
    Slash("chats", "slash_chats", "earlier chats"),
    Slash("regen", "slash_regen", "answer the last message again"),
    Slash("stop", "slash_stop", "stop the reply"),
    Slash("save", "slash_save", "save the transcript, as .md or .json", "[path]"),
    Slash("theme", "slash_theme", "other colours", "NAME"),
    Slash("pair", "slash_pair", "another pair of models", "NAME"),
    Slash("restart", "slash_restart", "start the engine again"),
    Slash("help", "slash_help", "all keys and commands"),
    Slash("quit", "slash_quit", "quit"),
)


def parse(text: str) -> tuple[Slash, str] | None:
    """The command that `text` begins with, and its argument; None if it is no command's name."""
    name, _, rest = text.strip().removeprefix("/").partition(" ")
    for command in COMMANDS:
        if name.lower() == command.name.lower():
            return command, rest.strip()
    return None


def is_command(text: str) -> bool:
    """A slash and a word: `/etc/hosts` or `/ 2` are text like any other."""
    first = text.strip().split(maxsplit=1)[:1]
    return bool(first) and first[0].startswith("/") and first[0][1:].isalpha()
