"""A chat as a file: Markdown for notes, JSON for machines."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import shutil
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from fsd_chat import __version__
from fsd_chat.chats.conversation import Conversation, Reply, ReplyStart, StoredMessage
from fsd_chat.chats.display import encodable, one_line
from fsd_chat.chats.open_blocks import closed
from fsd_chat.engine.messages import Knob, KnobSet, Round, TokenRecord
from fsd_chat.engine.statistics import Statistics

JSON_VERSION = 1
MOST_SETTINGS = 8
"""Settings of the knob that a line names; of more, those in the middle are left out."""
_NO_THRESHOLD = frozenset({"exact", "target-only"})


class ExportError(Exception):
    """Nothing was written; the message is one line for people."""


class ExportExists(ExportError):
    """There is a file already, and nobody has said that it may be replaced."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} exists already; nothing was written")
        self.path = path


def save(conversation: Conversation, path: Path | None = None, *, overwrite: bool = False) -> Path:
    """Write the conversation and return where. The suffix decides: .json, else Markdown.

    path: a file, or a folder for a file named after the chat; None is the present folder. Raises
    ExportExists unless `overwrite`, and ExportError; either way nothing has been touched.
    """
    target = path or Path()
    try:
        target = _file_for(conversation, target.expanduser())
        as_json = target.suffix.lower() == ".json"
        text = to_json(conversation) if as_json else to_markdown(conversation)
        if target.exists() and not overwrite:
            raise ExportExists(target)
        _write(target, encodable(text).encode(), overwrite)
    except FileExistsError as error:
        raise ExportExists(target) from error
    except (OSError, ValueError, RuntimeError) as error:
        # No name at all (a NUL in it) is a ValueError, and `~nobody` a RuntimeError.
        raise ExportError(f"{target} cannot be written: {_reason(target, error)}") from error
    return target


def _file_for(conversation: Conversation, path: Path) -> Path:
    if path.is_dir():
        return path.absolute() / default_name(conversation)
    if path.suffix.lower() not in (".md", ".markdown", ".txt", ".json"):
        return path.with_name(path.name + ".md")
    return path


def _write(target: Path, data: bytes, overwrite: bool) -> None:
    """All of it under its final name, or nothing."""
    if overwrite:
        # Through a link to the file that it names.
        target = target.resolve()
    temporary = target.with_name(f".fsd-chat-{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            if target.exists():
                shutil.copymode(target, temporary)
            os.replace(temporary, target)
        else:
            _claim(temporary, target)
    finally:
        # Whatever it was that failed, that is what people should hear of.
        with contextlib.suppress(OSError):
            temporary.unlink()


def _claim(temporary: Path, target: Path) -> None:
    """Give the file its name unless somebody else has taken it meanwhile."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:
        # File systems without hard links; the window for somebody else is then a moment long.
        if target.exists():
            raise FileExistsError(target) from None
        os.replace(temporary, target)


def _reason(target: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"there is no folder {target.parent}"
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error)


def default_name(conversation: Conversation) -> str:
    """A name from the chat's date and title that every file system takes."""
    day = datetime.fromtimestamp(conversation.chat.created).strftime("%Y-%m-%d")
    words = re.findall(r"\w+", unicodedata.normalize("NFC", conversation.chat.title.lower()))
    slug = "-".join(words)[:40].strip("-")
    return f"{day}-{slug or 'chat'}.md"


# --- Markdown ---------------------------------------------------------------------------------


def to_markdown(conversation: Conversation) -> str:
    """The conversation as a note: a heading, the settings in a few lines, then the turns."""
    title = one_line(conversation.chat.title, 80) or "Chat"
    parts = [f"# {title}", "\n".join(_settings(conversation))]
    if conversation.chat.system:
        parts += ["## System", closed(conversation.chat.system)]
    for message in conversation.messages:
        parts += [f"## {_speaker(message)}", closed(message.content)]
        if message.reply is not None:
            parts.append(f"*{footer(message.reply)}*")
    return "\n\n".join(part for part in parts if part) + "\n"


def _speaker(message: StoredMessage) -> str:
    if message.role == "assistant":
        return one_line(message.reply.start.target, 60) if message.reply else "Assistant"
    return message.role.capitalize() if message.role == "system" else "You"


def _settings(conversation: Conversation) -> Iterator[str]:
    chat = conversation.chat
    replies = [message.reply for message in conversation.messages if message.reply]
    yield f"- date: {datetime.fromtimestamp(chat.created):%Y-%m-%d %H:%M}"
    if not replies:
        yield f"- pair: {one_line(chat.pair, 60)}"
        return
    yield f"- pair: {'; '.join(_distinct(_pair(reply.start) for reply in replies))}"
    yield f"- rule: {journey([knob for reply in replies for knob in _knobs(reply)], describe)}"
    temperatures = _distinct(f"{reply.start.sampling.temperature:g}" for reply in replies)
    yield f"- temperature: {', '.join(temperatures)}"
    seeds = [str(reply.seed) for reply in replies if reply.seed is not None]
    if seeds:
        yield f"- seed: {', '.join(_distinct(seeds))}"
    whole = Statistics()
    for reply in replies:
        for round in reply.rounds:
            whole.add(round)
    yield f"- {', '.join(_figures(whole))}"


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _pair(start: ReplyStart) -> str:
    drafts = f", drafted by {one_line(start.draft, 60)}" if start.draft else ""
    return f"{one_line(start.pair, 60)} ({one_line(start.target, 60)}{drafts})"


def _knobs(reply: Reply) -> list[Knob]:
    """The settings that governed a token, in order."""
    # Of two for the same token the first was replaced before it came into force.
    governing = {setting.index: setting.knob for setting in reply.timeline}
    return list(governing.values()) or [reply.start.knob]


def describe(knob: Knob) -> str:
    """The knob in a few words: `fsd, js, T = 0.1`."""
    if knob.rule in _NO_THRESHOLD:
        return knob.rule
    form = "" if knob.form == "full" else f" ({knob.form})"
    return f"{knob.rule}, {knob.divergence}{form}, T = {knob.threshold:.3g}"


def _briefly(knob: Knob) -> str:
    return knob.rule if knob.rule in _NO_THRESHOLD else f"T {knob.threshold:.3g}"


def journey(knobs: Sequence[Knob], first: Callable[[Knob], str]) -> str:
    """What the knob was set to, one after the other: `T 0.1 → 0.3 → exact`.

    first: how the first setting is put; of the others, only what changed is said.
    """
    said = [first(knobs[0])]
    for before, knob in pairwise(knobs):
        if describe(knob) == describe(before):
            continue
        level = msgspec.structs.replace(before, threshold=knob.threshold)
        said.append(
            f"{knob.threshold:.3g}" if describe(knob) == describe(level) else describe(knob)
        )
    if len(said) > MOST_SETTINGS:
        half = MOST_SETTINGS // 2
        return f"{' → '.join([*said[:half], '…', *said[-half:]])} ({len(said) - 1} changes)"
    return " → ".join(said)


def _figures(counts: Statistics) -> Iterator[str]:
    yield f"{counts.output} tokens"
    if counts.tokens_per_second is not None:
        yield f"{counts.tokens_per_second:.1f} tokens/s"
    if counts.acceptance is not None and counts.exact_acceptance is not None:
        exactly = f"exact decoding {counts.exact_acceptance:.0%}"
        yield f"accepted {counts.acceptance:.0%} ({exactly})"
    if counts.fuzzy:
        yield f"fuzzy {counts.fuzzy / counts.output:.0%}"


def footer(reply: Reply) -> str:
    """What the reply cost and what the knob did, in one line."""
    parts = [*_figures(reply.statistics()), journey(_knobs(reply), _briefly)]
    if reply.reason is None:
        parts.append("interrupted")
    elif reply.reason != "end":
        parts.append(f"ended by {reply.reason}")
    return " · ".join(parts)


# --- JSON -------------------------------------------------------------------------------------


def to_json(conversation: Conversation) -> str:
    """Everything that is known of the conversation. Numbers that JSON lacks are strings (`inf`)."""
    chat = conversation.chat
    document = {
        "format": "fsd-chat",
        "version": JSON_VERSION,
        "program": f"fsd-chat {__version__}",
        "title": chat.title,
        "pair": chat.pair,
        "system": chat.system,
        "created": _moment(chat.created),
        "updated": _moment(chat.updated),
        "messages": [_message(message) for message in conversation.messages],
    }
    text = json.dumps(finite(document), ensure_ascii=False, allow_nan=False)
    # `indent` of json.dumps takes ten times as long.
    return msgspec.json.format(text, indent=1) + "\n"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _message(message: StoredMessage) -> dict[str, Any]:
    found: dict[str, Any] = {
        "role": message.role,
        "content": message.content,
        "created": _moment(message.created),
    }
    if message.reply is not None:
        found["reply"] = reply_as_json(message.reply)
    return found


def reply_as_json(reply: Reply) -> dict[str, Any]:
    start = reply.start
    return {
        "text": reply.text,
        "reasoning": reply.reasoning,
        "finish": reply.reason,
        "failure": reply.failure or None,
        "stop_string": reply.finish.stop_string if reply.finish else None,
        "rest": {
            "text": reply.finish.text if reply.finish else "",
            "reasoning": reply.finish.reasoning if reply.finish else "",
        },
        "settings": {
            "pair": start.pair,
            "target": start.target,
            "target_revision": start.target_revision,
            "draft": start.draft,
            "draft_revision": start.draft_revision,
            "seed": reply.seed,
            "knob": _all_fields(start.knob),
            "sampling": _all_fields(start.sampling),
        },
        "timeline": [_setting(setting) for setting in reply.timeline],
        "prompt_tokens": reply.prompt_tokens,
        "cached_tokens": reply.cached_tokens,
        "dropped_turns": reply.dropped_turns,
        "statistics": reply.statistics().as_json(),
        "rounds": [_round(round) for round in reply.rounds],
        "tokens": [token_as_json(token) for token in reply.tokens],
    }


def _all_fields(struct: msgspec.Struct) -> dict[str, Any]:
    """Every field, those at their default too: a default may be another one later."""
    return {
        name: msgspec.to_builtins(getattr(struct, name), str_keys=True)
        for name in struct.__struct_fields__
    }


def _setting(setting: KnobSet) -> dict[str, Any]:
    return {"from_token": setting.index, **_all_fields(setting.knob)}


def _round(round: Round) -> dict[str, Any]:
    return {
        "from_token": round.index,
        "tokens": len(round.tokens),
        "text": round.text,
        "reasoning": round.reasoning,
        "drafted": round.drafted,
        "draft_s": round.draft_s,
        "verify_s": round.verify_s,
        "total_s": round.total_s,
    }


def token_as_json(token: TokenRecord) -> dict[str, Any]:
    return {name: getattr(token, name) for name in token.__struct_fields__}


def finite(value: Any) -> Any:
    """The same with inf and NaN as strings, and half surrogates replaced: JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value if value.isascii() else encodable(value)
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return value
