"""What the user asks: a text file, JSON lines, or exported chats."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fsd_chat.models.errors import ModelError

YOU = r"(?m)^## You\s*$"


def read_prompts(file: Path) -> list[str]:
    """Every question in `file`, once each: one per line of text, of JSON lines (a string, or an
    object with `prompt`, `text`, `content` or `messages`), or the user's of an exported chat.

    Raises ModelError for a file that cannot be read, or holds none.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise ModelError("bad-request", f"--prompts {file} cannot be read: {reason}") from error
    if _is_json(text):
        found = _in_json(file, text)
    else:
        found = _in_markdown(text) if re.search(YOU, text) else text.splitlines()
    questions = list(dict.fromkeys(one.strip() for one in found if one.strip()))
    if not questions:
        raise ModelError("bad-request", f"--prompts {file} holds no question")
    return questions


def _in_markdown(text: str) -> list[str]:
    """What stands below the user's headings of a chat exported as Markdown."""
    heads_and_bodies = re.split(r"(?m)^(## .*)$", text)[1:]
    pairs = zip(heads_and_bodies[::2], heads_and_bodies[1::2], strict=True)
    return [body for head, body in pairs if head.strip() == "## You"]


def _is_json(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[", '"')


def _in_json(file: Path, text: str) -> list[str]:
    try:
        return list(_questions(json.loads(text)))
    except ValueError:
        pass
    found: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found += _questions(json.loads(line))
        except ValueError as error:
            raise ModelError(
                "bad-request", f"--prompts {file}, line {number}, is no JSON: {error}"
            ) from error
    return found


def _questions(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _questions(one)
    elif isinstance(value, dict):
        if value.get("role", "user") != "user":
            return
        for key in ("prompt", "text", "content", "messages"):
            if key in value:
                yield from _questions(value[key])
                return
