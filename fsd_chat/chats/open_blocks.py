"""Markdown that somebody else wrote, made to end where it ends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_NEXT = "what follows"
_HTML_ENDS = (
    (re.compile(r"\s*<!--"), "-->"),
    (re.compile(r"\s*<\?"), "?>"),
    (re.compile(r"\s*<!\[CDATA\["), "]]>"),
    (re.compile(r"\s*<![A-Za-z]"), ">"),
    (re.compile(r"\s*<script", re.IGNORECASE), "</script>"),
    (re.compile(r"\s*<style", re.IGNORECASE), "</style>"),
    (re.compile(r"\s*<textarea", re.IGNORECASE), "</textarea>"),
)


def closed(text: str) -> str:
    """`text`, with an end for a code fence or an HTML block that it leaves open.

    A block left open would swallow all that follows. Text that leaves none open comes back as it
    is, and otherwise the end is put behind it.
    """
    swallower = _swallower(text)
    if swallower is None:
        return text
    line_end = "" if text.endswith(("\n", "\r")) else "\n"
    return f"{text}{line_end}{_end_of(swallower)}"


def _swallower(text: str) -> Token | None:
    """The block that a heading after `text` would be part of."""
    tokens = _parser().parse(f"{text}\n\n# {_NEXT}\n")
    last = tokens[-1]
    return None if last.type == "heading_close" and last.level == 0 else last


def _parser() -> MarkdownIt:
    # Not at the top: it takes a while to import, and only transcripts need it.
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark")
    # Blocks are all that is looked at, and the inline rules can take long.
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def _end_of(block: Token) -> str:
    if block.type == "fence":
        return block.markup
    ends = (end for start, end in _HTML_ENDS if start.match(block.content))
    # The only other one that goes on over blank lines.
    return next(ends, "</pre>")
