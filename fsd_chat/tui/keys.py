"""Every key of the app, under an id by which the configuration can change it.

Each action can be reached in a second way as well (another key, a slash command, the palette),
since terminals and editors keep some keys for themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from textual.binding import Binding, BindingType

from fsd_chat.tui.widgets import prompt


@dataclass(frozen=True)
class Key:
    id: str
    keys: str
    """Comma-separated, under Textual's names."""
    action: str
    description: str
    slash: str = ""
    """The command that does the same."""

    def binding(self) -> Binding:
        return Binding(
            self.keys, self.action, self.description, show=False, priority=True, id=self.id
        )


CHAT_KEYS = (
    Key("threshold.finer-up", "ctrl+up,f8", "turn(0.05)", "T up: 5 points more accepted", "/up"),
    Key("threshold.finer-down", "ctrl+down,f7", "turn(-0.05)", "T down: 5 points less", "/down"),
    Key("threshold.coarser-up", "alt+up,f9", "turn(0.2)", "T up: 20 points more"),
    Key("threshold.coarser-down", "alt+down,f6", "turn(-0.2)", "T down: 20 points less"),
    Key("threshold.zero", "alt+0,f4", "exact", "T to zero: exactly the target", "/exact"),
    Key("reply.stop", "escape", "stop", "stop the reply, keep what was said", "/stop"),
    Key("reply.again", "ctrl+r,f3", "regenerate", "answer the last message again", "/regen"),
    Key("chat.new", "ctrl+n,f2", "new_chat", "a new chat", "/new"),
    Key("chat.list", "ctrl+o,alt+o", "chats", "earlier chats", "/chats"),
    Key("chat.save", "ctrl+s,alt+s", "save", "save the transcript", "/save [path]"),
    Key("app.help", "f1,alt+h", "help", "all keys and commands", "/help"),
)
"""Bound on the chat screen."""
APP_KEYS = (
    Key("app.interrupt", "ctrl+c", "interrupt", "stop; copy; twice within 3 s: quit"),
    Key("app.palette", "ctrl+p,alt+p", "command_palette", "command palette"),
    Key("app.quit", "ctrl+q,alt+q", "quit", "quit", "/quit"),
)
"""Bound everywhere, over a dialog too."""
PROMPT_KEYS = (
    Key(prompt.SEND, "enter", "", "send"),
    Key(prompt.NEW_LINE, "shift+enter,alt+enter,ctrl+j", "", "a new line"),
    Key(prompt.COMPLETE, "tab,ctrl+@", "", "complete a command"),
    Key(prompt.PAGE_UP, "pageup", "", "scroll the conversation up"),
    Key(prompt.PAGE_DOWN, "pagedown", "", "scroll the conversation down"),
)
"""Read by the prompt itself."""
BOUND_KEYS = (*CHAT_KEYS, *APP_KEYS)
ALL_KEYS = (*BOUND_KEYS, *PROMPT_KEYS)


def bindings(keys: Iterable[Key]) -> list[BindingType]:
    return [key.binding() for key in keys]


def _split(keys: str) -> list[str]:
    return [one.strip() for one in keys.split(",")]


def prompt_keys(wanted: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Keys of the prompt by id, the user's where there are any."""
    return {key.id: frozenset(_split(wanted.get(key.id, key.keys))) for key in PROMPT_KEYS}


def keymap(wanted: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The user's keys that can be used, and one line for each that cannot."""
    known = {key.id: key.keys for key in ALL_KEYS}
    problems = [
        f"[keys] {name}: no action is called that; the help screen lists the ids"
        for name in wanted
        if name not in known
    ]
    usable = {name: keys for name, keys in wanted.items() if name in known}
    problems += list(_clashes({**known, **usable}, usable))
    return usable, problems


def _clashes(all_keys: Mapping[str, str], changed: Mapping[str, str]) -> Iterable[str]:
    owner: dict[str, str] = {}
    for name, keys in all_keys.items():
        for key in _split(keys):
            other = owner.setdefault(key, name)
            if other != name and (name in changed or other in changed):
                yield f"[keys] {key} is bound to both {other} and {name}"


# --- for people -------------------------------------------------------------------------------

_SHOWN = {
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "escape": "Esc",
    "@": "Space",
    "pageup": "PgUp",
    "pagedown": "PgDn",
}


def shown(keys: str) -> str:
    """`ctrl+up,f8` as people write it: `Ctrl+↑, F8`."""
    return ", ".join(
        "+".join(_SHOWN.get(part, part.capitalize()) for part in one.split("+"))
        for one in _split(keys)
    )


def keys_of(name: str, wanted: Mapping[str, str]) -> str:
    """The keys of the action with the id `name`, for people, the user's where there are any."""
    keys = next(key.keys for key in ALL_KEYS if key.id == name)
    return shown(wanted.get(name, keys))
