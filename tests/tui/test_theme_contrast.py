"""Every shipped theme can be read: by its colours, and by what Textual paints with them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from rich.segment import Segment
from textual.app import App, ComposeResult
from textual.color import Color
from textual.theme import Theme
from textual.widgets import Button, Label, Markdown, OptionList, Static

from fsd_chat.tui.themes import GAUGE_COLOURS, TOKEN_COLOURS, load_themes

ENOUGH = 4.5
HIGH = 7.0
STEP = 1.2
"""How many times as far from the background each token colour is as the one before."""

GROUNDS = ("background", "surface", "panel")
TEXTS = (
    "foreground",
    "text-muted",
    "primary",
    "secondary",
    "accent",
    "success",
    "warning",
    "error",
    *(f"text-{name}" for name in ("primary", "secondary", "accent")),
    *(f"text-{name}" for name in ("success", "warning", "error")),
    "footer-foreground",
    "footer-key-foreground",
    *TOKEN_COLOURS,
    *GAUGE_COLOURS,
)
ON_EACH_OTHER = (
    ("block-cursor-foreground", "block-cursor-background"),
    ("block-cursor-blurred-foreground", "block-cursor-blurred-background"),
    ("text-muted", "block-cursor-blurred-background"),
    ("input-cursor-foreground", "input-cursor-background"),
    *(("button-color-foreground", name) for name in ("primary", "success", "warning", "error")),
)
THEMES = load_themes([Path(__file__).parents[2] / "themes"]).themes
MEASURED = [theme for theme in THEMES if not theme.ansi]
"""All but the terminal theme: what its colours look like is the terminal's own choice, so there is
nothing to measure."""

for_each_theme = pytest.mark.parametrize("theme", MEASURED, ids=lambda theme: theme.name)


def luminance(colour: Color) -> float:
    def linear(value: float) -> float:
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    red, green, blue = map(linear, colour.normalized)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Color, other: Color) -> float:
    """1 to 21, as the Web Content Accessibility Guidelines define it."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def colours(theme: Theme) -> dict[str, Color]:
    """What the app's stylesheet gets to see, as far as it is colours that cover what lies below."""
    variables = {**theme.to_color_system().generate(), **theme.variables}
    plain = {name: value for name, value in variables.items() if value.startswith("#")}
    return {name: Color.parse(value) for name, value in plain.items()}


def least(theme: Theme) -> float:
    return HIGH if theme.name == "contrast" else ENOUGH


def test_contrast_is_measured_as_the_guidelines_do() -> None:
    black, white, grey = map(Color.parse, ("#000000", "#ffffff", "#767676"))
    assert contrast(black, white) == pytest.approx(21)
    assert contrast(white, grey) == pytest.approx(4.54, abs=0.01)


@for_each_theme
@pytest.mark.parametrize("ground", GROUNDS)
def test_text_chrome_and_tokens_stand_out_from_every_ground(theme: Theme, ground: str) -> None:
    shades = colours(theme)
    found = {name: round(contrast(shades[name], shades[ground]), 2) for name in TEXTS}
    assert {name: value for name, value in found.items() if value < least(theme)} == {}


@for_each_theme
def test_what_is_chosen_can_be_read(theme: Theme) -> None:
    shades = colours(theme)
    found = {pair: round(contrast(shades[pair[0]], shades[pair[1]]), 2) for pair in ON_EACH_OTHER}
    assert {pair: value for pair, value in found.items() if value < least(theme)} == {}


@for_each_theme
@pytest.mark.parametrize("ground", ["surface", "background"])
@pytest.mark.parametrize("name", ["input-selection-background", "screen-selection-background"])
def test_selected_text_can_be_read(theme: Theme, ground: str, name: str) -> None:
    shades = colours(theme)
    assert contrast(shades["foreground"], shades[ground] + shades[name]) >= ENOUGH


@for_each_theme
def test_tokens_are_told_apart_by_brightness_alone(theme: Theme) -> None:
    shades = colours(theme)
    ladder = [contrast(shades[name], shades["background"]) for name in TOKEN_COLOURS]
    assert all(later >= STEP * earlier for earlier, later in pairwise(ladder)), ladder


@for_each_theme
def test_a_theme_is_as_dark_or_light_as_it_says(theme: Theme) -> None:
    shades = colours(theme)
    assert (shades["background"].brightness < shades["foreground"].brightness) == theme.dark
    assert (shades["background"].brightness < 0.5) == theme.dark


def test_no_two_themes_look_alike() -> None:
    looks = {(theme.background, theme.primary) for theme in MEASURED}
    assert len(looks) == len(MEASURED)


TEXT = """\
# One
## Two
### Three
Plain, **strong**, *slanted*, `code` and a [link](https://example.org).

```python
from os import path

@final
class Mirror(Base):
    '''Turns text around.'''
    def flip(self, times: int = 1, **rest) -> str:
        # a comment
        return None if self.text else f"{times:.1f}" + 'a'
```

| a | b |
|---|---|
| 1 | 2 |

- one

> two
"""


class Gallery(App[None]):
    """What Textual paints in colours it derives itself."""

    CSS = """
    Screen { background: $background; }
    MarkdownFence, MarkdownFence > Label { background: $surface; }
    Button { width: 16; }
    #bar { background: $panel; color: $text-muted; }
    """

    def compose(self) -> ComposeResult:
        yield OptionList("chosen", "another")
        yield Static("bar", id="bar")
        yield Label("label")
        yield Markdown(TEXT)
        for variant in ("default", "primary", "success", "warning", "error"):
            yield Button(variant, variant=variant)


@for_each_theme
async def test_everything_painted_can_be_read(theme: Theme) -> None:
    app = Gallery()
    app.register_theme(theme)
    app.theme = theme.name
    async with app.run_test(size=(60, 72), notifications=True) as pilot:
        for severity in ("information", "warning", "error"):
            app.notify("text", title="title", severity=severity)
        await pilot.pause(0.1)
        painted = [segment for strip in app.screen._compositor.render_strips() for segment in strip]
    words = [one for one in painted if any(map(str.isalnum, one.text))]
    seen = {one.text.strip() for one in words}
    assert {"chosen", "bar", "code", "class", "Mirror", "text", "title"} <= seen
    assert [one for one in words if painted_contrast(one) < least(theme)] == []


def painted_contrast(segment: Segment) -> float:
    assert segment.style is not None
    colour, ground = segment.style.color, segment.style.bgcolor
    return contrast(Color.from_rich_color(colour), Color.from_rich_color(ground))
