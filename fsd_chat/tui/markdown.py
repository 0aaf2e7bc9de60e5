"""How a model's Markdown is read: nothing that it wrote disappears, and nothing in it acts."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore

from fsd_chat.chats.display import plain


def parser() -> MarkdownIt:
    """GitHub's Markdown as text that people read, not as a page.

    HTML, pictures and definitions of links stand there as they were written: Textual has nothing
    to show for them, and while streaming it would lose the paragraph before them too. Every line
    break is one, as in a poem.
    """
    reader = MarkdownIt("gfm-like", {"html": False})
    reader.disable(["html_block", "html_inline", "image", "reference"])
    reader.core.ruler.push("as_written", _as_written)
    return reader


def _as_written(state: StateCore) -> None:
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
            # Only here has an entity such as &#x202e; become the character that it stands for.
            child.content = plain(child.content)
