"""What can be typed with a slash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


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
    Slash("rule", "slash_rule", "how drafted tokens are judged", "NAME"),
    Slash("divergence", "slash_divergence", "what T is compared with; T is carried over", "NAME"),
    Slash("lookahead", "slash_lookahead", "how many tokens to draft, or a policy", "N"),
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

Choices = Mapping[str, Sequence[str]]
"""What can stand after a command, by the command's name, where that is known."""


def parse(text: str) -> tuple[Slash, str] | None:
    """The command that `text` begins with, and its argument; None if it is no command's name."""
    name, *rest = text.strip().removeprefix("/").split(maxsplit=1)
    for command in COMMANDS:
        if name.lower() == command.name.lower():
            return command, rest[0] if rest else ""
    return None


def is_command(text: str) -> bool:
    """A slash and a word: `/etc/hosts` or `/ 2` are text like any other."""
    first = text.strip().split(maxsplit=1)[:1]
    return bool(first) and first[0].startswith("/") and first[0][1:].isalpha()


def unknown(text: str) -> str:
    """One line about a command that there is not."""
    word = text.split(maxsplit=1)[0]
    close = get_close_matches(word.lower(), [f"/{command.name}" for command in COMMANDS], n=1)
    instead = f"did you mean {close[0]}?" if close else "/help lists them"
    return f"{word} is no command; {instead}"


def _named_like(text: str) -> list[Slash]:
    wanted = text.removeprefix("/").lower()
    return [command for command in COMMANDS if command.name.lower().startswith(wanted)]


def hint(text: str, choices: Choices) -> str:
    """What could follow, while a command is being typed; empty for any other text."""
    if not text.startswith("/") or "\n" in text:
        return ""
    word, space, argument = text.partition(" ")
    fitting = _named_like(word)
    command = next((one for one in fitting if f"/{one.name}" == word), None)
    if command is None and len(fitting) == 1 and not space:
        command = fitting[0]
    if command is None:
        return "" if space else "  ".join(f"/{one.name}" for one in fitting)
    known = [one for one in choices.get(command.name, ()) if one.startswith(argument.strip())]
    return f"{command.usage}  {', '.join(known) or command.description}"


def complete(text: str, choices: Choices) -> str:
    """`text`, a command half typed, as far as it can only go one way."""
    word, space, argument = text.partition(" ")
    if not space:
        close = [f"/{command.name}" for command in _named_like(word)]
        if len(close) == 1:
            found = parse(close[0])
            return close[0] + (" " if found and found[0].argument else "")
        return _further(word, close)
    found = parse(word) if is_command(word) else None
    known = choices.get(found[0].name, ()) if found else ()
    close = [one for one in known if one.startswith(argument)]
    return f"{word} {_further(argument, close)}"


def _further(begun: str, names: Sequence[str]) -> str:
    """`begun`, and as many characters more as `names` have in common."""
    end = len(begun)
    while names and len({name[: end + 1] for name in names}) == 1 and end < len(names[0]):
        end += 1
    return names[0][:end] if names else begun
