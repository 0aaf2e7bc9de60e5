"""A chat as a file: Markdown for notes, JSON for machines."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from fsd_chat import __version__
from fsd_chat.chats.conversation import Conversation, Reply, StoredMessage
from fsd_chat.chats.display import one_line
from fsd_chat.engine.messages import Knob, KnobSet, Round, TokenRecord

JSON_VERSION = 1
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")


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
    target = (path or Path.cwd()).expanduser()
    if target.is_dir():
        target = target / default_name(conversation)
    elif target.suffix.lower() not in (".md", ".markdown", ".txt", ".json"):
        target = target.with_name(target.name + ".md")
    as_json = target.suffix.lower() == ".json"
    text = to_json(conversation) if as_json else to_markdown(conversation)
    if target.exists() and not overwrite:
        raise ExportExists(target)
    try:
        _write(target, text, overwrite)
    except FileExistsError as error:
        raise ExportExists(target) from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno is not None else str(error)
        raise ExportError(f"{target} cannot be written: {reason}") from error
    return target


def _write(target: Path, text: str, overwrite: bool) -> None:
    """All of it under its final name, or nothing."""
    data = text.encode("utf-8", "replace")
    handle, name = tempfile.mkstemp(prefix=".fsd-chat-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(name, target)
        else:
            _claim(Path(name), target)
    finally:
        Path(name).unlink(missing_ok=True)


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


def default_name(conversation: Conversation) -> str:
    """A name from the chat's date and title that every file system takes."""
    day = datetime.fromtimestamp(conversation.chat.created).strftime("%Y-%m-%d")
    words = re.findall(r"\w+", conversation.chat.title.lower())
    slug = "-".join(words)[:40].strip("-")
    return f"{day}-{slug or 'chat'}.md"


# --- Markdown ---------------------------------------------------------------------------------


def to_markdown(conversation: Conversation) -> str:
    """The conversation as a note: a heading, the settings in a few lines, then the turns."""
    title = one_line(conversation.chat.title, 80) or "Chat"
    parts = [f"# {title}", "\n".join(_settings(conversation))]
    if conversation.chat.system:
        parts += ["## System", _closed(conversation.chat.system)]
    for message in conversation.messages:
        parts += [f"## {_speaker(message)}", _closed(message.content).strip("\n")]
        if message.reply is not None:
            parts.append(f"*{footer(message.reply)}*")
    return "\n\n".join(part for part in parts if part) + "\n"


def _speaker(message: StoredMessage) -> str:
    if message.role == "assistant":
        return one_line(message.reply.start.target, 60) if message.reply else "Assistant"
    return message.role.capitalize() if message.role == "system" else "You"


def _settings(conversation: Conversation) -> Iterator[str]:
    chat = conversation.chat
    yield f"- date: {datetime.fromtimestamp(chat.created):%Y-%m-%d %H:%M}"
    reply = next((one.reply for one in reversed(conversation.messages) if one.reply), None)
    if reply is None:
        yield f"- pair: {one_line(chat.pair, 60)}"
        return
    start = reply.start
    drafts = f", drafted by {one_line(start.draft, 60)}" if start.draft else ""
    yield f"- pair: {one_line(start.pair, 60)} ({one_line(start.target, 60)}{drafts})"
    yield f"- rule: {describe(start.knob)}"
    sampling = start.sampling
    seed = "" if reply.seed is None else f", seed {reply.seed}"
    yield f"- temperature: {sampling.temperature:g}{seed}"


def describe(knob: Knob) -> str:
    """The knob in a few words: `fsd, js, T = 0.1`."""
    if knob.rule in ("exact", "target-only"):
        return knob.rule
    form = "" if knob.form == "full" else f" ({knob.form})"
    return f"{knob.rule}, {knob.divergence}{form}, T = {knob.threshold:.3g}"


def footer(reply: Reply) -> str:
    """What the reply cost and what the knob did, in one line."""
    counts = reply.statistics()
    parts = [f"{counts.output} tokens"]
    if counts.tokens_per_second is not None:
        parts.append(f"{counts.tokens_per_second:.1f} tokens/s")
    if counts.acceptance is not None and counts.exact_acceptance is not None:
        exactly = f"exact decoding {counts.exact_acceptance:.0%}"
        parts.append(f"accepted {counts.acceptance:.0%} ({exactly})")
    if counts.fuzzy:
        parts.append(f"fuzzy {counts.fuzzy / counts.output:.0%}")
    thresholds = [f"{setting.knob.threshold:.3g}" for setting in reply.timeline]
    changes = [one for i, one in enumerate(thresholds) if i == 0 or one != thresholds[i - 1]]
    if changes:
        parts.append(f"T {' → '.join(changes)}")
    if reply.reason is None:
        parts.append("interrupted")
    elif reply.reason != "end":
        parts.append(f"ended by {reply.reason}")
    return " · ".join(parts)


def _closed(text: str) -> str:
    """`text` with a code fence that it leaves open closed, or it would swallow the next turns."""
    fence = ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if found is None:
            continue
        marks, after = found.groups()
        if not fence:
            if marks[0] == "~" or "`" not in after:
                fence = marks
        elif marks[0] == fence[0] and len(marks) >= len(fence) and not after.strip():
            fence = ""
    if not fence:
        return text
    return f"{text}{'' if text.endswith(chr(10)) else chr(10)}{fence}"


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
    return json.dumps(finite(document), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


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
        "stop_string": reply.finish.stop_string if reply.finish else None,
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
        "drafted": round.drafted,
        "draft_s": round.draft_s,
        "verify_s": round.verify_s,
        "total_s": round.total_s,
    }


def token_as_json(token: TokenRecord) -> dict[str, Any]:
    return {name: getattr(token, name) for name in token.__struct_fields__}


def finite(value: Any) -> Any:
    """The same with inf and NaN as strings, and half surrogates replaced: JSON has neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return value
