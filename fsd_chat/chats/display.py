"""Text that is safe to show, where nothing may act on a terminal, and text that can be kept."""

from __future__ import annotations

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def _table() -> dict[int, str]:
    table = {code: chr(0x2400 + code) for code in range(0x20)}
    table[0x7F] = "\N{SYMBOL FOR DELETE}"
    # C1 controls: a terminal may take \x9b for the start of an escape sequence.
    table |= dict.fromkeys(range(0x80, 0xA0), REPLACEMENT)
    # Embeddings, overrides and isolates reorder what stands around them, our own words included.
    # Right-to-left text needs none of them.
    table |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], REPLACEMENT)
    # Half of a surrogate pair cannot be encoded at all.
    table |= dict.fromkeys(range(0xD800, 0xE000), REPLACEMENT)
    table |= dict.fromkeys([0x0B, 0x0C, 0x85, 0x2028, 0x2029], "\n")
    del table[ord("\n")], table[ord("\t")]
    return table


_TABLE = _table()


def plain(text: str) -> str:
    """`text` with control characters made visible; line breaks and tabs stay.

    Same length as `text` after its line ends are unified, so it can be applied piece by piece,
    except to a piece that ends between `\\r` and `\\n`.
    """
    return text.replace("\r\n", "\n").translate(_TABLE)


def encodable(text: str) -> str:
    """`text` with halves of surrogate pairs, which no file takes, joined or replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def one_line(text: str, width: int) -> str:
    """The first `width` characters of `text` on one line, for titles and lists."""
    flat = " ".join(plain(text).split())
    return flat if len(flat) <= width else flat[: width - 1].rstrip() + "…"
